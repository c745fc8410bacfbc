// Collects the keys and values of a model, layer by layer, and finds their centres.
#pragma once

#include "backend/training.h"
#include "core/memory.h"
#include "core/parallel.h"
#include "core/training_progress.h"
#include "formats/gain_shape/model_centres.h"
#include "kvq.h"
#include "training/kept_tokens.h"

#include <cstdint>
#include <string_view>

namespace kvq {

struct CentresTrainerOptions {
  CentresShape shape;
  int32_t rounds = 0;  // over all tokens, at most; 0: the algorithm's default
  uint64_t seed = 1;
  uint64_t model_id = 0;
  uint64_t max_bytes = 0;  // of tokens and work space
  std::string_view note;
};

class CentresTrainer {
 public:
  /// \param allocator  of finished layers, and of everything else below `options.max_bytes`.
  CentresTrainer(Allocator& allocator, Parallel& parallel, Training& backend, const CentresTrainerOptions& options);

  /// Keep a copy of n tokens' keys and values, [n, kv_heads, head_dim]; what a side without centres has is not read.
  void add(int32_t layer, int32_t n, const void* keys, const void* values, kvq_dtype dtype);

  /// Train a layer on what was added to it, which is then dropped. Throws KVQ_E_STATE without tokens, KVQ_E_ARGUMENT
  /// with fewer than centres, KVQ_E_CANCELLED.
  void run(int32_t layer, const TrainingProgress& progress);

  /// With the layers that are finished.
  const ModelCentres& result() const { return result_; }

 private:
  double train_side(const KeptTokens& tokens, Side side, uint64_t seed, const TrainingProgress& progress,
                    Vector<float>& centres);
  void require_unfinished(int32_t layer) const;

  Allocator& allocator_;
  Allocator work_;
  Parallel& parallel_;
  Training& backend_;
  int32_t rounds_;
  ModelCentres result_;
  Vector<KeptTokens> tokens_;  // [n_layers]
};

}  // namespace kvq
