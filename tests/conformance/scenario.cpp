#include "scenario.h"

#include "conversation.h"
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

// Makes the newest `count` tokens a tree, and the mask that shows each the way from its root and all older tokens.
std::vector<uint32_t> plant_tree(const Scenario& s, int32_t count, std::vector<int32_t>& positions, Random& random) {
  const size_t words = kvq_test::mask_words(s.mask_slots);
  const auto older = static_cast<int32_t>(positions.size()) - count;
  const int32_t last = older > 0 ? positions[static_cast<size_t>(older) - 1] : -1;
  std::vector<uint32_t> mask(static_cast<size_t>(count) * words);
  for (int32_t i = 0; i < count; ++i) {
    uint32_t* row = mask.data() + static_cast<size_t>(i) * words;
    const auto set = [&](int32_t token) {  // of the tree
      const int32_t bit = s.mask_slots - count + token;
      if (bit >= 0) row[bit / 32] |= uint32_t{1} << (bit % 32);
    };
    const int32_t parent = random.integer(std::max(i - 6, -1), i - 1);
    if (parent >= 0) std::copy_n(mask.data() + static_cast<size_t>(parent) * words, words, row);
    for (int32_t bit = 0; parent < 0 && bit < s.mask_slots - count; ++bit) row[bit / 32] |= uint32_t{1} << (bit % 32);
    set(i);
    const int32_t before = parent >= 0 ? positions[static_cast<size_t>(older + parent)] : last;
    positions[static_cast<size_t>(older + i)] = before + (s.positions == Positions::kConsecutive ? 1 : i % 3 + 1);
  }
  return mask;
}

std::vector<uint32_t> any_mask(const Scenario& s, int32_t count, Random& random) {
  std::vector<uint32_t> mask(static_cast<size_t>(count) * kvq_test::mask_words(s.mask_slots));
  for (uint32_t& word : mask) {
    for (uint32_t bit = 0; bit < 32; ++bit) word |= static_cast<uint32_t>(random.integer(0, 1)) << bit;
  }
  return mask;
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
    std::vector<uint32_t> mask;
    if (s.masks == Masks::kTree) mask = plant_tree(s, s.query_counts[i], tokens, random);
    if (s.masks == Masks::kRandom) mask = any_mask(s, s.query_counts[i], random);
    std::vector<int32_t> queries = query_positions(s, s.query_counts[i], tokens, random);
    const std::vector<float> k = keys(s, n, 100 + 2 * i);
    const std::vector<float> v = kvq_test::normal_tensor(k.size(), 101 + 2 * i);
    inputs.sequences.push_back(
        {Tensor(k, s.kv_dtype), Tensor(v, s.kv_dtype), std::move(tokens), std::move(queries), std::move(mask)});
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
    const auto add = [&](int32_t begin, int32_t end, bool numbered) {
      const size_t offset = static_cast<size_t>(begin) * token_scalars(s) * kvq_test::dtype_bytes(s.kv_dtype);
      const auto positions = std::span(tokens.positions).subspan(static_cast<size_t>(begin));
      if (begin == end) return;
      kvq_test::append(sequences_.back(), 0, end - begin, static_cast<const std::byte*>(tokens.k.data()) + offset,
                       static_cast<const std::byte*>(tokens.v.data()) + offset, s.kv_dtype,
                       numbered ? positions : std::span<const int32_t>{});
    };
    const int32_t planted = s.masks == Masks::kTree ? s.query_counts[sequences_.size() - 1] : 0;
    add(0, n - planted, s.positions != Positions::kConsecutive);
    if (planted == 0) continue;
    begin_step(cache_, sequences_.back(), planted);
    add(n - planted, n, true);
  }
  for (size_t i = 0; i < sequences_.size(); ++i) {
    pointers_.push_back(sequences_[i]);
    const std::vector<int32_t>& own = inputs.sequences[i].query_positions;
    query_positions_.insert(query_positions_.end(), own.begin(), own.end());
    const std::vector<uint32_t>& mask = inputs.sequences[i].mask;
    mask_.insert(mask_.end(), mask.begin(), mask.end());
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
  batch.mask = mask_.empty() ? nullptr : mask_.data();
  batch.mask_slots = scenario_.mask_slots;
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
        const size_t words = kvq_test::mask_words(s.mask_slots);
        rule.mask_slots = s.mask_slots;
        if (!tokens.mask.empty()) rule.mask = std::span(tokens.mask).subspan(query * words, words);
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
