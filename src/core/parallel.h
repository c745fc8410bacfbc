#pragma once

#include "kvq.h"

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
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

  /// The same for a loop that takes about `microseconds` on one thread, which may be too little to share.
  template <typename Body>
  void run(int32_t n, double microseconds, const Body& body) {
    if (microseconds >= kWorthSharing) return run(n, body);
    for (int32_t i = 0; i < n; ++i) body(i);
  }

  int32_t n_threads() const { return hook_ != nullptr ? 0 : static_cast<int32_t>(workers_.size()) + 1; }

 private:
  /// Microseconds of work below which the calling thread does it alone. To wake a thread costs the caller a few and the
  /// thread starts tens later, so that less than this is done, or nearly, before help arrives.
  static constexpr double kWorthSharing = 25.0;

  void run_raw(int32_t n, kvq_parallel_body body, void* argument);
  void stop();
  void work(size_t participant);
  /// Returns whether the loop's last index was among those done here.
  bool take_indices(size_t participant);

  kvq_parallel_for_hook hook_;
  void* user_;
  std::vector<std::thread> workers_;

  /// What is left of one participant's indices, apart from the others' in memory: `end` in the upper half, `next` in
  /// the lower, so that taking an index tells of itself whether there was one.
  struct alignas(64) Share {
    std::atomic<uint64_t> range{0};
  };

  // One loop at a time: `caller_` admits it, `generation_` announces it. Every participant first takes its own share,
  // neighbouring indices, which often touch neighbouring memory, and then helps the others with theirs. A loop ends
  // when all its indices are done, not when every worker has woken: one that comes late finds the shares empty, or
  // those of a later loop, and joins that. So a worker looks at `body_` only while it holds an index that is not done,
  // which keeps the loop from ending.
  std::mutex caller_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable finished_;
  std::atomic<uint64_t> generation_{0};
  std::unique_ptr<Share[]> shares_;
  std::atomic<int32_t> undone_{0};
  kvq_parallel_body body_ = nullptr;
  void* argument_ = nullptr;
  bool stopping_ = false;
};

}  // namespace kvq
