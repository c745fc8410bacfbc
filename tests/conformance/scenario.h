// A table entry of the attention tests: a shape, some sequences and a batch of queries, run on any instruction set.
#pragma once

#include "page_format.h"
#include "support/handles.h"
#include "support/reference.h"

#include <cstdint>
#include <string>
#include <vector>

namespace conformance {

enum class Positions {
  kConsecutive,  // NULL in every call: tokens are numbered from 0, queries are the last tokens
  kGaps,         // tokens with gaps between their positions, queries are the last tokens
  kAnyQueries,   // and queries at explicit positions in any order: before, between and after the tokens
};

// Masks of the newest slots.
enum class Masks {
  kNone,
  kRandom,  // any bits
  kTree,    // the queries' tokens are a random tree, appended in a step: each sees the way from its root
};

struct Scenario {
  std::string name;
  int32_t q_heads = 4;
  int32_t kv_heads = 2;
  int32_t head_dim = 64;
  kvq_rope rope = KVQ_ROPE_HALF;
  int32_t rotary_dim = 0;
  float rope_base = 10000.0F;
  std::vector<float> inv_freq = {};
  float scale = 0.0F;
  std::vector<int32_t> lengths = {100};  // one per sequence
  std::vector<int32_t> query_counts = {1};
  Positions positions = Positions::kConsecutive;
  int32_t sliding_window = 0;
  float logit_softcap = 0.0F;
  kvq_dtype kv_dtype = KVQ_F32;
  kvq_dtype q_dtype = KVQ_F32;
  kvq_dtype output_dtype = KVQ_F32;
  bool outlier_channels = false;  // a few key channels eight times as large as the others
  std::vector<float> sinks = {};  // [q_heads], or empty
  Masks masks = Masks::kNone;
  int32_t mask_slots = 0;   // not below the tokens of a tree
  bool older_gpus = false;  // a GPU also runs the kernels that older ones run
};

// The inputs of a scenario, already rounded to the element types.
struct Inputs {
  struct Tokens {
    kvq_test::Tensor k;              // [n, kv_heads, head_dim]
    kvq_test::Tensor v;              // [n, kv_heads, head_dim]
    std::vector<int32_t> positions;  // one per token
    std::vector<int32_t> query_positions;
    std::vector<uint32_t> mask;  // [queries, words], or empty
  };
  std::vector<Tokens> sequences;
  kvq_test::Tensor q;  // [total queries, q_heads, head_dim]
};

/// Soft-cap, window and scale at once.
Scenario masked_and_capped();
/// Windows of several sizes, over consecutive positions and over gaps.
std::vector<Scenario> windows();
/// One sequence with several queries, and batches of sequences of different length.
std::vector<Scenario> several_queries();
/// Positions with gaps, and queries anywhere.
std::vector<Scenario> positions_with_gaps();
/// Keys, values, queries and outputs in 16 bits.
std::vector<Scenario> tensors_in_16_bits();

Inputs make_inputs(const Scenario& scenario);
kvq_cache_options options_of(const Scenario& scenario);
kvq_test::AttentionRule rule_of(const Scenario& scenario);
int32_t total_queries(const Scenario& scenario);

// Outputs of attention, in either precision.
template <typename Out, typename Sums>
struct Outputs {
  Out out;   // [total queries, q_heads, head_dim]
  Sums lse;  // [total queries, q_heads]
};
using Attended = Outputs<kvq_test::Tensor, std::vector<float>>;
using Expected = Outputs<std::vector<double>, std::vector<double>>;

// A scenario's sequences in a separate cache.
class Run {
 public:
  Run(const Scenario& scenario, const Inputs& inputs, const Storage& storage, const std::string& isa,
      int32_t n_threads = 1);

  // The whole batch.
  Attended attend_with_lse() const;
  // The same without log-sum-exps: [total queries, q_heads, head_dim].
  kvq_test::Tensor attend() const;
  // The batch without its tensors q, out and lse.
  kvq_attend_batch batch() const;
  // The stored tokens of a sequence, one entry per KV head.
  std::vector<kvq_test::Decoded> decode(size_t sequence) const;

  kvq_cache* cache() const { return cache_; }
  const std::vector<kvq_test::Sequence>& sequences() const { return sequences_; }

 private:
  const Scenario& scenario_;
  const Inputs& inputs_;
  kvq_test::Context context_;
  kvq_test::Cache cache_ = nullptr;
  std::vector<kvq_test::Sequence> sequences_;
  std::vector<const kvq_sequence*> pointers_;
  std::vector<int32_t> query_positions_;
  std::vector<uint32_t> mask_;
};

// Float64 attention over the stored tokens.
Expected attention_over_decoded(const Scenario& scenario, const Inputs& inputs, const Run& run);
// Float64 attention over the keys and values as they were appended.
std::vector<double> attention_over_inputs(const Scenario& scenario, const Inputs& inputs);

// Largest |v| appended: errors of attention are relative to it.
double largest_value(const Inputs& inputs);
double largest_difference(const kvq_test::Tensor& out, const std::vector<double>& expected);
// Infinite ones must be equal.
double largest_difference(const std::vector<float>& lse, const std::vector<double>& expected);

}  // namespace conformance
