#pragma once

#include "kvq.h"

#include <cstdint>
#include <memory>

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

  /// The same for a loop of about `microseconds` on one thread, possibly too short to share.
  template <typename Body>
  void run(int32_t n, double microseconds, const Body& body) {
    if (microseconds >= kWorthSharing) return run(n, body);
    for (int32_t i = 0; i < n; ++i) body(i);
  }

  /// 0 with a hook.
  int32_t n_threads() const;

 private:
  /// Microseconds of work below which the calling thread works alone. Waking a thread costs the caller a few and the
  /// thread starts tens later, when shorter work is nearly done.
  static constexpr double kWorthSharing = 25.0;

  class Pool;

  void run_raw(int32_t n, kvq_parallel_body body, void* argument);
  void run_hooked(int32_t n, kvq_parallel_body body, void* argument);
  /// Null with a hook, with a single thread, and in a process forked from the pool's.
  Pool* pool() const;

  kvq_parallel_for_hook hook_;
  void* user_;
  std::unique_ptr<Pool> pool_;
};

}  // namespace kvq
