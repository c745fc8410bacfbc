// Finds centres and scales of the keys and values of a model.
#pragma once

#include "core/rope.h"
#include "formats/channel_scales.h"
#include "formats/gain_shape/model_centres.h"
#include "training/centres/weight_energies.h"
#include "training/layered_trainer.h"

#include <span>

namespace kvq {

struct CentresTrainerOptions : LayeredTrainerOptions<CentresShape, int32_t> {
  // Of scales.
  bool fold = false;  // into weights
  bool powers_of_two = false;
  int32_t rotary_dim = 0;  // 0: all channels
  float rope_base = 10000.0F;
  const float* inv_freq = nullptr;  // null: those of the base
};

class CentresTrainer : public LayeredTrainer<ModelCentres> {
 public:
  CentresTrainer(Allocator& allocator, Parallel& parallel, Training& backend, const CentresTrainerOptions& options);

  /// Count n tokens' queries before RoPE, [n, q_heads, head_dim], for scales of keys.
  void add_queries(int32_t layer, int32_t n, int32_t q_heads, const void* queries, kvq_dtype dtype);
  /// Take what a layer's weights say; replaces what earlier ones said.
  void add_weights(int32_t layer, const kvq_attention_weights& weights);

  /// Train a layer on its tokens and weights, which are then dropped. Throws KVQ_E_STATE without what it needs,
  /// KVQ_E_ARGUMENT with fewer tokens than centres, KVQ_E_CANCELLED.
  void run(int32_t layer, const TrainingProgress& progress);

 private:
  /// What scales are found from, apart from tokens.
  struct Sources {
    explicit Sources(Allocator& allocator) : queries(allocator), weights(allocator) {}

    Vector<double> queries;  // [kv_heads][head_dim] sums of squares; empty: none
    centres::WeightEnergies weights;
  };

  void require_scales() const;
  bool scales(Side side) const;
  ChannelEnergies energies_of(int32_t layer, Side side, const KeptTokens& tokens, int32_t head,
                              std::span<double> offsets);
  ChannelSpread find_scales(int32_t layer, Side side, const KeptTokens& tokens, LayerCentres& numbers);
  double train_side(const KeptTokens& tokens, Side side, uint64_t seed, const TrainingProgress& progress,
                    LayerCentres& numbers);

  int32_t rounds_;  // over all tokens at most
  Rope rope_;
  bool fold_;
  bool powers_of_two_;
  Vector<Sources> sources_;  // [n_layers], or empty without scales
};

}  // namespace kvq
