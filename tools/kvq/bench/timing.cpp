#include "bench/timing.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <new>
#include <numeric>

#include "llama/cpu_device.h"
#include "llama/error.h"
#include "llama/system.h"
#include "terminal/output.h"

namespace cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kEnoughTime{1000};      // after kTimingSteps
constexpr std::chrono::milliseconds kTimingPatience{8000};  // even before them

bool is_enough(int64_t repetitions, Clock::duration elapsed) {
  if (repetitions == 0) return false;
  return repetitions >= kMaxRepetitions || elapsed > (repetitions < kTimingSteps ? kTimingPatience : kEnoughTime);
}

std::vector<double> cycle_means(std::span<const double> calls, size_t cycle) {
  std::vector<double> means;
  for (; !calls.empty(); calls = calls.subspan(cycle)) {
    const std::span<const double> one = calls.first(cycle);
    means.push_back(std::accumulate(one.begin(), one.end(), 0.0) / static_cast<double>(cycle));
  }
  return means;
}

// Times decide, which are known on every machine: where there are more threads than work, much of the processor is
// missing, always. On quiet machines the mean is a tenth to a fifth above the best.
constexpr double kMuchSlower = 1.4;
constexpr double kMuchMissing = 0.15;

constexpr double kTenPercent = 10.0;

std::string tens_of_percent(double share) {
  return number_text(kTenPercent * std::round(kTenPercent * share), 0) + " %";
}

constexpr size_t kBytes = size_t{256} << 20;
constexpr size_t kStreams = 8;  // of each thread; memory gives more to several streams than to one
constexpr int kReadPasses = 5;

// One cache line; the compiler picks the widest loads of its target.
struct Line {
  std::array<uint64_t, 8> words;
};

uint64_t read_streams(const Line* lines, size_t lines_per_stream) {
  Line sum{};
  for (size_t i = 0; i < lines_per_stream; ++i) {
    for (size_t stream = 0; stream < kStreams; ++stream) {
      const Line& line = lines[stream * lines_per_stream + i];
      for (size_t word = 0; word < sum.words.size(); ++word) sum.words[word] += line.words[word];
    }
  }
  uint64_t total = 0;
  for (const uint64_t word : sum.words) total += word;
  return total;
}

uint64_t cache_bytes() {
  constexpr uint64_t kUsual = uint64_t{32} << 20;
  const uint64_t bytes = llama::last_level_cache_bytes();
  return bytes != 0 ? bytes : kUsual;
}

/// Bytes per second that the threads together read from memory: the best of several passes over far more data than the
/// processor caches.
double read_bandwidth(llama::ThreadPool& threads) {
  const auto n = static_cast<size_t>(threads.size());
  const size_t lines_per_stream = kBytes / sizeof(Line) / kStreams / n;
  const size_t lines_per_thread = lines_per_stream * kStreams;
  const std::vector<Line> lines(lines_per_thread * n, Line{{1, 2, 3, 4, 5, 6, 7, 8}});
  std::atomic<uint64_t> total{0};  // keeps the reads from being removed
  double best = 0.0;
  for (int pass = 0; pass < kReadPasses; ++pass) {
    const Stopwatch watch;
    threads.run(threads.size(), [&](int32_t thread) {
      total += read_streams(lines.data() + static_cast<size_t>(thread) * lines_per_thread, lines_per_stream);
    });
    best = std::max(best, static_cast<double>(lines.size() * sizeof(Line)) / watch.seconds());
  }
  return best;
}

class Cpu final : public TimedDevice {
 public:
  explicit Cpu(int32_t threads) : threads_(threads) {}
  std::string name() const override { return std::to_string(threads_) + (threads_ == 1 ? " thread" : " threads"); }
  uint64_t memory_bytes() const override { return llama::host_memory_bytes(); }

  double memory_bandwidth() override {
    llama::ThreadPool threads(threads_);
    return read_bandwidth(threads);
  }

  DeviceBuffer upload(std::span<const std::byte> bytes) override {
    DeviceBuffer buffer(::operator new(bytes.size()), [](void* data) { ::operator delete(data); });
    std::ranges::copy(bytes, static_cast<std::byte*>(buffer.get()));
    return buffer;
  }

  double time(const std::function<void()>& issue) override {
    const Stopwatch watch;
    issue();
    return watch.microseconds();
  }

  bool records() const override { return false; }
  std::function<void()> record(kvq_context* /*context*/, std::function<void()> issue) override { return issue; }
  uint64_t bytes_to_rotate(bool /*recorded*/) const override { return 2 * cache_bytes(); }
  bool forgets_instructions() const override { return false; }

 private:
  int32_t threads_;
};

}  // namespace

double median(std::vector<double> numbers) {
  std::ranges::sort(numbers);
  const size_t n = numbers.size();
  return (numbers[(n - 1) / 2] + numbers[n / 2]) / 2;
}

Timing summary(const std::vector<double>& microseconds) {
  const auto [min, max] = std::ranges::minmax(microseconds);
  return {
      .median = median(microseconds), .min = min, .max = max, .repetitions = static_cast<int32_t>(microseconds.size())};
}

void repeat_in_turn(size_t subjects, int32_t cycle, Progress& progress, const std::function<void(size_t)>& run) {
  const Clock::time_point begin = Clock::now();
  for (int64_t repetition = 0; repetition % cycle != 0 || !is_enough(repetition, Clock::now() - begin); ++repetition) {
    for (size_t turn = 0; turn < subjects; ++turn) {
      run(repetition % 2 == 0 ? turn : subjects - 1 - turn);  // nobody always follows the same one
    }
    if (repetition < kTimingSteps) progress.advance(1);
  }
}

std::vector<Timing> time_in_turn(size_t subjects, Progress& progress, const std::function<double(size_t)>& run,
                                 int32_t cycle) {
  for (size_t i = 0; i < subjects; ++i) run(i);  // warm-up: work space, threads
  std::vector<std::vector<double>> samples(subjects);
  repeat_in_turn(subjects, cycle, progress, [&](size_t i) { samples[i].push_back(run(i)); });
  std::vector<Timing> timings;
  for (const std::vector<double>& sample : samples)
    timings.push_back(summary(cycle_means(sample, static_cast<size_t>(cycle))));
  return timings;
}

double ProcessorUse::missing_share(int32_t threads) const {
  if (wall_seconds <= 0.0) return 0.0;
  return std::clamp(1.0 - processor_seconds / (wall_seconds * threads), 0.0, 1.0);
}

bool Disturbance::is_busy() const { return slowdown >= kMuchSlower; }

std::string disturbance_text(const Disturbance& disturbance, const std::string& consequence) {
  if (!disturbance.is_busy()) return "";
  const double taken = std::min(disturbance.missing_share, 1.0 - 1.0 / disturbance.slowdown);
  // A virtual machine may not know what its host gives to others.
  const std::string what = taken >= kMuchMissing
                               ? "Something else uses the processor (about " + tens_of_percent(taken) + " of it)"
                               : "Something slows the processor down (calls take " +
                                     number_text(disturbance.slowdown, 1) + " times as long as the best)";
  return what + ":" + consequence + ".\n";
}

std::unique_ptr<TimedDevice> make_timed_device(const ComputeOptions& options) {
  if (options.device == "cpu") return std::make_unique<Cpu>(options.threads);
#if defined(KVQ_CLI_CUDA)
  return make_timed_gpu(options);
#else
  throw llama::Error("this build has no CUDA support: configure with -DKVQ_CUDA=ON");
#endif
}

}  // namespace cli
