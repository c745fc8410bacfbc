// The routers of all groups of layers of a model, trained side by side.
#pragma once

#include "core/parallel.h"
#include "core/training_progress.h"
#include "formats/router/router.h"
#include "training/router/network_training.h"
#include "training/router/page_labels.h"

#include <cstdint>
#include <span>

namespace kvq {

/// Training data of a model's routers.
struct RouterSamples {
  explicit RouterSamples(Allocator& allocator) : pages(allocator), errors(allocator) {}

  Vector<RouterPages> pages;   // [groups]
  Vector<GroupErrors> errors;  // [groups]; without errors for the paper's loss
};

struct RouterTrainingOptions {
  int32_t epochs = 0;  // 0: the algorithm's default
  double learning_rate = 3e-4;
};

/// Fill `router`, whose experts and shape are given, with networks and their figures. With labels, `wanted` is the mean
/// of bits that pages should have; with the paper's loss, `nll` is the model's and `router.lambda` is set. Throws
/// KVQ_E_CANCELLED.
void train_on_labels(Allocator& work, Parallel& parallel, const RouterSamples& samples, double wanted,
                     const RouterTrainingOptions& options, const TrainingProgress& progress, ModelRouter& router);
void train_on_paper_loss(Allocator& work, Parallel& parallel, const RouterSamples& samples, double nll,
                         const RouterTrainingOptions& options, const TrainingProgress& progress, ModelRouter& router);

}  // namespace kvq
