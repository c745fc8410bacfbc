#include "bench/random_layer.h"

#include <algorithm>
#include <bit>
#include <random>
#include <vector>

namespace cli {
namespace {

constexpr int32_t kAppendChunk = 1024;
constexpr uint64_t kLayerKeySeed = 1;
constexpr uint64_t kLayerValueSeed = 2;
constexpr uint64_t kLayerQuerySeed = 2000;

// Random numbers are as random when they are cut off instead of rounded, and when the smallest become zero.
uint16_t cut_to_float16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7FFFFFFFU;
  const uint32_t half = magnitude < 0x38800000U ? 0 : (magnitude - 0x38000000U) >> 13U;
  return static_cast<uint16_t>((bits >> 16U & 0x8000U) | half);
}

uint16_t cut_to_bfloat16(float value) { return static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16U); }

}  // namespace

std::vector<float> normal_numbers(size_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> numbers(n);
  for (float& number : numbers) number = normal(random);
  return numbers;
}

std::vector<uint16_t> normal_halves(size_t n, uint64_t seed, double size) {
  std::vector<uint16_t> halves;
  halves.reserve(n);
  for (const float number : normal_numbers(n, seed))
    halves.push_back(cut_to_float16(static_cast<float>(size) * number));
  return halves;
}

kvq::Cache cache_of_layers(kvq_context* context, const llama::CacheFormat& format, const LayerShape& shape,
                           int32_t n_layers) {
  auto options = kvq::initialised<kvq_cache_options>();
  options.n_layers = n_layers;
  if (format.codebook != nullptr) {
    auto codebook = kvq::initialised<kvq_codebook_info>();
    kvq::checked(kvq_codebook_describe, format.codebook, &codebook);
    options.n_layers = codebook.n_layers;
  }
  options.q_heads = shape.q_heads;
  options.kv_heads = shape.kv_heads;
  options.head_dim = shape.head_dim;
  return llama::make_cache(context, options, format);
}

size_t bytes_of(kvq_dtype dtype) { return dtype == KVQ_F32 ? sizeof(float) : sizeof(uint16_t); }

DeviceBuffer random_scalars(TimedDevice& device, size_t n, uint64_t seed, kvq_dtype dtype) {
  const std::vector<float> numbers = normal_numbers(n, seed);
  if (dtype == KVQ_F32) return device.upload(std::as_bytes(std::span(numbers)));
  std::vector<uint16_t> halves(n);
  std::ranges::transform(numbers, halves.begin(), dtype == KVQ_F16 ? cut_to_float16 : cut_to_bfloat16);
  return device.upload(std::as_bytes(std::span(halves)));
}

void append_random(TimedDevice& device, std::span<kvq::Sequence> sequences, const LayerShape& shape, int32_t length,
                   int32_t n_layers) {
  if (length == 0) return;
  const size_t scalars = static_cast<size_t>(std::min(kAppendChunk, length)) * shape.token_width();
  const DeviceBuffer keys = random_scalars(device, scalars, kLayerKeySeed);
  const DeviceBuffer values = random_scalars(device, scalars, kLayerValueSeed);
  for (kvq::Sequence& sequence : sequences) {
    for (int32_t begin = 0; begin < length; begin += kAppendChunk) {
      const int32_t n = std::min(kAppendChunk, length - begin);
      for (int32_t layer = 0; layer < n_layers; ++layer) sequence.append(layer, n, keys.get(), values.get(), KVQ_F32);
    }
  }
}

void attend_random(TimedDevice& device, kvq::Cache& cache, kvq::Sequence& sequence, const LayerShape& shape,
                   int32_t queries, int32_t n_layers) {
  const size_t scalars =
      static_cast<size_t>(queries) * static_cast<size_t>(shape.q_heads) * static_cast<size_t>(shape.head_dim);
  const DeviceBuffer q = random_scalars(device, scalars, kLayerQuerySeed);
  const DeviceBuffer out = device.upload(std::vector<std::byte>(scalars * sizeof(float)));
  const kvq_sequence* const only = sequence;
  auto batch = kvq::initialised<kvq_attend_batch>();
  batch.n_sequences = 1;
  batch.sequences = &only;
  batch.query_counts = &queries;
  batch.q = q.get();
  batch.output = out.get();
  for (int32_t layer = 0; layer < n_layers; ++layer) cache.attend(layer, batch);
}

}  // namespace cli
