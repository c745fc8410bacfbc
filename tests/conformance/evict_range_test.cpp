// Eviction of tokens and by queries whose numbers do not fit FP16.
#include "support/handles.h"
#include "support/random.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

namespace conformance::evict_range_test {
namespace {

using kvq_test::Decoded;

constexpr int32_t kQueryHeads = 4;
constexpr int32_t kKvHeads = 2;
constexpr int32_t kDim = 128;
constexpr int32_t kTokens = 200;
constexpr float kMostFloat16 = 65504.0F;

/// The CPU, and the GPU where there is one.
std::vector<const char*> devices() {
  std::vector<const char*> names = {nullptr};
  if (kvq_test::devices().size() > 1) names.push_back(kvq_test::kCuda);
  return names;
}

std::vector<float> attend(const kvq_test::Cache& cache, const kvq_test::Sequence& sequence,
                          const std::vector<float>& q) {
  std::vector<float> out(q.size());
  const auto count = static_cast<int32_t>(q.size() / (kQueryHeads * kDim));
  const kvq_sequence* sequences[] = {sequence};
  auto batch = kvq_test::initialised<kvq_attend_batch>();
  batch.n_sequences = 1;
  batch.sequences = sequences;
  batch.query_counts = &count;
  batch.q = q.data();
  batch.output = out.data();
  kvq_test::attend(cache, 0, batch);
  return out;
}

/// Positions that a head keeps under `policy` after queries of the last tokens, all multiplied by `factor`, which the
/// softmax scale makes up for.
std::vector<std::vector<int32_t>> kept_positions(const char* device, const std::string& policy, float factor) {
  const kvq_test::Context context = kvq_test::make_context(device);
  auto options = kvq_test::cache_options(kQueryHeads, kKvHeads, kDim);
  options.scale = 1.0F / (std::sqrt(float{kDim}) * factor);
  const kvq_test::Cache cache = kvq_test::make_cache(context, options, policy);
  kvq_test::Sequence sequence(cache);
  const std::vector<float> k = kvq_test::normal_tensor(size_t{kTokens} * kKvHeads * kDim, 1);
  std::vector<float> q = kvq_test::normal_tensor(size_t{40} * kQueryHeads * kDim, 2);
  for (size_t i = 0; i < q.size(); ++i) q[i] *= factor;
  kvq_test::append(sequence, 0, kTokens, k.data(), k.data());
  attend(cache, sequence, q);
  sequence.compress();
  std::vector<std::vector<int32_t>> kept;
  for (int32_t head = 0; head < kKvHeads; ++head) {
    kept.push_back(kvq_test::decode(sequence, 0, head, 0, sequence.slots(0, head), kDim).positions);
  }
  return kept;
}

}  // namespace

// A vector along an axis of the Hadamard rotation has one large channel after it, which a code of one bit spreads over
// all of them: decoded, it is up to √head_dim times as long.
TEST_CASE("tokens that are decoded beyond FP16 stay finite when they move to other pages") {
  for (const char* const format : {"gs1+nocentre", "gs1", "gt1", "gs2"}) {
    for (const char* device : devices()) {
      CAPTURE(std::string(format));
      CAPTURE(std::string(device != nullptr ? device : "cpu"));
      const kvq_test::Context context = kvq_test::make_context(device);
      auto options = kvq_test::cache_options(kQueryHeads, kKvHeads, kDim);
      options.rope = KVQ_ROPE_NONE;
      const kvq_test::Cache cache = kvq_test::make_cache(
          context, options,
          std::string("version: 1\nkeys: ") + format + "\nvalues: gs1\neviction: {method: streaming, budget: 100}\n");
      kvq_test::Sequence sequence(cache);
      const std::vector<float> same(size_t{kTokens} * kKvHeads * kDim, 600.0F);
      kvq_test::append(sequence, 0, kTokens, same.data(), same.data());
      const Decoded before = kvq_test::decode(sequence, 0, 0, 0, kTokens, kDim);
      const float largest = *std::max_element(before.v.begin(), before.v.end());
      CHECK(largest > kMostFloat16);  // or this test has no object
      CHECK(std::isfinite(largest));
      sequence.compress();
      const Decoded after = kvq_test::decode(sequence, 0, 0, 0, 100, kDim);
      const auto is_finite = [](float x) { return std::isfinite(x); };
      CHECK(std::all_of(after.k.begin(), after.k.end(), is_finite));
      CHECK(std::all_of(after.v.begin(), after.v.end(), is_finite));
      const std::vector<float> out = attend(cache, sequence, std::vector<float>(kQueryHeads * kDim, 1e-3F));
      CHECK(std::all_of(out.begin(), out.end(), is_finite));
      const kvq_test::Snapshot saved = sequence.save();
      CHECK(kvq_test::Sequence::load(cache, saved).save() == saved);
    }
  }
}

// Powers of two change no digit of a query.
TEST_CASE("queries of any magnitude keep the same tokens as others with the same logits") {
  for (const char* const method : {"snapkv", "adasnap", "h2o"}) {
    const std::string policy =
        std::string("version: 1\nkeys: fp16\nvalues: fp16\neviction: {method: ") + method + ", budget: 64}\n";
    for (const char* device : devices()) {
      CAPTURE(policy);
      CAPTURE(std::string(device != nullptr ? device : "cpu"));
      const std::vector<std::vector<int32_t>> expected = kept_positions(device, policy, 1.0F);
      for (const int exponent : {-40, -20, 14, 20, 60}) {
        CAPTURE(exponent);
        CHECK(kept_positions(device, policy, std::ldexp(1.0F, exponent)) == expected);
      }
    }
  }
}

}  // namespace conformance::evict_range_test
