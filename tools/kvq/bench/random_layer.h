#pragma once

#include "bench/timing.h"
#include "kvq.hpp"
#include "llama/model.h"
#include "options/spec.h"

namespace cli {

struct LayerShape {
  int32_t q_heads = 32;
  int32_t kv_heads = 8;
  int32_t head_dim = 128;  // channels of keys
  int32_t value_dim = 0;   // 0: as many
  bool latent = false;     // values are the first channels of keys

  int32_t values() const { return value_dim != 0 ? value_dim : head_dim; }
  /// "32 query and 8 KV heads of 128".
  std::string text() const {
    const std::string dims =
        value_dim != 0 ? std::to_string(head_dim) + "/" + std::to_string(value_dim) : std::to_string(head_dim);
    return std::to_string(q_heads) + " query and " + std::to_string(kv_heads) + " KV heads of " + dims +
           (latent ? ", values a part of the keys" : "");
  }
  /// Scalars of the keys of a token.
  size_t token_width() const { return static_cast<size_t>(kv_heads) * static_cast<size_t>(head_dim); }
  size_t value_width() const { return static_cast<size_t>(kv_heads) * static_cast<size_t>(values()); }
  /// Bytes of the keys and values of a token in FP16.
  uint64_t fp16_token_bytes() const { return uint64_t{2} * (token_width() + (latent ? 0 : value_width())); }
};

/// A cache of so many such layers, or of as many as the format's codebook is for.
kvq::Cache cache_of_layers(kvq_context* context, const llama::CacheFormat& format, const LayerShape& shape,
                           int32_t n_layers = 1);
std::vector<float> normal_numbers(size_t n, uint64_t seed);
/// The same of standard deviation `size`, in FP16.
std::vector<uint16_t> normal_float16(size_t n, uint64_t seed, double size);
size_t bytes_of(kvq_dtype dtype);

/// `n` normally distributed scalars in the memory of `device`.
DeviceBuffer random_scalars(TimedDevice& device, size_t n, uint64_t seed, kvq_dtype dtype = KVQ_F32);

/// Append `length` tokens of random keys and values, the same ones to each layer of each of `sequences`.
void append_random(TimedDevice& device, std::span<kvq::Sequence> sequences, const LayerShape& shape, int32_t length,
                   int32_t n_layers = 1);

/// Have the newest `queries` tokens of every layer attend, with random queries: what eviction judges by.
void attend_random(TimedDevice& device, kvq::Cache& cache, kvq::Sequence& sequence, const LayerShape& shape,
                   int32_t queries, int32_t n_layers = 1);

/// As load_spec, for sequences of random numbers: they find no scales, which would take time and which pages would wait
/// for. A UsageError if the SPEC asks for such scales.
Spec load_random_spec(kvq_context* context, const SpecParts& parts);

/// The same, but also `commvq-1` and `commvq-2`, with `,head` after them for codes of each head, and
/// `,attention=WAY` for the way of attention of a policy, gain-shape formats with a number of centres, like `gs2-256`,
/// `moqae`, or `moqae-BITS` for so many bits in the mean, and `@scales` behind others: codebooks, centres, routers and
/// scales that were trained on random numbers, of little use but as fast as others.
Spec load_layer_spec(kvq_context* context, const std::string& spec, const LayerShape& shape);

/// A codebook of one layer whose codes are random instead of trained, which takes most of a minute less. What attention
/// takes does not depend on them. \param bits  of a scalar: 1 or 2.
kvq::Codebook random_codebook(kvq_context* context, int32_t bits, const LayerShape& shape);

}  // namespace cli
