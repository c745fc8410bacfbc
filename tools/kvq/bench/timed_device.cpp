#include "bench/timed_device.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <new>
#include <vector>

#include "bench/timing.h"
#include "llama/cpu_device.h"
#include "llama/error.h"

namespace cli {
namespace {

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

constexpr uint64_t kUsualCacheBytes = uint64_t{32} << 20;

uint64_t last_level_cache_bytes() {
#ifdef _SC_LEVEL3_CACHE_SIZE
  const long size = sysconf(_SC_LEVEL3_CACHE_SIZE);
  if (size > 0) return static_cast<uint64_t>(size);
#endif
  return kUsualCacheBytes;
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
  uint64_t bytes_to_rotate(bool /*recorded*/) const override { return 2 * last_level_cache_bytes(); }
  bool forgets_instructions() const override { return false; }

 private:
  int32_t threads_;
};

}  // namespace

std::unique_ptr<TimedDevice> make_timed_device(const ComputeOptions& options) {
  if (options.device == "cpu") return make_timed_cpu(options);
#if defined(KVQ_CLI_CUDA)
  return make_timed_gpu(options);
#else
  throw llama::Error("this build has no CUDA support: configure with -DKVQ_CUDA=ON");
#endif
}

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

std::unique_ptr<TimedDevice> make_timed_cpu(const ComputeOptions& options) {
  return std::make_unique<Cpu>(options.threads);
}

}  // namespace cli
