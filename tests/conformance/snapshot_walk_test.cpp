// After any history, a saved sequence can be loaded and holds the same.
#include "conversation.h"
#include "support/build.h"
#include "support/random.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace conformance::snapshot_walk_test {

using kvq_test::Cache;
using kvq_test::Context;
using kvq_test::Sequence;
using kvq_test::Snapshot;

namespace {

constexpr int32_t kTokens = 1500;

/// Contents of one list.
struct Contents {
  explicit Contents(kvq_test::Decoded decoded)
      : k(std::move(decoded.k)), v(std::move(decoded.v)), positions(std::move(decoded.positions)) {}
  bool operator==(const Contents&) const = default;

  std::vector<float> k;  // [slots, head_dim]
  std::vector<float> v;
  std::vector<int32_t> positions;
};

/// A cache with one policy, and operations on its sequences.
class Walk {
 public:
  Walk(const std::string& policy, uint64_t seed)
      : random_(seed), context_(kvq_test::make_context()), cache_(make_cache(context_, shape_.options(), policy)) {
    sequences_.emplace_back(cache_);
  }

  void step() {
    Sequence& sequence = any();
    switch (random_.integer(0, 9)) {
      case 0:
      case 1:
        cut(sequence);
        break;
      case 2:
      case 3:
        compress(sequence);
        break;
      case 4:
        if (sequences_.size() > 3) sequences_.erase(sequences_.begin());
        sequences_.push_back(any().fork());
        break;
      default:
        append(sequence);
    }
    Sequence& saved = any();
    const Snapshot snapshot = saved.save();
    Sequence loaded = kvq_test::Sequence::load(cache_, snapshot);
    REQUIRE(loaded.save() == snapshot);
    REQUIRE(loaded.length(0) == saved.length(0));
    REQUIRE(contents(loaded) == contents(saved));
    if (random_.integer(0, 3) == 0) saved = std::move(loaded);
  }

 private:
  Sequence& any() {
    return sequences_[static_cast<size_t>(random_.integer(0, static_cast<int32_t>(sequences_.size()) - 1))];
  }

  void append(Sequence& sequence) {
    const int32_t length = sequence.length(0);
    const int32_t n = std::min(random_.integer(1, random_.integer(0, 3) == 0 ? 200 : 40), kTokens - length);
    if (n > 0) text_.append(sequence, length, length + n);
  }

  /// After queries, which tokens are scored by.
  void compress(Sequence& sequence) {
    if (sequence.length(0) == 0) return;
    for (int32_t layer = 0; layer < shape_.n_layers; ++layer) {
      attend_last(shape_, cache_, {sequence}, 1, queries(shape_, 1), layer);
    }
    const kvq_status status = kvq_compress(cache_, sequence, nullptr, nullptr);
    REQUIRE((status == KVQ_OK || status == KVQ_E_STATE));  // the policy may have no eviction
  }

  /// Truncates anywhere, half of the time at the end of a page without evicted tokens. The remaining tokens were before
  /// the cut.
  void cut(Sequence& sequence) {
    std::vector<Contents> expected = contents(sequence);
    int32_t length = random_.integer(0, sequence.length(0));
    if (random_.integer(0, 1) == 0) length = length / KVQ_PAGE_SLOTS * KVQ_PAGE_SLOTS;
    const kvq_status status = kvq_sequence_truncate(cache_, sequence, length, nullptr);
    REQUIRE((status == KVQ_OK || status == KVQ_E_STATE));
    if (status == KVQ_OK) {
      for (Contents& list : expected) {
        const auto n = static_cast<size_t>(std::lower_bound(list.positions.begin(), list.positions.end(), length) -
                                           list.positions.begin());
        list.positions.resize(n);
        list.k.resize(n * static_cast<size_t>(shape_.head_dim));
        list.v.resize(n * static_cast<size_t>(shape_.head_dim));
      }
      REQUIRE(sequence.length(0) == length);
    }
    REQUIRE(contents(sequence) == expected);
  }

  /// Contents of all lists of a sequence.
  std::vector<Contents> contents(const Sequence& sequence) const {
    std::vector<Contents> all;
    for (int32_t layer = 0; layer < shape_.n_layers; ++layer) {
      for (int32_t head = 0; head < shape_.kv_heads; ++head) {
        all.emplace_back(kvq_test::decode(sequence, layer, head, 0, slots(sequence, layer, head), shape_.head_dim));
      }
    }
    return all;
  }

  int32_t slots(const Sequence& sequence, int32_t layer, int32_t head) const {
    const auto holds = [&](int32_t n) {
      return kvq_sequence_decode(cache_, sequence, layer, head, 0, n, nullptr, nullptr, nullptr, nullptr) == KVQ_OK;
    };
    std::vector<int32_t> counts(static_cast<size_t>(sequence.length(layer)));
    std::iota(counts.begin(), counts.end(), 1);
    return static_cast<int32_t>(std::partition_point(counts.begin(), counts.end(), holds) - counts.begin());
  }

  Shape shape_{.head_dim = 32};
  Text text_{shape_, kTokens, 1};
  kvq_test::Random random_;
  Context context_;
  Cache cache_;
  std::vector<Sequence> sequences_;
};

}  // namespace

TEST_CASE("whatever was appended, evicted, cut and forked, what is saved can be loaded and holds the same") {
  for (const std::string policy :
       {"int4", "version: 1\neviction: {method: streaming, budget: 32, window: 16}\n", "fp16+adasnap:40", "fp16+h2o:64",
        "int4+streaming:50",
        "version: 1\nkeys: int8\nvalues: int2\nsink: 1\nrecent: 3\neviction: {method: adapyramid, budget: 70}\n",
        "version: 1\nkeys: commvq\nvalues: commvq\neviction: {heads: together, budget: 60}\n", "gs2+centres+adasnap:60",
        "version: 1\nkeys: gt2+centres\nvalues: gs1\nsink: 0\neviction: {budget: 40}\n",
        "version: 1\nrouter: {experts: [fp16, int4, int2]}\neviction: {method: snapkv, budget: 60}\n"}) {
    CAPTURE(policy);
    for (uint64_t seed = 1; seed <= 4; ++seed) {
      CAPTURE(seed);
      Walk walk(policy, seed);
      for (int step = 0; step < kvq_test::full_or_small(60, 20); ++step) {
        CAPTURE(step);
        walk.step();
      }
    }
  }
}

}  // namespace conformance::snapshot_walk_test
