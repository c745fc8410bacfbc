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

void Parallel::take_indices(size_t participant) {
  const size_t participants = workers_.size() + 1;
  for (size_t offset = 0; offset < participants; ++offset) {
    Share& share = shares_[(participant + offset) % participants];
    for (int32_t i = share.next.fetch_add(1); i < share.end; i = share.next.fetch_add(1)) body_(argument_, i);
  }
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
    take_indices(participant);
    if (busy_.fetch_sub(1) == 1) {
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
  {
    const std::lock_guard lock(mutex_);
    const auto participants = static_cast<int64_t>(workers_.size()) + 1;
    for (int64_t i = 0; i < participants; ++i) {
      Share& share = shares_[static_cast<size_t>(i)];
      share.next.store(static_cast<int32_t>(n * i / participants));
      share.end = static_cast<int32_t>(n * (i + 1) / participants);
    }
    body_ = body;
    argument_ = argument;
    busy_.store(static_cast<int32_t>(workers_.size()));
    generation_.fetch_add(1, std::memory_order_release);
  }
  wake_.notify_all();
  take_indices(0);
  for (int spin = 0; spin < kSpins && busy_.load(std::memory_order_acquire) != 0; ++spin) pause_briefly();
  std::unique_lock lock(mutex_);
  finished_.wait(lock, [&] { return busy_.load() == 0; });
}

}  // namespace kvq
