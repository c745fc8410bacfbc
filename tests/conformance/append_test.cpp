// Appending through the C API: the same bytes on every instruction set, and no trace of a refused call.
#include "conversation.h"
#include "support/tensor.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>

namespace conformance::append_test {
namespace {

using kvq_test::Cache;
using kvq_test::Context;
using kvq_test::Sequence;
using kvq_test::Snapshot;

constexpr int32_t kTokens = 140;
constexpr int32_t kHeads = 2;
constexpr int32_t kChunks[] = {1, 30, 40,
                               1, 1,  67};  // pages are filled, sealed while decoding, and sealed from a prompt

struct Case {
  int32_t head_dim;
  kvq_rope rope;
  int32_t rotary_dim;
  kvq_dtype dtype;
  bool hadamard;
};

// Normal numbers with constant channels, zeros of both signs, FP16 subnormals and the largest number. Rotated numbers
// stay in range.
kvq_test::Tensor numbers(const Case& c, uint64_t seed, bool rotated) {
  kvq_test::Random random(seed);
  const double limit = c.dtype == KVQ_BF16 ? 65280.0 : 65504.0;
  const double largest = rotated ? limit / 1.5 / (c.hadamard ? std::sqrt(c.head_dim) : 1.0) : limit;
  std::vector<float> values;
  for (int32_t i = 0; i < kTokens * kHeads * c.head_dim; ++i) {
    const int32_t token = i / (kHeads * c.head_dim);
    const int32_t channel = i % c.head_dim;
    double x = random.normal();
    if (channel % 7 == 2) x = 0.375 * channel;
    if (channel % 7 == 3) x = random.integer(0, 1) == 0 ? 0.0 : -0.0;
    if (channel % 7 == 4) x *= 1e-6;
    if (channel % 7 == 5 && token % 3 == 0) x = random.integer(0, 1) == 0 ? largest : -largest;
    if (token % 50 == 49) x = random.integer(0, 1) == 0 ? 0.0 : -0.0;
    values.push_back(static_cast<float>(x));
  }
  return {values, c.dtype};
}

Snapshot snapshot_on(const std::string& isa, const Case& c, const std::string& policy, const kvq_test::Tensor& k,
                     const kvq_test::Tensor& v) {
  const Context context = kvq_test::make_context(isa.c_str());
  kvq_cache_options options = kvq_test::cache_options(kHeads, kHeads, c.head_dim);
  options.rope = c.rope;
  options.rotary_dim = c.rotary_dim;
  const Cache cache = kvq_test::make_cache(context, options, policy);
  Sequence sequence(cache);
  int32_t at = 0;
  for (const int32_t n : kChunks) {
    const auto offset = static_cast<size_t>(at * kHeads * c.head_dim);
    kvq_test::append(sequence, 0, n, k.at(offset), v.at(offset), c.dtype);
    at += n;
  }
  return sequence.save();
}

}  // namespace

TEST_CASE("every instruction set stores the bytes of the one that runs everywhere") {
  const std::vector<std::string> isas = kvq_test::cpu_isa_names();
  for (const int32_t head_dim : {8, 24, 80, 96, 120, 128, 256}) {
    for (const kvq_rope rope : {KVQ_ROPE_HALF, KVQ_ROPE_INTERLEAVED}) {
      for (const int32_t rotary_dim : {0, head_dim / 2 + 2}) {
        for (const kvq_dtype dtype : {KVQ_F32, KVQ_F16, KVQ_BF16}) {
          std::vector<std::string> formats = all_formats();
          if (rope == KVQ_ROPE_HALF && rotary_dim == 0 && dtype == KVQ_F32) {  // they encode FP16 numbers in any case
            formats.insert(formats.end(), gain_shape_formats().begin(), gain_shape_formats().end());
          }
          for (const std::string& format : formats) {
            const Case c{head_dim, rope, rotary_dim, dtype, PageFormat::parse(format).hadamard};
            CAPTURE(head_dim);
            CAPTURE(static_cast<int>(rope));
            CAPTURE(rotary_dim);
            CAPTURE(static_cast<int>(dtype));
            CAPTURE(format);
            const auto k = numbers(c, 1, true);
            const auto v = numbers(c, 2, c.hadamard);
            const Snapshot baseline = snapshot_on(isas.back(), c, format, k, v);
            for (const std::string& isa : isas) {
              CAPTURE(isa);
              CHECK((snapshot_on(isa, c, format, k, v) == baseline));
            }
          }
        }
      }
    }
  }
}

// Tokens are checked while they are stored: stored parts of refused tokens must not reach attention, which multiplies
// unused slots by zero.
TEST_CASE("attention does not see what a refused append left in the open page") {
  const Shape shape{.q_heads = 2, .kv_heads = 2, .head_dim = 24, .n_layers = 1};
  const Text text(shape, 90, 1);
  const std::vector<float> q = queries(shape, 1);
  for (const std::string& isa : kvq_test::cpu_isa_names()) {
    CAPTURE(isa);
    const Context context = kvq_test::make_context(isa.c_str());
    const Cache cache = kvq_test::make_cache(context, shape.options(), "int4");
    Sequence sequence(cache);
    text.append(sequence, 0, 5);
    const std::vector<float> before = attend_last(shape, cache, {sequence}, 1, q);
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      for (const int32_t n : {1, 20, 80}) {
        std::vector<float> k(static_cast<size_t>(n) * shape.token_scalars(), bad);
        CHECK_THROWS_AS(kvq_test::append(sequence, 0, n, k.data(), k.data()), kvq_test::Error);
        CHECK(attend_last(shape, cache, {sequence}, 1, q) == before);
      }
    }
    text.append(sequence, 5, 90);
    Sequence undisturbed(cache);
    text.append(undisturbed.get(), 0, 90);
    CHECK(sequence.save() == undisturbed.save());
  }
}

}  // namespace conformance::append_test
