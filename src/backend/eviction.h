// Eviction: how many tokens each head keeps, and which.
#pragma once

#include "core/memory.h"

#include <cstdint>
#include <span>

namespace kvq {

/// Score of a token.
enum class TokenScore : uint8_t {
  kWindow,     // attention from the newest queries (SnapKV)
  kStreaming,  // the first tokens, then newer before older (StreamingLLM)
  kMass,       // attention from all queries so far (H2O)
};

/// Division of the whole budget among layers.
enum class LayerSplit : uint8_t {
  kUniform,
  kPyramid,  // linear, falling from the first layer to the last (PyramidKV)
};

/// Division of a layer's budget among heads.
enum class HeadSplit : uint8_t {
  kUniform,
  kAdaptive,  // each head's count among the best of all heads, blended with the uniform split (Ada-KV, algorithm 2)
  kReserved,  // a reserved part for the best of each head, then the best of all
  kTogether,  // the same tokens for all heads
};

enum class Pooling : uint8_t { kMax, kMean };

/// Budget of policies that give a percentage instead.
inline constexpr int32_t kBudgetOfPercent = INT32_MAX;

/// One method, as a policy describes it.
struct Eviction {
  TokenScore score = TokenScore::kWindow;
  LayerSplit layers = LayerSplit::kUniform;
  HeadSplit heads = HeadSplit::kUniform;
  int32_t budget = 0;    // mean tokens kept per head, the window included; 0: no eviction
  float percent = 0.0F;  // share of a head's tokens, in place of the budget; 0: none
  int32_t window = 32;   // newest tokens: always kept, and the source of queries
  int32_t kernel = 7;    // width of the pooling of scores along positions, odd
  Pooling pooling = Pooling::kMax;
  Pooling group = Pooling::kMean;  // pooling over the query heads of a KV head
  int32_t first = 4;               // tokens that streaming keeps at the beginning
  float alpha = 0.5F;              // head split: 0 is fully adaptive, 1 uniform; kReserved: the reserved part
  float beta = 20.0F;              // pyramid: the last layer keeps budget / beta per head

  bool operator==(const Eviction&) const = default;

  /// Whether scores depend on observed queries.
  bool observes() const { return budget > 0 && score != TokenScore::kStreaming; }
  /// Budget for a sequence of `tokens` tokens.
  int32_t budget_of(int32_t tokens) const;
};

/// Round `shares` to integers that sum to `total`: all down, then one more for the largest remainders; ties go to the
/// first. The shares must be non-negative and sum to about `total`.
void round_by_largest_remainder(std::span<const double> shares, int64_t total, std::span<int32_t> out);

/// Round as above, with out[i] in [least[i], most[i]]: any excess or deficit is divided among the others in proportion
/// to their shares. `total` is clamped to the sums of the limits first.
void round_within(Allocator& allocator, std::span<const double> shares, int64_t total, std::span<const int32_t> least,
                  std::span<const int32_t> most, std::span<int32_t> out);

/// Tokens of a layer, summed over its heads.
struct LayerTokens {
  int32_t tokens;  // tokens that may be kept
  int32_t window;  // tokens among these that must be kept
};

/// Tokens that each layer keeps, summed over heads and windows: heads · budget on average; layers shorter than their
/// share leave the rest to the others, so that the sum is n_layers · heads · budget, or all tokens.
void split_layers(Allocator& allocator, const Eviction& eviction, int32_t heads, std::span<const LayerTokens> layers,
                  std::span<int32_t> out);

/// Max or mean over `kernel` neighbours of each score; positions beyond the ends do not count.
void pool_scores(const Eviction& eviction, std::span<const float> scores, std::span<float> out);

/// Scores of one head's tokens before the window, oldest first.
using HeadScores = std::span<const float>;

/// Tokens before the window that each head keeps: `total` over all heads, at most as many as a head has.
void split_heads(Allocator& allocator, const Eviction& eviction, std::span<const HeadScores> heads, int64_t total,
                 std::span<int32_t> out);

/// Blends each head's count among the best `total` tokens of all (`counts`, replaced in place) with the uniform split.
/// `most`: tokens of each head.
void blend_heads(Allocator& allocator, const Eviction& eviction, std::span<const int32_t> most, int64_t total,
                 std::span<int32_t> counts);
/// HeadSplit::kReserved: tokens that each head keeps of its own best.
int32_t reserved_of_head(const Eviction& eviction, size_t heads, int64_t total);

/// Indices of the `count` largest scores in ascending order; ties go to the lower index.
void select_tokens(HeadScores scores, int32_t count, Vector<int32_t>& indices);

/// Slots that each head keeps, in ascending order: `total` over all heads, including the newest `window` of each.
/// `masses`: one number per slot of each head, unused by streaming.
void select_slots(Allocator& allocator, const Eviction& eviction, std::span<const HeadScores> masses, int64_t total,
                  std::span<Vector<int32_t>> slots);

}  // namespace kvq
