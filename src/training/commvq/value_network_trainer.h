// Trains a network that proposes the bits of a value's code, and the code with it, by gradient descent.
#pragma once

#include "core/memory.h"
#include "core/parallel.h"
#include "formats/commvq/value_network.h"
#include "training/adamw.h"
#include "training/commvq/value_alternation.h"
#include "training/commvq/value_network_gradient.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvq {

struct NetworkTrainingOptions {
  static constexpr int32_t kStepsOfRound = 50;

  int32_t rounds = 40;  // of kStepsOfRound steps of the optimizer
  double rate = 4e-3;   // learning rate at first; it falls to 0
  double weight_decay = 0.01;
  double first_temperature = 2.0;  // of the softmax in gradients
  double last_temperature = 0.5;
  uint64_t seed = 1;
};

/// Draft of a network and its code of unit vectors.
struct NetworkDraft {
  NetworkDraft(Allocator& allocator, const NetworkLayout& layout_)
      : layout(layout_), parameters(layout_.total(), allocator) {}

  std::span<float> part(NetworkPart each) { return layout.part(std::span<float>(parameters), each); }
  std::span<const float> part(NetworkPart each) const { return layout.part(std::span<const float>(parameters), each); }
  ValueNetwork network() const;

  NetworkLayout layout;
  Vector<float> parameters;
};

/// Set a draft to the start of least squares: a code of two levels along each principal component of the targets, four
/// with 2 bits, and a network that finds the nearest ones up to the curvature of a GELU. One bit is always set: its row
/// is the constant that levels on both sides of a mean need.
void start_from_components(Allocator& allocator, ValueSample& targets, uint64_t seed, NetworkDraft& draft);

/// The result depends only on the options, the targets and the draft.
class NetworkTrainer {
 public:
  NetworkTrainer(Allocator& allocator, Parallel& parallel, const NetworkTrainingOptions& options,
                 const UnitVectors& targets, NetworkDraft& draft);

  /// Run the next round of steps, each for another batch of targets.
  void run_round();

  /// Mean squared error of the held-out targets with the bits that the network proposes, decoded to unit length.
  double held_out_error() const;

  /// Scale the code, whose meaning does not depend on length, to decode to vectors of about unit length.
  void normalize_code();

 private:
  /// Decoded held-out targets: their errors, and their lengths before normalization.
  struct Decoded {
    double error = 0;
    double length = 0;
  };

  void run_step(size_t step);
  Decoded decode_held_out() const;

  Allocator& allocator_;
  Parallel& parallel_;
  NetworkTrainingOptions options_;
  const UnitVectors& targets_;
  NetworkDraft& draft_;
  NetworkGradient<float> batch_;
  AdamW optimizer_;
  Vector<float> gradient_;
  Vector<float> gumbel_;  // quantiles of the distribution
  size_t steps_done_ = 0;
};

}  // namespace kvq
