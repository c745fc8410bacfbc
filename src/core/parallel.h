#pragma once

#include "kvq.h"

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace kvq {

/// Parallel loops of one context: the caller's hook, or a pool of n_threads − 1 workers plus the calling thread.
class Parallel {
 public:
  Parallel(int32_t n_threads, kvq_parallel_for_hook hook, void* user);
  ~Parallel();
  Parallel(const Parallel&) = delete;
  Parallel& operator=(const Parallel&) = delete;

  /// Run body(i) for every i in [0, n). `body` must not throw: work that can fail happens before a loop starts.
  template <typename Body>
  void run(int32_t n, const Body& body) {
    static_assert(noexcept(body(0)));
    run_raw(
        n, [](void* argument, int32_t index) { (*static_cast<const Body*>(argument))(index); },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

  int32_t n_threads() const { return hook_ != nullptr ? 0 : static_cast<int32_t>(workers_.size()) + 1; }

 private:
  void run_raw(int32_t n, kvq_parallel_body body, void* argument);
  void stop();
  void work();
  void take_indices();

  kvq_parallel_for_hook hook_;
  void* user_;
  std::vector<std::thread> workers_;

  // One loop at a time: `caller_` admits it, `generation_` announces it, `next_` hands out its indices.
  std::mutex caller_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable finished_;
  std::atomic<uint64_t> generation_{0};
  std::atomic<int32_t> next_{0};
  std::atomic<int32_t> busy_{0};
  int32_t n_ = 0;
  kvq_parallel_body body_ = nullptr;
  void* argument_ = nullptr;
  bool stopping_ = false;
};

}  // namespace kvq
