// Sequences of different policies in one cache: stored, attended to and recoded as each policy says.
#include "conversation.h"
#include "support/random.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

namespace conformance::recode_test {
namespace {

using kvq_test::Cache;
using kvq_test::Context;
using kvq_test::Sequence;

// Sets of policies that one cache can hold; it is created with the first.
std::vector<std::vector<std::string>> policy_sets() {
  return {{"fp16", "gs2", "int4+hadamard", "gt2/gs4", "int8/int2", "gs1"},
          {"gs4", "version: 1\nkeys: gs2\nvalues: int3\nsink: 2\nrecent: 3\n", "fp16", "int4", "gs4+nocentre"},
          {"gs2+centres", "gs4+centres/gt2", "int4", "gs2"},
          {kCodesOfLayer, "gs2", "fp16"},
          {kCodesOfHeads, "int4+hadamard/gs4", "int2"}};
}

void recode(const Cache& cache, Sequence& sequence, const Context& context, const std::string& policy) {
  const kvq_test::Policy loaded = kvq_test::load_plain_policy(context, policy);
  kvq_error error;
  kvq_error_init(&error, sizeof(error));
  const kvq_status status = kvq_sequence_recode(cache.get(), sequence.get(), loaded, &error);
  INFO(error.message);
  REQUIRE(status == KVQ_OK);
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0.0;
  double size = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    sum += std::pow(double{a[i]} - b[i], 2);
    size += std::pow(double{b[i]}, 2);
  }
  return std::sqrt(sum / size);
}

std::vector<float> keys_and_values(const Shape& shape, const Sequence& sequence, int32_t n) {
  std::vector<float> all;
  for (int32_t layer = 0; layer < shape.n_layers; ++layer) {
    for (int32_t head = 0; head < shape.kv_heads; ++head) {
      const kvq_test::Decoded decoded = kvq_test::decode(sequence, layer, head, 0, n, shape.head_dim);
      all.insert(all.end(), decoded.k.begin(), decoded.k.end());
      all.insert(all.end(), decoded.v.begin(), decoded.v.end());
    }
  }
  return all;
}

// Tokens of every sequence in one call; [sequences * count, kv_heads, head_dim].
void append_to_all(const Cache& cache, const Shape& shape, const std::vector<kvq_sequence*>& sequences, int32_t count,
                   const std::vector<float>& k) {
  const std::vector<int32_t> counts(sequences.size(), count);
  for (int32_t layer = 0; layer < shape.n_layers; ++layer) {
    auto batch = kvq_test::initialised<kvq_append_batch>();
    batch.n_sequences = static_cast<int32_t>(sequences.size());
    batch.sequences = sequences.data();
    batch.token_counts = counts.data();
    batch.k = batch.v = k.data();
    kvq_test::append_sequences(cache.get(), layer, batch);
  }
}

}  // namespace

TEST_CASE("sequences of different policies in one batch are stored and attended to as each is alone") {
  const Shape shape{.head_dim = 64};
  constexpr int32_t kRounds = 5;
  for (const std::string& backend : kvq_test::backends()) {
    for (const std::vector<std::string>& policies : policy_sets()) {
      CAPTURE(backend);
      CAPTURE(policies.front());
      const size_t n = policies.size();
      const Context context = kvq_test::make_context(backend.c_str());
      const Cache cache = make_cache(context, shape.options(), policies.front());
      std::vector<Sequence> together;
      std::vector<Sequence> alone;
      std::vector<kvq_sequence*> pointers;
      for (const std::string& policy : policies) {
        together.emplace_back(cache);
        if (policy != policies.front()) recode(cache, together.back(), context, policy);
        alone.emplace_back(cache);
        if (policy != policies.front()) recode(cache, alone.back(), context, policy);
        pointers.push_back(together.back().get());
      }
      for (int32_t round = 0; round < kRounds; ++round) {
        const int32_t count = round == 1 ? 1 : 70 + round;
        const size_t scalars = static_cast<size_t>(count) * shape.token_scalars();
        const std::vector<float> k = kvq_test::normal_tensor(n * scalars, 7 + static_cast<uint64_t>(round));
        append_to_all(cache, shape, pointers, count, k);
        const std::vector<float> q = queries(shape, n * 3, 100 + static_cast<uint64_t>(round));
        const std::vector<float> out =
            attend_last(shape, cache.get(), {pointers.begin(), pointers.end()}, round == 1 ? 1 : 3, q, 1);
        for (size_t i = 0; i < n; ++i) {
          CAPTURE(policies[i]);
          const std::vector<float> own(k.begin() + static_cast<ptrdiff_t>(i * scalars),
                                       k.begin() + static_cast<ptrdiff_t>((i + 1) * scalars));
          append_to_all(cache, shape, {alone[i].get()}, count, own);
          const size_t rows = (round == 1 ? 1 : 3) * shape.query_scalars();
          const auto first = static_cast<ptrdiff_t>(i * rows);
          const std::vector<float> q_of(q.begin() + first, q.begin() + first + static_cast<ptrdiff_t>(rows));
          const std::vector<float> expected =
              attend_last(shape, cache.get(), {alone[i].get()}, round == 1 ? 1 : 3, q_of, 1);
          const std::vector<float> found(out.begin() + first, out.begin() + first + static_cast<ptrdiff_t>(rows));
          CHECK(distance(found, expected) < 2e-3);
        }
      }
      for (size_t i = 0; i < n; ++i) {
        CAPTURE(policies[i]);
        CHECK((together[i].save() == alone[i].save()));
        // A cache of that policy alone has the same pages.
        if (policies[i].find("centres") != std::string::npos || policies[i] == kCodesOfLayer) continue;
        if (policies[i] == kCodesOfHeads) continue;
        const Cache plain = make_cache(context, shape.options(), policies[i]);
        const std::vector<std::byte> saved = together[i].save();
        CHECK((Sequence::load(plain, saved).save() == saved));
      }
    }
  }
}

TEST_CASE("a recoded sequence holds what its new formats make of what the old ones held, on every device alike") {
  for (const int32_t head_dim : {64, 96, 128}) {
    const Shape shape{.head_dim = head_dim};
    constexpr int32_t kTokens = 700;
    const Text text(shape, kTokens + 100, 3);
    for (const std::vector<std::string>& policies : policy_sets()) {
      if (head_dim == 96 && policies.front().find("ommvq") != std::string::npos) continue;
      for (const std::string& from : policies) {
        for (const std::string& to : policies) {
          if (from == to) continue;
          CAPTURE(head_dim);
          CAPTURE(from);
          CAPTURE(to);
          std::vector<float> first;  // of the first device
          for (const char* device : kvq_test::devices()) {
            CAPTURE(device);
            const Context context = kvq_test::make_context(device);
            const Cache cache = make_cache(context, shape.options(), policies.front());
            Sequence sequence(cache);
            if (from != policies.front()) recode(cache, sequence, context, from);
            text.append(sequence.get(), 0, kTokens, 64);
            const std::vector<float> before = keys_and_values(shape, sequence, kTokens);
            // Tokens that the old pages decode to, stored as the new policy says.
            Sequence again(cache);
            if (to != policies.front()) recode(cache, again, context, to);
            text.append(again.get(), 0, kTokens, 64);
            const double own_error = distance(keys_and_values(shape, again, kTokens), before);
            recode(cache, sequence, context, to);
            const std::vector<float> after = keys_and_values(shape, sequence, kTokens);
            CHECK(distance(after, before) < 1.25 * own_error + 0.02);
            if (first.empty()) first = after;
            // A number between two codes may go either way.
            CHECK(distance(after, first) < 0.02 + 0.25 * own_error);
            text.append(sequence.get(), kTokens, kTokens + 100, 50);
            text.append(again.get(), kTokens, kTokens + 100, 50);
            const std::vector<float> q = queries(shape, 1);
            const std::vector<float> out = attend_last(shape, cache.get(), {sequence.get()}, 1, q);
            CHECK(std::ranges::all_of(out, [](float x) { return std::isfinite(x); }));
            CHECK(sequence.save().size() == again.save().size());
          }
        }
      }
    }
  }
}

}  // namespace conformance::recode_test
