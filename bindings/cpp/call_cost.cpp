// Measures the cost of a call through kvq.hpp, including size checks; prints the same line as ../c/call_cost.c.
//
//   c++ -O2 -std=c++20 call_cost.cpp $(pkg-config --cflags --libs kvq) -o call_cost && ./call_cost
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <vector>

#include "kvq.hpp"

namespace {

constexpr int kHeadDim = 8;
constexpr int kCalls = 32;
constexpr int kWarmUp = 200;
constexpr int kBlocks = 2000;

// Median over blocks of the nanoseconds per `call`; `before` runs before each block and is not timed.
template <class Before, class Call>
double cost(Before before, Call call) {
  std::vector<double> blocks;
  for (int block = -kWarmUp; block < kBlocks; ++block) {
    before();
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kCalls; ++i) call();
    const std::chrono::duration<double, std::nano> spent = std::chrono::steady_clock::now() - begin;
    if (block >= 0) blocks.push_back(spent.count() / kCalls);
  }
  std::sort(blocks.begin(), blocks.end());
  return (blocks[kBlocks / 2 - 1] + blocks[kBlocks / 2]) / 2.0;
}

}  // namespace

int main() {
  const kvq::Context context;
  auto options = kvq::initialised<kvq_cache_options>();
  options.n_layers = 1;
  options.q_heads = 1;
  options.kv_heads = 1;
  options.head_dim = kHeadDim;
  const kvq::Cache cache(context, options, kvq::Policy::load(context, "fp16"));
  kvq::Sequence sequence(cache);
  std::array<float, kHeadDim> x{}, out{};
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i + 1) / kHeadDim;

  const double append = cost([&] { sequence.truncate(0); }, [&] { sequence.append(0, 1, x, x); });
  const auto sequences = kvq::pointers(sequence);
  const double attend = cost([] {}, [&] { cache.attend(0, {.sequences = sequences, .q = x, .output = out}); });
  std::printf("append %.0f attend %.0f\n", append, attend);
}
