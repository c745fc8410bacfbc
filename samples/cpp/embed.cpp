// ../c/embed.c in C++: one attention layer of an engine decodes on a cache compressed to about five bits per scalar.
//
//   c++ -std=c++20 embed.cpp $(pkg-config --cflags --libs kvq) -Wl,-rpath,$(pkg-config --variable=libdir kvq) -o embed
//   ./embed
#include <array>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <span>

#include "kvq.hpp"

namespace {

constexpr int32_t kLayers = 1;
constexpr int32_t kQueryHeads = 8;
constexpr int32_t kKvHeads = 2;
constexpr int32_t kHeadDim = 64;
constexpr int kTokens = 1000;

// Stands in for the engine's projections: numbers in [-1, 1).
void fill(std::span<float> x, uint32_t& state) {
  for (float& number : x) {
    state = state * 1664525U + 1013904223U;
    number = static_cast<float>(state >> 8U) / 8388608.0F - 1.0F;
  }
}

// Hash of the attention outputs' bits, to compare with the same program in another language.
uint32_t checksum(uint32_t sum, std::span<const float> x) {
  for (const float number : x) sum = (sum ^ std::bit_cast<uint32_t>(number)) * 16777619U;
  return sum;
}

void run() {
  const kvq::Context context;
  // Or a YAML policy: formats per layer, FP16 pages.
  const kvq::Policy policy = kvq::Policy::load(context, "int4+hadamard");
  auto options = kvq::initialised<kvq_cache_options>();
  options.n_layers = kLayers;
  options.q_heads = kQueryHeads;
  options.kv_heads = kKvHeads;
  options.head_dim = kHeadDim;
  const kvq::Cache cache(context, options, policy);
  kvq::Sequence sequence(cache);

  uint32_t state = 1;
  uint32_t sum = 2166136261U;
  std::array<float, kQueryHeads * kHeadDim> q{}, out{};
  std::array<float, kKvHeads * kHeadDim> k{}, v{};
  for (int token = 0; token < kTokens; ++token) {
    fill(q, state);  // before RoPE: the library rotates queries and keys
    fill(k, state);
    fill(v, state);
    sequence.append(0, 1, k, v);
    cache.attend(0, {.sequences = kvq::pointers(sequence), .q = q, .output = out});
    sum = checksum(sum, out);
  }

  const kvq_usage usage = sequence.usage();
  std::printf("%d tokens at %.2f bits per scalar: %llu bytes instead of %llu, checksum %08lx\n", kTokens,
              usage.bits_per_scalar, static_cast<unsigned long long>(usage.total_bytes),
              static_cast<unsigned long long>(usage.plain_fp16_bytes), static_cast<unsigned long>(sum));
}

}  // namespace

int main() {
  try {
    run();
  } catch (const kvq::Error& error) {
    std::fprintf(stderr, "%s: %s\n", error.name(), error.what());
    return 1;
  }
  return 0;
}
