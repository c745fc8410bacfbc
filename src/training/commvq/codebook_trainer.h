// Collects the keys and values of a model, layer by layer, and turns them into codebooks.
#pragma once

#include "backend/training.h"
#include "core/memory.h"
#include "core/parallel.h"
#include "formats/commvq/model_codebook.h"
#include "kvq.h"
#include "training/commvq/layer_trainer.h"
#include "training/kept_tokens.h"

#include <cstdint>
#include <string_view>

namespace kvq {

struct CodebookTrainerOptions {
  CodebookShape shape;
  TrainingRounds rounds;
  uint64_t seed = 1;
  uint64_t model_id = 0;
  uint64_t max_bytes = 0;  // of samples and work space
  std::string_view note;
};

class CodebookTrainer {
 public:
  /// \param allocator  of finished layers, and of everything else below `options.max_bytes`.
  CodebookTrainer(Allocator& allocator, Parallel& parallel, Training& backend, const CodebookTrainerOptions& options);

  /// Take over the layers of an earlier result that are still missing here. Throws KVQ_E_MISMATCH if it was trained for
  /// something else.
  void resume(const ModelCodebook& earlier);

  /// Keep a copy of n tokens' keys and values, [n, kv_heads, head_dim]; what a side without codes has is not read.
  void add(int32_t layer, int32_t n, const void* keys, const void* values, kvq_dtype dtype);

  /// Train a layer on what was added to it, which is then dropped. Throws KVQ_E_STATE without tokens; see
  /// train_layer_keys.
  void run(int32_t layer, const TrainingProgress& progress);

  /// With the layers that are finished.
  const ModelCodebook& result() const { return result_; }

 private:
  void require_unfinished(int32_t layer) const;

  Allocator& allocator_;
  Allocator work_;
  Parallel& parallel_;
  Training& backend_;
  TrainingRounds rounds_;
  ModelCodebook result_;
  Vector<KeptTokens> tokens_;  // [n_layers]
};

}  // namespace kvq
