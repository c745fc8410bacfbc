#include "bench/read_bandwidth.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

#include "bench/stopwatch.h"

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

}  // namespace

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

}  // namespace cli
