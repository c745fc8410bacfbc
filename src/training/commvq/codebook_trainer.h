// Turns the keys and values of a model into codebooks.
#pragma once

#include "formats/commvq/model_codebook.h"
#include "training/layered_trainer.h"

namespace kvq {

struct TrainingRounds {
  int32_t keys = 0;  // 0: the algorithm's default
  int32_t values = 0;
};

struct CodebookTrainerOptions : LayeredTrainerOptions<CodebookShape, TrainingRounds> {
  std::shared_ptr<const ModelCentres> scales;  // or null
};

class CodebookTrainer : public LayeredTrainer<ModelCodebook> {
 public:
  CodebookTrainer(Allocator& allocator, Parallel& parallel, Training& backend, const CodebookTrainerOptions& options);

  /// Take over missing layers from an earlier result. Throws KVQ_E_MISMATCH unless it was trained for the same.
  void resume(const ModelCodebook& earlier);

  /// Train a layer on its tokens, which are then dropped. Throws KVQ_E_STATE without tokens, KVQ_E_ARGUMENT for
  /// unusable numbers, KVQ_E_CANCELLED.
  void run(int32_t layer, const TrainingProgress& progress);

 private:
  TrainingRounds rounds_;
};

}  // namespace kvq
