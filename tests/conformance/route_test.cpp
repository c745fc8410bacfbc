// Pages whose formats a router chooses, against the router's definition in float64.
#include "conversation.h"
#include "support/reference.h"

#include <doctest/doctest.h>

#include <map>
#include <string>
#include <vector>

namespace conformance::route_test {
namespace {

using kvq_test::Decoded;
using kvq_test::TestRouter;

constexpr int32_t kLayers = 5;
constexpr int32_t kKvHeads = 3;
constexpr int32_t kDim = 32;
constexpr int32_t kTokens = 10 * kPageSlots + 7;
constexpr int32_t kPages = 10;  // that are sealed, but for the first

kvq_cache_options options_with(kvq_rope rope) {
  kvq_cache_options options = kvq_test::cache_options(kKvHeads, kKvHeads, kDim, kLayers);
  options.rope = rope;
  return options;
}

/// Keys and values of all layers; keys of a page are similar, so that the page has a preference.
struct Tokens {
  std::vector<std::vector<float>> k, v;  // [layers][tokens, kv_heads, head_dim]

  Tokens() {
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      const auto seed = static_cast<uint64_t>(10 + 3 * layer);
      const size_t width = kKvHeads * kDim;
      k.push_back(kvq_test::normal_tensor(kTokens * width, seed));
      v.push_back(kvq_test::normal_tensor(kTokens * width, seed + 1));
      const std::vector<float> centre = kvq_test::normal_tensor((kPages + 1) * width, seed + 2);
      for (size_t i = 0; i < k.back().size(); ++i) {
        k.back()[i] += 1.5F * centre[i / (kPageSlots * width) * width + i % width];
      }
    }
  }
  std::vector<double> key(int32_t layer, int32_t token, int32_t head) const {
    const auto first = k[static_cast<size_t>(layer)].begin() + (token * kKvHeads + head) * kDim;
    return {first, first + kDim};
  }
};

/// Number of tokens of a page that prefer each expert, in one head or in all (head −1).
std::vector<int32_t> count_votes(const TestRouter& router, const Tokens& tokens, int32_t layer, int32_t page,
                                 int32_t head) {
  std::vector<int32_t> votes(router.experts.size(), 0);
  for (int32_t h = 0; h < kKvHeads; ++h) {
    if (head >= 0 && h != head) continue;
    for (int32_t token = page * kPageSlots; token < (page + 1) * kPageSlots; ++token) {
      ++votes[router.preferred(layer, tokens.key(layer, token, h))];
    }
  }
  return votes;
}

class Filled {
 public:
  Filled(const Tokens& tokens, kvq_cache_options options, const std::string& policy, const TestRouter* router,
         const char* device = nullptr)
      : context_(kvq_test::make_context(device)) {
    kvq_test::Router loaded = nullptr;
    if (router != nullptr) loaded = kvq_test::Router::load(context_, router->file());
    options.router = loaded;
    cache_ = kvq_test::make_cache(context_, options, policy);
    sequence_ = kvq_test::Sequence(cache_);
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      const auto l = static_cast<size_t>(layer);
      kvq_test::append(sequence_, layer, kTokens, tokens.k[l].data(), tokens.v[l].data());
    }
  }
  Decoded page(int32_t layer, int32_t head, int32_t page) const {
    return kvq_test::decode(sequence_, layer, head, page * kPageSlots, kPageSlots, kDim);
  }
  const kvq_test::Cache& cache() const { return cache_; }
  const kvq_test::Sequence& sequence() const { return sequence_; }
  kvq_test::Sequence& sequence() { return sequence_; }

 private:
  kvq_test::Context context_;
  kvq_test::Cache cache_ = nullptr;
  kvq_test::Sequence sequence_ = nullptr;
};

bool same(const Decoded& a, const Decoded& b) { return a.k == b.k && a.v == b.v; }

}  // namespace

TEST_CASE("pages are sealed in the format that most of their tokens prefer, layers follow the first of their group") {
  for (const char* device : kvq_test::devices()) {
    CAPTURE(device);
    const Tokens tokens;
    for (const kvq_rope rope : {KVQ_ROPE_NONE, KVQ_ROPE_HALF, KVQ_ROPE_INTERLEAVED}) {
      const kvq_cache_options options = options_with(rope);
      const TestRouter router(options, {"int8", "int4/int3", "int2+hadamard"});
      std::vector<Filled> uniform;
      for (const char* formats : {"keys: int8\nvalues: int8\n", "keys: int4\nvalues: int3\n",
                                  "keys: int2+hadamard\nvalues: int2+hadamard\n"}) {
        uniform.emplace_back(tokens, options, std::string("version: 1\nsink: 1\n") + formats, nullptr, device);
      }
      for (const bool by_head : {false, true}) {
        const std::string policy = "version: 1\nsink: 1\nrouter: {experts: [int8, int4/int3, int2+hadamard], votes: " +
                                   std::string(by_head ? "head" : "layer") + "}\n";
        CAPTURE(policy);
        CAPTURE(rope);
        Filled routed(tokens, options, policy, &router, device);
        std::map<size_t, int> chosen;
        for (int32_t layer = 0; layer < kLayers; ++layer) {
          for (int32_t head = 0; head < kKvHeads; ++head) {
            for (int32_t page = 1; page < kPages; ++page) {
              const std::vector<int32_t> votes = count_votes(router, tokens, layer / 3 * 3, page, by_head ? head : -1);
              const auto winner = static_cast<size_t>(std::max_element(votes.begin(), votes.end()) - votes.begin());
              ++chosen[winner];
              CAPTURE(layer);
              CAPTURE(page);
              for (size_t expert = 0; expert < uniform.size(); ++expert) {
                const bool equal = same(routed.page(layer, head, page), uniform[expert].page(layer, head, page));
                CHECK(equal == (expert == winner));
              }
            }
          }
        }
        CHECK(chosen.size() == router.experts.size());  // otherwise the test proves little
      }
    }
  }
}

TEST_CASE("where experts have as many votes, the one with more bits wins") {
  for (const char* device : kvq_test::devices()) {
    CAPTURE(device);
    const Tokens tokens;
    const kvq_cache_options options = options_with(KVQ_ROPE_HALF);
    TestRouter router(options, {"int8", "int2"});
    for (TestRouter::Network& network : router.networks) std::fill(network.w3.begin(), network.w3.end(), 0.0F);
    Filled routed(tokens, options, "version: 1\nrouter: {experts: [int8, int2]}\n", &router, device);
    const Filled uniform(tokens, options, "int8", nullptr, device);
    for (int32_t page = 0; page < kPages; ++page) CHECK(same(routed.page(0, 0, page), uniform.page(0, 0, page)));
  }
}

TEST_CASE("pages of mixed formats are attended to as float64 does over what they hold") {
  for (const char* device : kvq_test::devices()) {
    CAPTURE(device);
    const Tokens tokens;
    const kvq_cache_options options = options_with(KVQ_ROPE_HALF);
    const kvq_test::Rotation rotation = kvq_test::Rotation::from(options);
    for (const char* experts : {"[fp16, int4, int2]", "[int8/int4, int4+hadamard, int3, int2+hadamard]"}) {
      const std::string policy = std::string("version: 1\nsink: 1\nrouter: {experts: ") + experts + "}\n";
      const TestRouter router(options, experts_of(policy));
      Filled routed(tokens, options, policy, &router, device);
      const std::vector<float> q = kvq_test::normal_tensor(kKvHeads * kDim, 77);
      for (int32_t layer = 0; layer < kLayers; ++layer) {
        std::vector<float> out(q.size());
        const kvq_sequence* sequences[] = {routed.sequence()};
        auto batch = kvq_test::initialised<kvq_attend_batch>();
        batch.n_sequences = 1;
        batch.sequences = sequences;
        batch.q = q.data();
        batch.output = out.data();
        kvq_test::attend(routed.cache(), layer, batch);
        for (int32_t head = 0; head < kKvHeads; ++head) {
          const Decoded all = kvq_test::decode(routed.sequence(), layer, head, 0, kTokens, kDim);
          std::vector<double> query(q.begin() + head * kDim, q.begin() + (head + 1) * kDim);
          rotation.apply(query, kTokens - 1);
          const std::vector<double> expected = kvq_test::attention<float>(
              {.scale = 1.0 / std::sqrt(double{kDim})}, query, kTokens - 1, all.k, all.v, all.positions);
          for (int32_t c = 0; c < kDim; ++c) {
            CHECK(double{out[static_cast<size_t>(head * kDim + c)]} ==
                  doctest::Approx(expected[static_cast<size_t>(c)]).epsilon(0.0).scale(1.0).epsilon(9e-3));
          }
        }
      }
    }
  }
}

TEST_CASE("a layer that follows another's router is appended to after it") {
  for (const char* device : kvq_test::devices()) {
    CAPTURE(device);
    const Tokens tokens;
    const kvq_cache_options options = options_with(KVQ_ROPE_HALF);
    const TestRouter router(options, {"int8", "int2"});
    Filled filled(tokens, options, "version: 1\nrouter: {experts: [int8, int2]}\n", &router, device);
    const kvq_test::Snapshot before = filled.sequence().save();
    const auto append = [&](int32_t layer) {
      kvq_test::append(filled.sequence(), layer, 3, tokens.k[0].data(), tokens.v[0].data());
    };
    for (const int32_t layer : {1, 2, 4}) {
      CHECK_THROWS_WITH_AS(append(layer), doctest::Contains("append to that first"), kvq_test::Error);
    }
    CHECK(filled.sequence().save() == before);
    for (const int32_t layer : {3, 4, 0, 2, 1}) append(layer);
    CHECK(filled.sequence().length(1) == kTokens + 3);
  }
}

TEST_CASE("a router costs what its pages take, whichever formats follow each other") {
  for (const char* device : kvq_test::devices()) {
    CAPTURE(device);
    const Tokens tokens;
    const kvq_cache_options options = options_with(KVQ_ROPE_HALF);
    const TestRouter router(options, {"int8", "int4", "int2"});
    Filled routed(tokens, options, "version: 1\nrouter: {experts: [int8, int4, int2], votes: head}\n", &router, device);
    const Filled most(tokens, options, "int8", nullptr, device);
    const Filled least(tokens, options, "int2", nullptr, device);
    const auto bytes = [](const Filled& filled) { return filled.sequence().usage().sealed_bytes; };
    CHECK(bytes(routed) < bytes(most));
    CHECK(bytes(routed) > bytes(least));
    // A prompt fills its runs exactly, without gaps between pages.
    const uint64_t page8 = bytes(most) / (kLayers * kKvHeads * kPages);
    const uint64_t page2 = bytes(least) / (kLayers * kKvHeads * kPages);
    const Filled middle(tokens, options, "int4", nullptr, device);
    const uint64_t page4 = bytes(middle) / (kLayers * kKvHeads * kPages);
    uint64_t expected = 0;
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      for (int32_t head = 0; head < kKvHeads; ++head) {
        for (int32_t page = 0; page < kPages; ++page) {
          const Decoded stored = routed.page(layer, head, page);
          if (same(stored, most.page(layer, head, page))) expected += page8;
          if (same(stored, middle.page(layer, head, page))) expected += page4;
          if (same(stored, least.page(layer, head, page))) expected += page2;
        }
      }
    }
    CHECK(bytes(routed) == expected);
    CHECK(routed.cache().usage().sealed_bytes == expected);
  }
}

TEST_CASE("what is left after eviction is routed head by head") {
  const Tokens tokens;
  const kvq_cache_options options = options_with(KVQ_ROPE_HALF);
  const TestRouter router(options, {"int8", "int2"});
  const std::string policy =
      "version: 1\nrouter: {experts: [int8, int2], votes: head}\neviction: {method: streaming, budget: 200}\n";
  Filled routed(tokens, options, policy, &router);
  routed.sequence().compress();
  // 200 tokens: the first 4 and the newest 196.
  // A token's values have at most 4 levels in INT2, and still do when INT8 stores them afterwards.
  const auto levels = [](const Decoded& stored, int32_t slot) {
    std::vector<float> values(stored.v.begin() + slot * kDim, stored.v.begin() + (slot + 1) * kDim);
    std::sort(values.begin(), values.end());
    return std::unique(values.begin(), values.end()) - values.begin();
  };
  std::map<bool, int> checked;
  for (int32_t head = 0; head < kKvHeads; ++head) {
    for (int32_t page = 0; page < 200 / kPageSlots; ++page) {
      std::vector<int32_t> votes(2, 0);
      const Decoded stored = routed.page(0, head, page);
      for (const int32_t position : stored.positions) {
        ++votes[router.preferred(0, tokens.key(0, position, head))];
      }
      // Keys have been rounded since, so only clear majorities count.
      if (std::abs(votes[0] - votes[1]) < 8) continue;
      for (int32_t slot = 0; slot < kPageSlots; ++slot) {
        const int32_t before = stored.positions[static_cast<size_t>(slot)] / kPageSlots;
        const std::vector<int32_t> prompt_votes = count_votes(router, tokens, 0, before, head);
        if (before < kPages && prompt_votes[0] < prompt_votes[1]) continue;  // it was INT2 in the prompt
        const bool coarse = votes[0] < votes[1];
        ++checked[coarse];
        CHECK((levels(stored, slot) <= 4) == coarse);
      }
    }
  }
  CHECK(checked[true] > 0);
  CHECK(checked[false] > 0);
  const kvq_test::Snapshot saved = routed.sequence().save();
  kvq_test::Sequence loaded = kvq_test::Sequence::load(routed.cache(), saved);
  CHECK(loaded.save() == saved);
}

namespace {

struct Refusal {
  kvq_status status;
  const char* mention;
};

void check_refused(const Refusal& expected, kvq_context* context, const kvq_cache_options& options,
                   const std::string& text) {
  CAPTURE(text);
  CAPTURE(expected.mention);
  const kvq_test::Policy policy = kvq_test::Policy::load(context, text);
  auto error = kvq_test::initialised<kvq_error>();
  kvq_cache* cache = nullptr;
  CHECK(kvq_cache_create(context, &options, policy, &cache, &error) == expected.status);
  CHECK(cache == nullptr);
  CAPTURE(error.message);
  CHECK(std::string(error.message).find(expected.mention) != std::string::npos);
}

}  // namespace

TEST_CASE("caches refuse routers that were trained for something else") {
  const kvq_test::Context context = kvq_test::make_context();
  const kvq_cache_options shape = options_with(KVQ_ROPE_HALF);
  const std::string policy = "version: 1\nrouter: {experts: [int8, int2]}\n";
  const auto check = [&](const Refusal& expected, const TestRouter& router, const std::string& text) {
    const kvq_test::Router loaded = kvq_test::Router::load(context, router.file());
    kvq_cache_options options = shape;
    options.router = loaded;
    check_refused(expected, context, options, text);
  };
  check_refused({KVQ_E_ARGUMENT, "options->router is NULL"}, context, shape, policy);
  kvq_cache_options other = shape;
  other.n_layers = 6;
  check({KVQ_E_MISMATCH, "n_layers 6"}, TestRouter(other, {"int8", "int2"}), policy);
  other = shape;
  other.kv_heads = other.q_heads = 1;
  check({KVQ_E_MISMATCH, "kv_heads 1"}, TestRouter(other, {"int8", "int2"}), policy);
  other = shape;
  other.head_dim = 64;
  check({KVQ_E_MISMATCH, "head_dim 64"}, TestRouter(other, {"int8", "int2"}), policy);
  other = shape;
  other.rope = KVQ_ROPE_INTERLEAVED;
  check({KVQ_E_MISMATCH, "rope 2"}, TestRouter(other, {"int8", "int2"}), policy);
  check({KVQ_E_MISMATCH, "int8, int4"}, TestRouter(shape, {"int8", "int4"}), policy);
  check({KVQ_E_MISMATCH, "int8, int4, int2"}, TestRouter(shape, {"int8", "int4", "int2"}), policy);
  check({KVQ_E_ARGUMENT, "int8 after one with fewer bits"}, TestRouter(shape, {"int2", "int8"}),
        "version: 1\nrouter: {experts: [int2, int8]}\n");
  check({KVQ_E_ARGUMENT, "options->codebook is NULL"}, TestRouter(shape, {"int8", "commvq"}),
        "version: 1\nrouter: {experts: [int8, commvq]}\n");

  const kvq_test::Context elsewhere = kvq_test::make_context();
  const kvq_test::Router foreign = kvq_test::Router::load(elsewhere, TestRouter(shape, {"int8", "int2"}).file());
  kvq_cache_options options = shape;
  options.router = foreign;
  check_refused({KVQ_E_ARGUMENT, "another context"}, context, options, policy);
}

TEST_CASE("codes of a whole layer go with votes of the layer and with eviction of whole tokens only") {
  const kvq_test::Context context = kvq_test::make_context();
  kvq_cache_options options = options_with(KVQ_ROPE_HALF);
  const kvq_test::Router router = kvq_test::Router::load(context, TestRouter(options, {"int8", "commvq"}).file());
  const kvq_test::Codes codes{.stages = 2, .codes = 8, .bits = 1};
  const kvq_test::Codebook codebook = kvq_test::Codebook::load(context, kvq_test::test_codebook(options, codes).file());
  options.router = router;
  options.codebook = codebook;
  check_refused({KVQ_E_ARGUMENT, "votes: layer"}, context, options,
                "version: 1\nrouter: {experts: [int8, commvq], votes: head}\n");
  check_refused({KVQ_E_ARGUMENT, "heads: together"}, context, options,
                "version: 1\nrouter: {experts: [int8, commvq]}\neviction: {method: snapkv, budget: 64}\n");
  CHECK(kvq_test::make_cache(context, options,
                             "version: 1\nrouter: {experts: [int8, commvq]}\n"
                             "eviction: {budget: 64, heads: together}\n") != nullptr);
}

TEST_CASE("pages whose formats are not known yet cannot be made ahead") {
  for (const char* device : kvq_test::devices()) {
    CAPTURE(device);
    const Tokens tokens;
    const kvq_cache_options options = options_with(KVQ_ROPE_HALF);
    const TestRouter router(options, {"int8", "int2"});
    Filled filled(tokens, options, "version: 1\nrouter: {experts: [int8, int2]}\n", &router, device);
    auto error = kvq_test::initialised<kvq_error>();
    CHECK(kvq_sequence_reserve(filled.cache(), filled.sequence(), 10, &error) == KVQ_E_UNSUPPORTED);
    CHECK(std::string(error.message).find("tokens is 10") != std::string::npos);
    CHECK(kvq_sequence_reserve(filled.cache(), filled.sequence(), 0, &error) == KVQ_OK);
  }
}

}  // namespace conformance::route_test
