// Finds centres of the keys and values of a model.
#pragma once

#include "formats/gain_shape/model_centres.h"
#include "training/layered_trainer.h"

namespace kvq {

using CentresTrainerOptions = LayeredTrainerOptions<CentresShape, int32_t>;

class CentresTrainer : public LayeredTrainer<ModelCentres> {
 public:
  CentresTrainer(Allocator& allocator, Parallel& parallel, Training& backend, const CentresTrainerOptions& options);

  /// Train a layer on its tokens, which are then dropped. Throws KVQ_E_STATE without tokens, KVQ_E_ARGUMENT with fewer
  /// tokens than centres, KVQ_E_CANCELLED.
  void run(int32_t layer, const TrainingProgress& progress);

 private:
  double train_side(const KeptTokens& tokens, Side side, uint64_t seed, const TrainingProgress& progress,
                    Vector<float>& centres);

  int32_t rounds_;  // over all tokens at most
};

}  // namespace kvq
