// Times the cache's operations, each against FP16 in the same run.
//   attend  one query of the newest token over all tokens: per format, length and threads
//   append  one token into the open page of a long sequence
//   seal    the token that begins a page and seals the one before it in every head
//   prompt  a prompt of 512 tokens into an empty sequence
#include "filled_cache.h"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace bench {
namespace {

const char* const kFormats[] = {"fp16", "int8", "int4", "int4+hadamard", "int3", "int2", "int2+hadamard"};

double seconds_of(const std::function<void()>& call) {
  const auto start = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median_of(int n, const std::function<double()>& measure) {
  std::vector<double> times;
  for (int i = 0; i < n; ++i) times.push_back(measure());
  const auto middle = times.begin() + n / 2;
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

void report(benchmark::State& state, double fp16_seconds, double own_seconds) {
  state.counters["us_fp16"] = 1e6 * fp16_seconds;
  state.counters["x_fp16"] = fp16_seconds / own_seconds;  // above 1: faster than FP16
}

void attend(benchmark::State& state, const std::string& format, int32_t length, int32_t n_threads) {
  FilledCache cache(format, length, n_threads);
  FilledCache fp16("fp16", length, n_threads);
  cache.attend();
  fp16.attend();
  double own = 0.0;
  double baseline = 0.0;
  for (auto _ : state) {  // alternating, so that machine noise affects both
    baseline += seconds_of([&] { fp16.attend(); });
    const double seconds = seconds_of([&] { cache.attend(); });
    own += seconds;
    state.SetIterationTime(seconds);
  }
  report(state, baseline / static_cast<double>(state.iterations()), own / static_cast<double>(state.iterations()));
  state.counters["bits"] = cache.bits_per_scalar();
  state.counters["GB/s"] =
      benchmark::Counter(cache.stored_bytes() * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}

constexpr int32_t kLongSequence = 4096;

// Seconds per token when one page's tokens are appended one by one.
double append_page_seconds(FilledCache& cache) {
  const std::vector<float>& tokens = random_tensor(512 * kTokenScalars);
  const double seconds = seconds_of([&] {
    for (int32_t i = 0; i < KVQ_PAGE_SLOTS; ++i) cache.append(1, tokens);
  });
  cache.truncate(kLongSequence);
  return seconds / int32_t{KVQ_PAGE_SLOTS};
}

void append(benchmark::State& state, const std::string& format) {
  FilledCache cache(format, kLongSequence, 1);
  FilledCache fp16("fp16", kLongSequence, 1);
  double own = 0.0;
  double baseline = 0.0;
  for (auto _ : state) {
    baseline += append_page_seconds(fp16);
    const double seconds = append_page_seconds(cache);
    own += seconds;
    state.SetIterationTime(seconds);
  }
  report(state, baseline / static_cast<double>(state.iterations()), own / static_cast<double>(state.iterations()));
}

// Times the token that begins a page, which seals the previous page in every head.
double seal_seconds(FilledCache& cache) {
  const std::vector<float>& tokens = random_tensor(512 * kTokenScalars);
  cache.append(KVQ_PAGE_SLOTS, tokens);
  return seconds_of([&] { cache.append(1, tokens); });
}

void seal(benchmark::State& state, const std::string& format) {
  FilledCache cache(format, 0, 1);
  for (auto _ : state) {
    state.SetIterationTime(seal_seconds(cache));
    cache.truncate(0);
  }
  state.counters["pages/s"] = benchmark::Counter(kKvHeads, benchmark::Counter::kIsIterationInvariantRate);
}

double prompt_seconds(FilledCache& cache, int32_t n) {
  const std::vector<float>& tokens = random_tensor(static_cast<size_t>(n) * kTokenScalars);
  const double seconds = seconds_of([&] { cache.append(n, tokens); });
  cache.truncate(0);
  return seconds;
}

void prompt(benchmark::State& state, const std::string& format, int32_t n_threads) {
  constexpr int32_t kTokens = 512;
  FilledCache cache(format, 0, n_threads);
  FilledCache fp16("fp16", 0, n_threads);
  const double baseline = median_of(20, [&] { return prompt_seconds(fp16, kTokens); });
  const double own = median_of(20, [&] { return prompt_seconds(cache, kTokens); });
  for (auto _ : state) state.SetIterationTime(prompt_seconds(cache, kTokens));
  report(state, baseline, own);
  state.counters["tokens/s"] = benchmark::Counter(kTokens, benchmark::Counter::kIsIterationInvariantRate);
}

void register_all() {
  for (const int32_t n_threads : {1, 2}) {
    for (const int32_t length : {1024, 4096, 8192, 32768}) {
      for (const std::string format : kFormats) {
        const std::string name =
            "attend/" + format + "/length:" + std::to_string(length) + "/threads:" + std::to_string(n_threads);
        benchmark::RegisterBenchmark(name.c_str(), attend, format, length, n_threads)
            ->UseManualTime()
            ->Unit(benchmark::kMicrosecond);
      }
    }
  }
  for (const std::string format : kFormats) {
    benchmark::RegisterBenchmark(("append/" + format).c_str(), append, format)
        ->UseManualTime()
        ->Unit(benchmark::kMicrosecond);
    if (format != "fp16") {
      benchmark::RegisterBenchmark(("seal/" + format).c_str(), seal, format)
          ->UseManualTime()
          ->Unit(benchmark::kMicrosecond);
    }
    for (const int32_t n_threads : {1, 2}) {
      benchmark::RegisterBenchmark(("prompt/" + format + "/threads:" + std::to_string(n_threads)).c_str(), prompt,
                                   format, n_threads)
          ->UseManualTime()
          ->Unit(benchmark::kMicrosecond);
    }
  }
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  bench::register_all();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
