// Caches with trained centres: matching of centres to models, and pages rebuilt after eviction.
#include "conversation.h"
#include "stored_pages.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

namespace conformance::centred_storage_test {
namespace {

using kvq_test::Cache;
using kvq_test::CentreCounts;
using kvq_test::Context;
using kvq_test::Decoded;
using kvq_test::Sequence;
using kvq_test::Snapshot;

/// The reason why a cache refuses a snapshot; empty if it loads.
std::string refusal(kvq_cache* cache, const Snapshot& bytes, kvq_status expected) {
  auto error = kvq_test::initialised<kvq_error>();
  kvq_sequence* sequence = nullptr;
  const kvq_status status = kvq_sequence_load(cache, bytes.data(), bytes.size(), &sequence, &error);
  CHECK(status == expected);
  CHECK((sequence != nullptr) == (status == KVQ_OK));
  kvq_sequence_destroy(sequence);
  return status == KVQ_OK ? "" : error.message;
}

}  // namespace

TEST_CASE("a snapshot around centres is taken with the same centres, and with no others") {
  const Shape shape;
  const Context context = kvq_test::make_context();
  const auto make = [&](const std::string& policy, const CentreCounts& counts) {
    return kvq_test::make_cache(context, shape.options(), policy, counts);
  };
  const std::string policy = "gs2+centres/gt1+centres";
  const Cache cache = make(policy, {});
  Sequence sequence(cache);
  Text(shape, 150, 1).append(sequence, 0, 150);
  const Snapshot snapshot = sequence.save();
  CHECK(refusal(make(policy, {}).get(), snapshot, KVQ_OK).empty());

  for (const CentreCounts& other : {CentreCounts{.seed = 32}, CentreCounts{.keys = 4}, CentreCounts{.values = 2}}) {
    CAPTURE(other.name());
    const Cache elsewhere = make(policy, other);
    const std::string message = refusal(elsewhere, snapshot, KVQ_E_MISMATCH);
    CHECK_MESSAGE(message.find("centres") != std::string::npos, message);
    CHECK_MESSAGE(message.find("this cache") != std::string::npos, message);
    // And vice versa.
    Sequence others(elsewhere);
    Text(shape, 150, 1).append(others, 0, 150);
    CHECK(refusal(cache, others.save(), KVQ_E_MISMATCH) != message);
  }
  CHECK(refusal(make("gs2/gt1", {}).get(), snapshot, KVQ_E_MISMATCH).find("centres") != std::string::npos);

  for (size_t i = 64; i < snapshot.size(); i += 101) {
    Snapshot damaged = snapshot;
    damaged[i] ^= std::byte{1};
    CHECK(!refusal(cache, damaged, KVQ_E_FORMAT).empty());
  }
}

TEST_CASE("caches refuse centres that were trained for something else, and say both") {
  const Shape shape;
  const Context context = kvq_test::make_context();
  const auto message_of = [&](const kvq_cache_options& trained_for, const std::string& policy,
                              const CentreCounts& counts, kvq_status expected) -> std::string {
    kvq_cache_options options = shape.options();
    options.model_id = 7;
    const auto centres = kvq_test::Centres::load(context, kvq_test::test_centres(trained_for, counts));
    options.centres = centres;
    try {
      const Cache cache(context, options, kvq_test::Policy::load(context, policy));
    } catch (const kvq_test::Error& error) {
      CHECK(error.status() == expected);
      return error.what();
    }
    CHECK(expected == KVQ_OK);
    return "";
  };
  const auto check = [&](const kvq_cache_options& trained_for, const std::string& mention, const std::string& both) {
    const std::string message = message_of(trained_for, "gs2+centres", {}, KVQ_E_MISMATCH);
    CHECK_MESSAGE(message.find("centres was trained for " + mention) != std::string::npos, message);
    CHECK_MESSAGE(message.find("is " + both) != std::string::npos, message);
  };
  kvq_cache_options other = shape.options();
  CHECK(message_of(other, "gs2+centres", {}, KVQ_OK).empty());  // for any model
  other.n_layers = 3, check(other, "n_layers 3", "2");
  other = shape.options();
  other.kv_heads = 1, check(other, "kv_heads 1", "2");
  other = shape.options();
  other.head_dim = 128, check(other, "head_dim 128", "64");
  other = shape.options();
  other.model_id = 8, check(other, "model_id 8", "7");
  other.model_id = 7;
  CHECK(message_of(other, "gs2+centres", {}, KVQ_OK).empty());
  for (const kvq_rope rope : {KVQ_ROPE_NONE, KVQ_ROPE_INTERLEAVED}) {
    other = shape.options();
    other.rope = rope, check(other, "rope " + std::to_string(rope), "1");
    // Only keys are rotated by RoPE.
    CHECK(message_of(other, "gs2/gs2+centres", {}, KVQ_OK).empty());
  }
  other = shape.options();
  const auto lacks = [&](const std::string& policy, const CentreCounts& counts, const std::string& mention) {
    const std::string message = message_of(other, policy, counts, KVQ_E_ARGUMENT);
    CHECK_MESSAGE(message.find(mention) != std::string::npos, message);
  };
  lacks("gs2+centres", {.values = 0}, "options->centres has none for values");
  lacks("gs2+centres", {.keys = 0}, "options->centres has none for keys");
  lacks("version: 1\nkeys: gs2\nvalues: gs2\nlayers: [{range: [1, 1], values: gt3+centres}]\n", {.values = 0},
        "values");
  CHECK(message_of(other, "gs2+centres/int4", {.values = 0}, KVQ_OK).empty());
  CHECK(message_of(other, "int4/gs2+centres", {.keys = 0}, KVQ_OK).empty());
}

// Without RoPE, decoded tokens can be appended again as they are. Pages of tokens with gaps are then encodings of the
// survivors' keys and values.
TEST_CASE("what every method of eviction leaves around centres is what encoding the survivors gives") {
  constexpr int32_t kTokens = 300;
  constexpr int32_t kBudget = 105;
  const Shape shape{.head_dim = 32};
  const std::string storage = "version: 1\nkeys: gs3+centres\nvalues: gt2+centres\nsink: 1\n";
  for (const char* method : {"streaming", "h2o", "snapkv", "pyramid", "adasnap", "adapyramid"}) {
    for (const std::string& isa : kvq_test::cpu_isa_names()) {
      CAPTURE(method);
      CAPTURE(isa);
      const Context context = kvq_test::make_context(isa.c_str());
      kvq_cache_options options = shape.options();
      options.rope = KVQ_ROPE_NONE;
      const Cache cache = kvq_test::make_cache(
          context, options, storage + "eviction: {method: " + method + ", budget: " + std::to_string(kBudget) + "}\n");
      Sequence sequence(cache);
      const Text text(shape, kTokens, 3);
      for (int32_t begin = 0; begin < kTokens; begin += 50) {
        text.append(sequence, begin, begin + 50);
        for (int32_t layer = 0; layer < shape.n_layers; ++layer) {
          attend_last(shape, cache, {sequence}, 50, queries(shape, 50), layer);
        }
      }
      std::vector<Decoded> before;
      for (int32_t list = 0; list < shape.n_layers * shape.kv_heads; ++list) {
        before.push_back(
            kvq_test::decode(sequence, list / shape.kv_heads, list % shape.kv_heads, 0, kTokens, shape.head_dim));
      }
      std::vector<int32_t> kept(before.size());
      auto compress = kvq_test::initialised<kvq_compress_options>();
      compress.kept = kept.data();
      sequence.compress(compress);

      int32_t new_pages = 0;
      for (size_t list = 0; list < before.size(); ++list) {
        CAPTURE(list);
        const auto layer = static_cast<int32_t>(list) / shape.kv_heads;
        const auto head = static_cast<int32_t>(list) % shape.kv_heads;
        const Decoded after = kvq_test::decode(sequence, layer, head, 0, kept[list], shape.head_dim);
        // The unchanged survivors, in the same layer and head of a separate cache.
        const Cache again = kvq_test::make_cache(context, options, storage + "recent: 1\n");
        Sequence survivors(again);
        const auto width = static_cast<size_t>(shape.head_dim);
        std::vector<float> k(after.positions.size() * shape.token_scalars(), 0.0F);
        std::vector<float> v = k;
        for (size_t i = 0; i < after.positions.size(); ++i) {
          const size_t from = static_cast<size_t>(after.positions[i]) * width;
          const size_t to = i * shape.token_scalars() + static_cast<size_t>(head) * width;
          std::copy_n(before[list].k.begin() + static_cast<ptrdiff_t>(from), width,
                      k.begin() + static_cast<ptrdiff_t>(to));
          std::copy_n(before[list].v.begin() + static_cast<ptrdiff_t>(from), width,
                      v.begin() + static_cast<ptrdiff_t>(to));
        }
        kvq_test::append(survivors, layer, kept[list], k.data(), v.data(), KVQ_F32, after.positions);
        const Decoded expected = kvq_test::decode(survivors, layer, head, 0, kept[list], shape.head_dim);
        const size_t page = kPageSlots * width;
        for (size_t at = 0; at + page < after.k.size(); at += page) {
          const auto part = [&](const std::vector<float>& rows) {
            return std::vector<float>(rows.begin() + static_cast<ptrdiff_t>(at),
                                      rows.begin() + static_cast<ptrdiff_t>(at + page));
          };
          const auto first = static_cast<size_t>(after.positions[at / width]) * width;
          const std::vector<float> old(before[list].k.begin() + static_cast<ptrdiff_t>(first),
                                       before[list].k.begin() + static_cast<ptrdiff_t>(first + page));
          if (part(after.k) == old) continue;  // the page lost no token
          ++new_pages;
          CHECK(part(after.k) == part(expected.k));
          CHECK(part(after.v) == part(expected.v));
        }
      }
      CHECK(new_pages > 3);
    }
  }
}

}  // namespace conformance::centred_storage_test
