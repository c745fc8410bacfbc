#include "core/parallel.h"

#include "core/error.h"

#include <system_error>

namespace kvq {
namespace {

/// Layers follow each other within microseconds: looking this often before sleeping saves the wake-up.
constexpr int kSpins = 2000;

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

}  // namespace

Parallel::Parallel(int32_t n_threads, kvq_parallel_for_hook hook, void* user) : hook_(hook), user_(user) {
  if (hook_ != nullptr) return;
  try {
    const auto participants = static_cast<size_t>(n_threads);
    shares_ = std::make_unique<Share[]>(participants);
    workers_.reserve(participants - 1);
    for (size_t i = 1; i < participants; ++i) workers_.emplace_back([this, i] { work(i); });
  } catch (const std::system_error& error) {
    stop();
    fail(KVQ_E_BACKEND, "n_threads is %d, but a thread could not be started: %s", n_threads, error.what());
  }
}

Parallel::~Parallel() { stop(); }

void Parallel::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    generation_.fetch_add(1);
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
  workers_.clear();
}

bool Parallel::take_indices(size_t participant) {
  const size_t participants = workers_.size() + 1;
  int32_t done = 0;
  for (size_t offset = 0; offset < participants; ++offset) {
    std::atomic<uint64_t>& range = shares_[(participant + offset) % participants].range;
    for (;;) {
      const uint64_t taken = range.fetch_add(1, std::memory_order_acquire);
      const auto index = static_cast<uint32_t>(taken);
      if (index >= taken >> 32U) break;
      body_(argument_, static_cast<int32_t>(index));
      ++done;
    }
  }
  return done > 0 && undone_.fetch_sub(done, std::memory_order_acq_rel) == done;
}

void Parallel::work(size_t participant) {
  uint64_t seen = 0;
  for (;;) {
    for (int spin = 0; spin < kSpins && generation_.load(std::memory_order_acquire) == seen; ++spin) pause_briefly();
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return generation_.load() != seen; });
      seen = generation_.load();
      if (stopping_) return;
    }
    if (take_indices(participant)) {
      const std::lock_guard lock(mutex_);
      finished_.notify_one();
    }
  }
}

void Parallel::run_raw(int32_t n, kvq_parallel_body body, void* argument) {
  if (hook_ != nullptr && n > 0) {
    hook_(user_, n, body, argument);
    return;
  }
  if (workers_.empty() || n <= 1) {
    for (int32_t i = 0; i < n; ++i) body(argument, i);
    return;
  }
  const std::lock_guard one_loop(caller_);
  body_ = body;
  argument_ = argument;
  undone_.store(n, std::memory_order_relaxed);
  const auto participants = static_cast<int64_t>(workers_.size()) + 1;
  for (int64_t i = 0; i < participants; ++i) {
    const auto next = static_cast<uint64_t>(n * i / participants);
    const auto end = static_cast<uint64_t>(n * (i + 1) / participants);
    shares_[static_cast<size_t>(i)].range.store(end << 32U | next, std::memory_order_release);
  }
  {
    const std::lock_guard lock(mutex_);
    generation_.fetch_add(1, std::memory_order_release);
  }
  wake_.notify_all();
  if (take_indices(0)) return;
  for (int spin = 0; spin < kSpins && undone_.load(std::memory_order_acquire) != 0; ++spin) pause_briefly();
  std::unique_lock lock(mutex_);
  finished_.wait(lock, [&] { return undone_.load(std::memory_order_acquire) == 0; });
}

}  // namespace kvq
