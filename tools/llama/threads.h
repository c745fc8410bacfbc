#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <type_traits>
#include <vector>

#include "kvq.h"

namespace llama {

/// A fixed set of threads that share the model's matrix products and, through the library's `parallel_for` hook, the
/// attention: one pool, so that two of them never compete for the same cores.
class ThreadPool {
 public:
  /// `threads` counts the caller: 1 starts none. 1 … 1024.
  explicit ThreadPool(int32_t threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int32_t size() const { return static_cast<int32_t>(workers_.size()) + 1; }

  /// Run `body(argument, i)` for every i in [0, n) and return when all are done. One caller at a time.
  void run(int32_t n, kvq_parallel_body body, void* argument);

  template <class Body>
  void run(int32_t n, Body&& body) {
    using Stored = std::remove_reference_t<Body>;
    run(
        n, [](void* argument, int32_t i) { (*static_cast<Stored*>(argument))(i); },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

  /// A kvq_parallel_for_hook whose `user` is a ThreadPool.
  static int32_t parallel_for_hook(void* user, int32_t n, kvq_parallel_body body, void* argument);

 private:
  struct Loop {
    kvq_parallel_body body = nullptr;
    void* argument = nullptr;
    int32_t n = 0;
  };

  void work();
  void stop();
  void take_shares();

  Loop loop_;                            // changes only while no share of it is left
  std::atomic<uint64_t> shares_{0};      // number of the loop << 32 | indices not yet taken
  std::atomic<uint32_t> done_{0};        // indices of the current loop that are finished
  std::atomic<uint32_t> generation_{0};  // grows with every loop; workers wait for it to change
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> workers_;
};

}  // namespace llama
