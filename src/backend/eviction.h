// How much of a sequence each head keeps, and which tokens.
#pragma once

#include "core/memory.h"

#include <cstdint>
#include <span>

namespace kvq {

/// What a token is worth.
enum class TokenScore : uint8_t {
  kWindow,     // attention from the newest queries (SnapKV)
  kStreaming,  // the first tokens most, then the newer the more (StreamingLLM)
  kMass,       // attention from all queries so far (H2O)
};

/// How layers share the whole budget.
enum class LayerSplit : uint8_t {
  kUniform,
  kPyramid,  // a line that falls from the first layer to the last (PyramidKV)
};

/// How heads share a layer's budget.
enum class HeadSplit : uint8_t {
  kUniform,
  kAdaptive,  // as many as each has among the best of all heads, blended with the uniform split (Ada-KV, algorithm 2)
  kReserved,  // the best of each head for a part of the budget, then the best of all
  kTogether,  // the same tokens for all heads
};

enum class Pooling : uint8_t { kMax, kMean };

/// Of policies that give a percentage.
inline constexpr int32_t kBudgetOfPercent = INT32_MAX;

/// One method, as a policy describes it.
struct Eviction {
  TokenScore score = TokenScore::kWindow;
  LayerSplit layers = LayerSplit::kUniform;
  HeadSplit heads = HeadSplit::kUniform;
  int32_t budget = 0;    // tokens of a head that are kept on average, the window included; 0: no eviction
  float percent = 0.0F;  // of a head's tokens, in place of the budget; 0: none
  int32_t window = 32;   // newest tokens, which are always kept and whose queries count
  int32_t kernel = 7;    // of the pooling of scores along positions, odd
  Pooling pooling = Pooling::kMax;
  Pooling group = Pooling::kMean;  // of the scores of the query heads of a KV head
  int32_t first = 4;               // tokens that streaming keeps at the beginning
  float alpha = 0.5F;              // of the head split: 0 adapts freely, 1 is uniform; kReserved: the part reserved
  float beta = 20.0F;              // of the pyramid: the last layer keeps budget / beta a head

  bool operator==(const Eviction&) const = default;

  /// For so many tokens.
  int32_t budget_of(int32_t tokens) const;
};

/// Integers with the sum `total` that are nearest to `shares`: each rounded down, then one more for those with the
/// largest remainders, the first of equals. The shares must be non-negative and add up to about `total`.
void round_by_largest_remainder(std::span<const double> shares, int64_t total, std::span<int32_t> out);

/// The same where out[i] may not leave [least[i], most[i]]: what one cannot take or must not give goes to the others,
/// in proportion to their shares. `total` is brought between the sums of the limits first.
void round_within(Allocator& allocator, std::span<const double> shares, int64_t total, std::span<const int32_t> least,
                  std::span<const int32_t> most, std::span<int32_t> out);

/// What a layer holds, all heads together.
struct LayerTokens {
  int32_t tokens;  // that may be kept
  int32_t window;  // of these, that must be
};

/// Tokens that each layer keeps, all heads and windows together: heads · budget, and what layers have less of than
/// their share stays with the others, so that the sum is n_layers · heads · budget, or all there is.
void split_layers(Allocator& allocator, const Eviction& eviction, int32_t heads, std::span<const LayerTokens> layers,
                  std::span<int32_t> out);

/// Max or mean over `kernel` neighbours of each score; what lies beyond the ends does not count.
void pool_scores(const Eviction& eviction, std::span<const float> scores, std::span<float> out);

/// The scores of one head's tokens before the window, oldest first.
using HeadScores = std::span<const float>;

/// How many tokens before the window each head keeps: `total` of all heads together, at most what a head has.
void split_heads(Allocator& allocator, const Eviction& eviction, std::span<const HeadScores> heads, int64_t total,
                 std::span<int32_t> out);

/// What adaptive and uniform splits make of how many tokens each head has among the best `total` of all (`counts`,
/// which is replaced). `most`: that each head has.
void blend_heads(Allocator& allocator, const Eviction& eviction, std::span<const int32_t> most, int64_t total,
                 std::span<int32_t> counts);
/// Of HeadSplit::kReserved: how many each head keeps of its own best.
int32_t reserved_of_head(const Eviction& eviction, size_t heads, int64_t total);

/// The `count` largest scores' indices in rising order; of equals the lower index.
void select_tokens(HeadScores scores, int32_t count, Vector<int32_t>& indices);

/// Slots of each head that stay, in rising order: `total` of all heads together, the newest `window` of each among
/// them. `masses`: of all slots of each head, which need no numbers for streaming.
void select_slots(Allocator& allocator, const Eviction& eviction, std::span<const HeadScores> masses, int64_t total,
                  std::span<Vector<int32_t>> slots);

}  // namespace kvq
