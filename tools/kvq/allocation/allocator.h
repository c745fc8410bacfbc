#pragma once

#include <limits>

#include "allocation/measurements.h"
#include "kvq.hpp"
#include "llama/config.h"

namespace cli {

/// What there is to plan.
struct AllocationRequest {
  bool weights = true;
  bool cache = true;
  int32_t context = 2048;            // tokens of a sequence
  std::string eviction;              // method that evicts after the prompt; empty: all tokens stay
  double share = 1.0;                // of the tokens, that stay
  int32_t batch = 1;                 // sequences
  int32_t queries = 0;               // tokens of each in one call of attention; 0: work space does not count
  std::vector<std::string> schemes;  // of linear layers
  std::vector<std::string> formats;  // of keys and of values
  /// Tokens that a KV head holds, on average.
  int32_t kept() const;

  bool fusion = false;  // matrices that share inputs go into one kernel only if they have one scheme
  /// Sequences find scales of channels, in all formats: a cache that has scales in some layers has them in all.
  bool calibrates = false;
};

/// Limits on linear layers and caches together.
struct AllocationLimits {
  kvq_plan_goal goal = KVQ_PLAN_LOSS;
  double max_bytes = std::numeric_limits<double>::infinity();
  double max_seconds = std::numeric_limits<double>::infinity();
  double max_loss = std::numeric_limits<double>::infinity();
};

struct PlannedMatrix {
  llama::LinearLayer layer;
  std::string scheme;
  uint64_t bytes = 0;
  double loss = 0.0;
};

struct PlannedCacheLayer {
  std::string keys;
  std::string values;
  double loss = 0.0;
};

/// A scheme for every matrix, and formats for every layer.
struct ModelPlan {
  std::vector<PlannedMatrix> matrices;
  std::vector<PlannedCacheLayer> cache;  // of each layer; empty if caches were not planned
  uint64_t weight_bytes = 0;             // of linear layers, true to the byte
  uint64_t cache_bytes = 0;              // of all sequences when they hold their context, true to the byte
  uint64_t workspace_bytes = 0;          // of attention; not part of what limits are about
  uint64_t other_bytes = 0;              // what is not planned and takes memory too; 0: not asked for
  double cache_bits = 0.0;               // of a scalar
  double weight_loss = 0.0;              // expected divergence in nats
  double cache_loss = 0.0;
  bool calibrates = false;  // sequences of the cache find scales
  std::string eviction;     // METHOD:BUDGET; empty: none
  double eviction_loss = 0.0;
  double seconds = 0.0;  // of a step of decoding, all of it; 0: not known
  kvq_plan_goal goal = KVQ_PLAN_LOSS;
  double bound = 0.0;  // no plan has a smaller goal

  double loss() const { return weight_loss + cache_loss + eviction_loss; }
  uint64_t bytes() const { return weight_bytes + cache_bytes; }
  uint64_t total_bytes() const { return bytes() + workspace_bytes + other_bytes; }
  double weight_bits() const;  // of a weight
};

/// The policy of a planned cache as YAML.
std::string policy_text(const ModelPlan& plan);

/// The key of measurements of eviction.
std::string eviction_key(const std::string& method, double share);

/// Knows what linear layers and caches of a model can be, each option with what it costs and loses.
class BitAllocator {
 public:
  /// \param times  of the machine; nullptr: time does not count.
  BitAllocator(kvq_context* context, const llama::ModelConfig& config, const Measurements& known,
               const Latencies* times, AllocationRequest request);

  /// The best plan within limits.
  ModelPlan solve(const AllocationLimits& limits) const;
  /// The plan that gives every matrix one scheme, and every layer the same formats. What is not planned is ignored.
  ModelPlan uniform(const std::string& scheme, const std::string& keys, const std::string& values) const;
  /// Any plan, small or large: options of about the same rank by bytes.
  ModelPlan random(uint64_t seed) const;

 private:
  struct Option {
    double bytes;
    double seconds;
    double loss;
    std::vector<int32_t> picks;  // of matrices: their schemes; of a layer: its formats of keys and values
  };
  /// Options for matrices that share inputs, or for the cache of a layer.
  struct Choice {
    std::vector<int32_t> matrices;  // among matrices_; none: the cache of a layer
    std::vector<Option> options;
  };

  Option matrix_option(int32_t matrix, int32_t scheme) const;
  void add_matrices();
  void add_fused(const std::vector<int32_t>& matrices);
  void add_layers();
  void require_possible(const AllocationLimits& limits) const;
  double fixed_bytes() const;
  double fixed_seconds() const;
  double eviction_loss() const;
  ModelPlan plan_of(std::span<const int32_t> chosen) const;

  kvq_context* context_;
  llama::ModelConfig config_;
  const Measurements& known_;
  const Latencies* times_;
  AllocationRequest request_;
  std::vector<llama::LinearLayer> matrices_;
  std::vector<Choice> choices_;  // of matrices, then of layers
};

/// A plan that gives everything the same, and how it is called.
struct UniformPlan {
  std::string name;  // for example "tcx-3" or "gs2", or both
  ModelPlan plan;
};

/// All plans that give every matrix one scheme and every layer the same formats; keys and values have the same where
/// matrices are planned too.
std::vector<UniformPlan> uniform_plans(const BitAllocator& allocator, const AllocationRequest& request);

/// The one that loses least of those that take no more bytes and, where time counts, no more time; nothing if there is
/// none.
std::optional<UniformPlan> best_uniform(const std::vector<UniformPlan>& plans, const ModelPlan& plan);

/// The best plans of all sizes, from the smallest to the largest.
std::vector<ModelPlan> frontier(const BitAllocator& allocator);

}  // namespace cli
