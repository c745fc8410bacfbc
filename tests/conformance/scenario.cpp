#include "scenario.h"

#include "support/build.h"
#include "support/random.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace conformance {

using kvq_test::Decoded;
using kvq_test::Random;
using kvq_test::Rotation;
using kvq_test::Tensor;

namespace {

size_t head_scalars(const Scenario& s) { return static_cast<size_t>(s.head_dim); }
size_t token_scalars(const Scenario& s) { return static_cast<size_t>(s.kv_heads) * head_scalars(s); }
size_t query_scalars(const Scenario& s) { return static_cast<size_t>(s.q_heads) * head_scalars(s); }

std::vector<float> keys(const Scenario& s, int32_t n, uint64_t seed) {
  std::vector<float> k = kvq_test::normal_tensor(static_cast<size_t>(n) * token_scalars(s), seed);
  if (!s.outlier_channels) return k;
  for (size_t i = 0; i < k.size(); ++i) {
    if (i % head_scalars(s) % 16 == 3) k[i] *= 8.0F;
  }
  return k;
}

std::vector<int32_t> token_positions(const Scenario& s, int32_t n, Random& random) {
  std::vector<int32_t> positions(static_cast<size_t>(n));
  std::iota(positions.begin(), positions.end(), 0);
  if (s.positions == Positions::kConsecutive) return positions;
  int32_t next = random.integer(0, 20);
  for (int32_t& position : positions) {
    position = next;
    next += random.integer(0, 3) == 0 ? random.integer(2, 40) : 1;
  }
  return positions;
}

std::vector<int32_t> query_positions(const Scenario& s, int32_t count, const std::vector<int32_t>& tokens,
                                     Random& random) {
  if (s.positions != Positions::kAnyQueries) return {tokens.end() - count, tokens.end()};
  std::vector<int32_t> positions(static_cast<size_t>(count));
  for (int32_t& position : positions) position = random.integer(0, tokens.empty() ? 100 : tokens.back() + 50);
  return positions;
}

}  // namespace

Scenario masked_and_capped() {
  return {.name = "soft-cap, window and scale",
          .scale = 0.4F,
          .lengths = {200},
          .query_counts = {3},
          .sliding_window = 50,
          .logit_softcap = 3.0F};
}

std::vector<Scenario> windows() {
  std::vector<Scenario> scenarios;
  for (const int32_t window : {1, 32, 100}) {
    for (const Positions positions : {Positions::kConsecutive, Positions::kGaps}) {
      scenarios.push_back({.name = "window " + std::to_string(window),
                           .lengths = {300},
                           .query_counts = {40},
                           .positions = positions,
                           .sliding_window = window});
    }
  }
  return scenarios;
}

std::vector<Scenario> several_queries() {
  std::vector<Scenario> scenarios;
  for (const int32_t queries : {2, 5, 33, 100}) {
    scenarios.push_back({.name = std::to_string(queries) + " queries",
                         .lengths = {kvq_test::full_or_small(300, 150)},
                         .query_counts = {queries}});
  }
  scenarios.push_back(
      {.name = "six sequences", .lengths = {1, 33, 64, 500, 31, 97}, .query_counts = {1, 5, 64, 2, 31, 1}});
  return scenarios;
}

std::vector<Scenario> positions_with_gaps() {
  std::vector<Scenario> scenarios;
  for (const Positions positions : {Positions::kGaps, Positions::kAnyQueries}) {
    scenarios.push_back({.name = "gaps", .lengths = {300, 31}, .query_counts = {17, 2}, .positions = positions});
  }
  return scenarios;
}

std::vector<Scenario> tensors_in_16_bits() {
  std::vector<Scenario> scenarios;
  for (const kvq_dtype dtype : {KVQ_F16, KVQ_BF16}) {
    scenarios.push_back(
        {.name = "16-bit tensors", .lengths = {100}, .kv_dtype = dtype, .q_dtype = dtype, .output_dtype = dtype});
  }
  return scenarios;
}

Inputs make_inputs(const Scenario& s) {
  Random random(17);
  Inputs inputs{
      {}, Tensor(kvq_test::normal_tensor(static_cast<size_t>(total_queries(s)) * query_scalars(s), 7), s.q_dtype)};
  for (size_t i = 0; i < s.lengths.size(); ++i) {
    const int32_t n = s.lengths[i];
    std::vector<int32_t> tokens = token_positions(s, n, random);
    std::vector<int32_t> queries = query_positions(s, s.query_counts[i], tokens, random);
    const std::vector<float> k = keys(s, n, 100 + 2 * i);
    const std::vector<float> v = kvq_test::normal_tensor(k.size(), 101 + 2 * i);
    inputs.sequences.push_back({Tensor(k, s.kv_dtype), Tensor(v, s.kv_dtype), std::move(tokens), std::move(queries)});
  }
  return inputs;
}

kvq_cache_options options_of(const Scenario& s) {
  kvq_cache_options options = kvq_test::cache_options(s.q_heads, s.kv_heads, s.head_dim);
  options.rope = s.rope;
  options.rotary_dim = s.rotary_dim;
  options.rope_base = s.rope_base;
  options.inv_freq = s.inv_freq.empty() ? nullptr : s.inv_freq.data();
  options.scale = s.scale;
  return options;
}

kvq_test::AttentionRule rule_of(const Scenario& s) {
  const double scale = s.scale != 0.0F ? double{s.scale} : 1.0 / std::sqrt(double{1} * s.head_dim);
  return {scale, s.sliding_window, double{s.logit_softcap}};
}

int32_t total_queries(const Scenario& s) { return std::accumulate(s.query_counts.begin(), s.query_counts.end(), 0); }

Run::Run(const Scenario& s, const Inputs& inputs, const Storage& storage, const std::string& isa, int32_t n_threads)
    : scenario_(s),
      inputs_(inputs),
      context_(kvq_test::make_context(isa.c_str(), n_threads)),
      cache_(make_cache(context_, options_of(s), storage)) {
  for (const Inputs::Tokens& tokens : inputs.sequences) {
    sequences_.emplace_back(cache_);
    const auto n = static_cast<int32_t>(tokens.positions.size());
    if (n == 0) continue;
    const bool consecutive = s.positions == Positions::kConsecutive;
    kvq_test::append(sequences_.back(), 0, n, tokens.k.data(), tokens.v.data(), s.kv_dtype,
                     consecutive ? std::span<const int32_t>{} : std::span<const int32_t>(tokens.positions));
  }
  for (size_t i = 0; i < sequences_.size(); ++i) {
    pointers_.push_back(sequences_[i]);
    const std::vector<int32_t>& own = inputs.sequences[i].query_positions;
    query_positions_.insert(query_positions_.end(), own.begin(), own.end());
  }
}

kvq_attend_batch Run::batch() const {
  auto batch = kvq_test::initialised<kvq_attend_batch>();
  batch.n_sequences = static_cast<int32_t>(pointers_.size());
  batch.sequences = pointers_.data();
  batch.query_counts = scenario_.query_counts.data();
  batch.query_positions = scenario_.positions == Positions::kAnyQueries ? query_positions_.data() : nullptr;
  batch.q_dtype = scenario_.q_dtype;
  batch.output_dtype = scenario_.output_dtype;
  batch.sliding_window = scenario_.sliding_window;
  batch.logit_softcap = scenario_.logit_softcap;
  batch.sinks = scenario_.sinks.empty() ? nullptr : scenario_.sinks.data();
  return batch;
}

Attended Run::attend_with_lse() const {
  Attended attended{Tensor(inputs_.q.size(), scenario_.output_dtype),
                    std::vector<float>(inputs_.q.size() / head_scalars(scenario_))};
  kvq_attend_batch all = batch();
  all.q = inputs_.q.data();
  all.output = attended.out.data();
  all.lse = attended.lse.data();
  kvq_test::attend(cache_, 0, all);
  return attended;
}

Tensor Run::attend() const {
  Tensor out(inputs_.q.size(), scenario_.output_dtype);
  kvq_attend_batch all = batch();
  all.q = inputs_.q.data();
  all.output = out.data();
  kvq_test::attend(cache_, 0, all);
  return out;
}

std::vector<Decoded> Run::decode(size_t sequence) const {
  std::vector<Decoded> heads;
  const int32_t n = sequences_[sequence].length(0);
  for (int32_t head = 0; head < scenario_.kv_heads; ++head) {
    heads.push_back(kvq_test::decode(sequences_[sequence], 0, head, 0, n, scenario_.head_dim));
  }
  return heads;
}

namespace {

// One KV head of keys, rotated to their positions, or of values: [n, head_dim].
std::vector<double> one_head(const Scenario& s, const Tensor& tensor, int32_t head, const Rotation& rotation,
                             const std::vector<int32_t>& positions) {
  std::vector<double> result(positions.size() * head_scalars(s));
  for (size_t t = 0; t < positions.size(); ++t) {
    const size_t source = t * token_scalars(s) + static_cast<size_t>(head) * head_scalars(s);
    const std::span<double> token(result.data() + t * head_scalars(s), head_scalars(s));
    for (size_t c = 0; c < token.size(); ++c) token[c] = tensor[source + c];
    rotation.apply(token, positions[t]);
  }
  return result;
}

// Calls head_of(sequence, kv_head) for the keys and values of one head, and attends with all queries that read it.
template <typename HeadOf>
Expected attention_by_head(const Scenario& s, const Inputs& inputs, HeadOf&& head_of) {
  const Rotation rotation = Rotation::from(options_of(s));
  kvq_test::AttentionRule rule = rule_of(s);
  const int32_t heads_per_kv_head = s.q_heads / s.kv_heads;
  Expected expected{std::vector<double>(inputs.q.size()), std::vector<double>(inputs.q.size() / head_scalars(s))};
  size_t first_query = 0;
  for (size_t i = 0; i < inputs.sequences.size(); ++i) {
    const Inputs::Tokens& tokens = inputs.sequences[i];
    for (int32_t h = 0; h < s.q_heads; ++h) {
      const auto head = head_of(i, h / heads_per_kv_head);
      if (!s.sinks.empty()) rule.sink = double{s.sinks[static_cast<size_t>(h)]};
      for (size_t query = 0; query < tokens.query_positions.size(); ++query) {
        const size_t at = (first_query + query) * query_scalars(s) + static_cast<size_t>(h) * head_scalars(s);
        std::vector<double> q(head_scalars(s));
        for (size_t c = 0; c < q.size(); ++c) q[c] = inputs.q[at + c];
        rotation.apply(q, tokens.query_positions[query]);
        using Scalar = typename std::decay_t<decltype(head.k)>::value_type;
        const kvq_test::Attended result =
            kvq_test::attend_to<Scalar>(rule, q, tokens.query_positions[query], head.k, head.v, tokens.positions);
        std::copy(result.out.begin(), result.out.end(), expected.out.begin() + static_cast<std::ptrdiff_t>(at));
        expected.lse[at / head_scalars(s)] = result.lse;
      }
    }
    first_query += tokens.query_positions.size();
  }
  return expected;
}

}  // namespace

Expected attention_over_decoded(const Scenario& s, const Inputs& inputs, const Run& run) {
  std::vector<std::vector<Decoded>> decoded;
  for (size_t i = 0; i < inputs.sequences.size(); ++i) decoded.push_back(run.decode(i));
  return attention_by_head(
      s, inputs, [&](size_t sequence, int32_t kv_head) { return decoded[sequence][static_cast<size_t>(kv_head)]; });
}

std::vector<double> attention_over_inputs(const Scenario& s, const Inputs& inputs) {
  struct Head {
    std::vector<double> k;
    std::vector<double> v;
  };
  const Rotation rotation = Rotation::from(options_of(s));
  return attention_by_head(s, inputs,
                           [&](size_t sequence, int32_t kv_head) {
                             const Inputs::Tokens& tokens = inputs.sequences[sequence];
                             return Head{one_head(s, tokens.k, kv_head, rotation, tokens.positions),
                                         one_head(s, tokens.v, kv_head, Rotation{}, tokens.positions)};
                           })
      .out;
}

double largest_value(const Inputs& inputs) {
  double largest = 1e-30;
  for (const Inputs::Tokens& tokens : inputs.sequences) {
    for (size_t i = 0; i < tokens.v.size(); ++i) largest = std::max(largest, std::fabs(tokens.v[i]));
  }
  return largest;
}

double largest_difference(const std::vector<float>& lse, const std::vector<double>& expected) {
  double largest = 0.0;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (double{lse[i]} == expected[i]) continue;
    const double difference = std::fabs(lse[i] - expected[i]);
    if (!std::isfinite(difference)) return std::numeric_limits<double>::infinity();
    largest = std::max(largest, difference);
  }
  return largest;
}

double largest_difference(const Tensor& out, const std::vector<double>& expected) {
  double largest = 0.0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double difference = std::fabs(out[i] - expected[i]);
    if (std::isnan(difference)) return difference;
    largest = std::max(largest, difference);
  }
  return largest;
}

}  // namespace conformance
