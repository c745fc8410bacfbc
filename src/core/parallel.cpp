#include "core/parallel.h"

#include "core/error.h"
#include "core/system.h"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

namespace kvq {
namespace {

/// Layers follow within microseconds: this many checks before sleeping save the wake-up.
constexpr int kSpins = 2000;

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");  // waits about as long; "yield" does nothing on most of these processors
#else
  std::this_thread::yield();
#endif
}

}  // namespace

class Parallel::Pool {
 public:
  explicit Pool(size_t participants) : participants_(participants), shares_(std::make_unique<Share[]>(participants)) {
    workers_.reserve(participants - 1);
    try {
      for (size_t i = 1; i < participants; ++i) workers_.emplace_back([this, i] { work(i); });
    } catch (...) {
      stop();
      throw;
    }
  }
  ~Pool() { stop(); }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  /// Threads exist only in the process that started them.
  bool lives_here() const { return forks_ == count_forks(); }
  size_t participants() const { return participants_; }
  void run(int32_t n, kvq_parallel_body body, void* argument);

 private:
  void stop();
  void work(size_t participant);
  /// Returns whether this call ran the loop's last index.
  bool take_indices(size_t participant);

  /// Remaining indices of one participant, on a cache line of their own: `end` in the upper half, `next` in the lower,
  /// so that taking an index shows whether there was one.
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
  const uint32_t forks_ = count_forks();
  const size_t participants_;
  std::unique_ptr<Share[]> shares_;
  std::atomic<int32_t> undone_{0};
  kvq_parallel_body body_ = nullptr;
  void* argument_ = nullptr;
  bool stopping_ = false;
  std::vector<std::thread> workers_;
};

void Parallel::Pool::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    generation_.fetch_add(1);
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

bool Parallel::Pool::take_indices(size_t participant) {
  int32_t done = 0;
  for (size_t offset = 0; offset < participants_; ++offset) {
    std::atomic<uint64_t>& range = shares_[(participant + offset) % participants_].range;
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

void Parallel::Pool::work(size_t participant) {
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

void Parallel::Pool::run(int32_t n, kvq_parallel_body body, void* argument) {
  const std::lock_guard one_loop(caller_);
  body_ = body;
  argument_ = argument;
  undone_.store(n, std::memory_order_relaxed);
  const auto participants = static_cast<int64_t>(participants_);
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

Parallel::Parallel(int32_t n_threads, kvq_parallel_for_hook hook, void* user) : hook_(hook), user_(user) {
  if (hook_ != nullptr || n_threads <= 1) return;
  try {
    pool_ = std::make_unique<Pool>(static_cast<size_t>(n_threads));
  } catch (const std::system_error& error) {
    fail(KVQ_E_BACKEND, "n_threads is %d, but a thread could not be started: %s", n_threads, error.what());
  }
}

Parallel::~Parallel() {
  // Threads of another process can neither be joined nor woken: leak the state.
  if (pool() == nullptr) static_cast<void>(pool_.release());
}

Parallel::Pool* Parallel::pool() const { return pool_ != nullptr && pool_->lives_here() ? pool_.get() : nullptr; }

int32_t Parallel::n_threads() const {
  if (hook_ != nullptr) return 0;
  const Pool* threads = pool();
  return threads != nullptr ? static_cast<int32_t>(threads->participants()) : 1;
}

namespace {

/// Loop run by the host. Each call of its body takes the next index, whichever it is called for, so that no index runs
/// twice and indices that the host leaves out can run afterwards.
struct HookedLoop {
  int32_t n;
  kvq_parallel_body body;
  void* argument;
  std::atomic<int32_t> next{0};
  std::atomic<int32_t> undone{n};

  /// Returns whether an index was left.
  bool step() {
    // Bounded, so that endless calls of a host do not wrap it around.
    int32_t index = next.load(std::memory_order_relaxed);
    do {
      if (index >= n) return false;
    } while (!next.compare_exchange_weak(index, index + 1, std::memory_order_relaxed));
    body(argument, index);
    if (undone.fetch_sub(1, std::memory_order_acq_rel) == 1) wake_all(undone);
    return true;
  }
};

}  // namespace

void Parallel::run_hooked(int32_t n, kvq_parallel_body body, void* argument) {
  HookedLoop loop{.n = n, .body = body, .argument = argument};
  try {
    // The host's answer is ignored: only the indices that ran count.
    hook_(
        user_, n, [](void* of, int32_t) { static_cast<HookedLoop*>(of)->step(); }, &loop);
  } catch (...) {  // runs what the host left out
  }
  while (loop.step()) {
  }
  for (int32_t left = loop.undone.load(std::memory_order_acquire); left != 0;
       left = loop.undone.load(std::memory_order_acquire)) {
    sleep_while(loop.undone, left);
  }
}

void Parallel::run_raw(int32_t n, kvq_parallel_body body, void* argument) {
  if (hook_ != nullptr && n > 0) return run_hooked(n, body, argument);
  Pool* threads = n > 1 ? pool() : nullptr;
  if (threads != nullptr) return threads->run(n, body, argument);
  for (int32_t i = 0; i < n; ++i) body(argument, i);
}

}  // namespace kvq
