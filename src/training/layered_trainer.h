// Base of trainers of codebooks and centres: collects keys and values, and keeps the trained layers.
#pragma once

#include "backend/training.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/parallel.h"
#include "core/splitmix.h"
#include "core/training_progress.h"
#include "formats/gain_shape/model_centres.h"
#include "kvq.h"
#include "training/kept_tokens.h"

#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

namespace kvq {

template <typename Shape, typename Rounds>
struct LayeredTrainerOptions {
  Shape shape;
  Rounds rounds{};  // 0: the algorithm's default
  uint64_t seed = 1;
  uint64_t model_id = 0;
  uint64_t max_bytes = 0;  // of tokens and work space
  std::string_view note;
};

template <typename Model>
class LayeredTrainer {
 public:
  /// Keep a copy of n tokens' keys and values, [n, kv_heads, head_dim]. A side that is not trained is not read.
  void add(int32_t layer, int32_t n, const void* keys, const void* values, kvq_dtype dtype) {
    require_unfinished(layer);
    const LayerCentres* scales =
        scales_ != nullptr ? scales_->layers[static_cast<size_t>(layer)].numbers.get() : nullptr;
    tokens_[static_cast<size_t>(layer)].add(n, trains(Side::kKeys) ? keys : nullptr,
                                            trains(Side::kValues) ? values : nullptr, dtype, scales);
  }
  bool trains(Side side) const { return side == Side::kKeys ? trains_keys_ : trains_values_; }
  /// Result with the finished layers.
  const Model& result() const { return result_; }

 protected:
  /// \param allocator  of finished layers, and of everything else below `options.max_bytes`.
  template <typename Options>
  LayeredTrainer(Allocator& allocator, Parallel& parallel, Training& backend, const Options& options, bool trains_keys,
                 bool trains_values)
      : allocator_(allocator),
        work_(allocator, options.max_bytes, "trainer"),
        parallel_(parallel),
        backend_(backend),
        result_(allocator, options.shape),
        trains_keys_(trains_keys),
        trains_values_(trains_values),
        tokens_(static_cast<size_t>(options.shape.n_layers), no_tokens(), work_) {
    result_.seed = options.seed;
    result_.model_id = options.model_id;
    result_.note = options.note;
  }

  /// The tokens to train a layer on. Throws KVQ_E_STATE without any, and if the layer is finished.
  const KeptTokens& tokens_of(int32_t layer) const {
    require_unfinished(layer);
    const KeptTokens& tokens = tokens_[static_cast<size_t>(layer)];
    if (tokens.tokens() == 0) fail(KVQ_E_STATE, "layer %d has no tokens to train on", layer);
    return tokens;
  }
  /// The same, of which there may be none.
  const KeptTokens& any_tokens_of(int32_t layer) const {
    require_unfinished(layer);
    return tokens_[static_cast<size_t>(layer)];
  }
  /// Layers may be trained in any order.
  uint64_t seed_of(int32_t layer) const { return splitmix64(result_.seed, static_cast<uint64_t>(layer)); }
  TrainingProgress part_of(Side side, const TrainingProgress& progress) const {
    const double middle = !trains_keys_ ? 0.0 : trains_values_ ? 0.5 : 1.0;
    return side == Side::kKeys ? progress.part(0.0, middle) : progress.part(middle, 1.0);
  }
  /// Drops the layer's tokens.
  void finish(int32_t layer, typename Model::Layer&& trained) {
    result_.layers[static_cast<size_t>(layer)] = std::move(trained);
    tokens_[static_cast<size_t>(layer)] = no_tokens();
  }
  void require_unfinished(int32_t layer) const {
    if (result_.layers[static_cast<size_t>(layer)].numbers == nullptr) return;
    fail(KVQ_E_STATE, "layer %d is finished", layer);
  }

  Allocator& allocator_;
  Allocator work_;
  Parallel& parallel_;
  Training& backend_;
  Model result_;
  std::shared_ptr<const ModelCentres> scales_;  // of added tokens; null: as they are

 private:
  KeptTokens no_tokens() {
    return {work_, static_cast<size_t>(result_.shape.kv_heads) * static_cast<size_t>(result_.shape.head_dim)};
  }

  bool trains_keys_;
  bool trains_values_;
  Vector<KeptTokens> tokens_;  // [n_layers]
};

}  // namespace kvq
