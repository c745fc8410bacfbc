#include "threads.h"

#include <chrono>
#include <string>
#include <system_error>

#include "error.h"
#include "system.h"

namespace llama {
namespace {

constexpr int32_t kMaxThreads = 1024;
// A layer's products follow each other within microseconds; sleeping between them would cost more than they do.
constexpr std::chrono::microseconds kSpinTime{100};
constexpr int kSpinsPerClockRead = 64;

inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

// Spin for a short while, then sleep, until `value` differs from `old`.
void wait_while_equal(const std::atomic<uint32_t>& value, uint32_t old) {
  const auto deadline = std::chrono::steady_clock::now() + kSpinTime;
  do {
    for (int spin = 0; spin < kSpinsPerClockRead; ++spin) {
      if (value.load(std::memory_order_acquire) != old) return;
      relax();
    }
  } while (std::chrono::steady_clock::now() < deadline);
  while (value.load(std::memory_order_acquire) == old) sleep_while(value, old);
}

}  // namespace

ThreadPool::ThreadPool(int32_t threads) {
  if (threads < 1 || threads > kMaxThreads) {
    throw Error("the number of threads is " + std::to_string(threads) + ", not 1 to " + std::to_string(kMaxThreads));
  }
  try {
    for (int32_t i = 1; i < threads; ++i) workers_.emplace_back([this] { work(); });
  } catch (const std::system_error& error) {
    const size_t started = workers_.size() + 1;
    stop();
    throw Error("of " + std::to_string(threads) + " threads only " + std::to_string(started) +
                " can be started here: " + error.code().message());
  } catch (...) {
    stop();
    throw;
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  stopping_.store(true, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  wake_all(generation_);
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run(int32_t n, kvq_parallel_body body, void* argument) {
  if (n <= 0) return;
  if (workers_.empty() || n == 1) {
    for (int32_t i = 0; i < n; ++i) body(argument, i);
    return;
  }
  loop_ = {body, argument, n};
  done_.store(0, std::memory_order_relaxed);
  const uint64_t number = generation_.load(std::memory_order_relaxed) + uint64_t{1};
  shares_.store(number << 32 | static_cast<uint32_t>(n), std::memory_order_release);
  generation_.fetch_add(1, std::memory_order_release);
  wake_all(generation_);
  take_shares();
  const auto all = static_cast<uint32_t>(n);
  for (uint32_t done = done_.load(std::memory_order_acquire); done != all;
       done = done_.load(std::memory_order_acquire)) {
    wait_while_equal(done_, done);
  }
}

int32_t ThreadPool::parallel_for_hook(void* user, int32_t n, kvq_parallel_body body, void* argument) {
  static_cast<ThreadPool*>(user)->run(n, body, argument);
  return 0;
}

// A worker that wakes late finds no share left and touches nothing: a loop never waits for a thread without work. The
// loop's number in the upper half keeps such a worker from taking a share of one loop for a share of another.
void ThreadPool::take_shares() {
  uint64_t shares = shares_.load(std::memory_order_acquire);
  while (static_cast<uint32_t>(shares) != 0) {
    if (!shares_.compare_exchange_weak(shares, shares - 1, std::memory_order_acq_rel)) continue;
    const int32_t n = loop_.n;
    loop_.body(loop_.argument, n - static_cast<int32_t>(static_cast<uint32_t>(shares)));
    if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<uint32_t>(n)) wake_one(done_);
    shares = shares_.load(std::memory_order_acquire);
  }
}

void ThreadPool::work() {
  for (uint32_t seen = 0; !stopping_.load(std::memory_order_acquire);) {
    wait_while_equal(generation_, seen);
    seen = generation_.load(std::memory_order_acquire);
    take_shares();
  }
}

}  // namespace llama
