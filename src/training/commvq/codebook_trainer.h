// Turns the keys and values of a model into codebooks.
#pragma once

#include "formats/commvq/model_codebook.h"
#include "training/layered_trainer.h"

namespace kvq {

struct TrainingRounds {
  int32_t keys = 0;  // 0: as many as the algorithm's default
  int32_t values = 0;
};

using CodebookTrainerOptions = LayeredTrainerOptions<CodebookShape, TrainingRounds>;

class CodebookTrainer : public LayeredTrainer<ModelCodebook> {
 public:
  CodebookTrainer(Allocator& allocator, Parallel& parallel, Training& backend, const CodebookTrainerOptions& options);

  /// Take over the layers of an earlier result that are still missing here. Throws KVQ_E_MISMATCH if it was trained for
  /// something else.
  void resume(const ModelCodebook& earlier);

  /// Train a layer on what was added to it, which is then dropped. Throws KVQ_E_STATE without tokens,
  /// KVQ_E_ARGUMENT for numbers that nothing can be learned from, KVQ_E_CANCELLED.
  void run(int32_t layer, const TrainingProgress& progress);

 private:
  TrainingRounds rounds_;
};

}  // namespace kvq
