#include "kvq_threads.h"

#include <thread>

namespace llama_kvq {
namespace {

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

/// A thread that waits for one that the system has stopped should leave it the core.
class Spin {
 public:
  void once() {
    if (++count_ % kSpins == 0) {
      std::this_thread::yield();
    } else {
      pause_briefly();
    }
  }

 private:
  static constexpr uint32_t kSpins = 1024;
  uint32_t count_ = 0;
};

}  // namespace

void Threads::take_indices() {
  for (int32_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < n_;) body_(argument_, i);
}

int32_t Threads::run(void* user, int32_t n, kvq_parallel_body body, void* argument) {
  auto& self = *static_cast<Threads*>(user);
  if (self.busy_.test_and_set(std::memory_order_acquire)) {  // a second thread of the host: kvq runs the loop itself
    return 1;
  }
  self.n_ = n;
  self.body_ = body;
  self.argument_ = argument;
  self.next_.store(0, std::memory_order_relaxed);
  self.open_.store(true);
  self.take_indices();
  // Sequentially consistent: a helper has either been counted, or sees that the loop is closed.
  self.open_.store(false);
  for (Spin spin; self.inside_.load() != 0;) spin.once();
  self.busy_.clear(std::memory_order_release);
  return 0;
}

void Threads::help(const std::atomic<bool>& done) {
  for (Spin spin; !done.load(std::memory_order_acquire); spin.once()) {
    if (!open_.load(std::memory_order_relaxed)) continue;
    inside_.fetch_add(1);
    if (open_.load()) take_indices();
    inside_.fetch_sub(1);
  }
}

}  // namespace llama_kvq
