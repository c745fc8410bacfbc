// Trains the codes of keys: stage by stage on residuals (CommVQ, appendix A.2), then all stages together.
#pragma once

#include "backend/training.h"
#include "core/memory.h"
#include "formats/commvq/key_encoder.h"

#include <cstdint>
#include <span>

namespace kvq {
namespace keys {

/// Σ W · ‖x − centre‖², given Σ W · ‖x‖².
double assignment_error(const KeyStatistics& statistics, const KeyEncoder& stage, double energy);

/// Find the codes z, [codes][group]{re, im}, that minimise Σ W·‖x − (z_a + i·z_b)‖² + floor · Σ ‖z − z before‖².
void fit_codes(const KeyStatistics& statistics, double floor, std::span<float> z);

/// Change the codes z, [stages][codes][group]{re, im}, of `encoder`, with which `sample` was encoded, to minimise
/// Σ weight · ‖key − Σ_r (z[r][a_r] + i·z[r][b_r])‖² + ridge · Σ ‖z − z before‖².
void refine_codes(Allocator& allocator, KeySample& sample, const KeyEncoder& encoder, double ridge, std::span<float> z);

}  // namespace keys

struct KeyTrainingOptions {
  int32_t tokens = 1 << 17;  ///< at most, drawn at random
  uint64_t seed = 1;

  // A stage: expectation-maximization from random tokens, first with soft assignments.
  int32_t soft_iterations = 10;
  float first_temperature = 1.0F;  ///< of the soft assignments, in units of the mean squared residual
  float last_temperature = 0.01F;
  float soft_share = 0.25F;  ///< of the tokens for soft iterations, which cost more and need less precision
  int32_t hard_iterations = 12;
  double count_floor = 1.0;  ///< pseudo-count of tokens at every code's old place, so that none is empty

  // All stages.
  int32_t rounds = 3;      ///< of least squares over all codes and encoding again
  int32_t beam = 2;        ///< of that encoding, and of reported errors
  double ridge = 0.3;      ///< pull towards the old codes, relative to the mean number of tokens of a code
  float held_out = 0.05F;  ///< share of the tokens, in runs, that rounds are evaluated on; 0: all tokens
};

/// Training data: n keys of one group, their divisors (null: 1) and weights (null: 1).
struct KeyTrainingData {
  KeyPairs keys;
  const float* norms = nullptr;
  const float* weights = nullptr;
  int32_t n = 0;
  int32_t group = 0;
};

struct KeyTrainingProgress {
  int32_t stage;      // number of stages while all are trained together
  int32_t iteration;  // of the stage, or round
  double error;       // Σ weight · ‖residual of the stages so far‖² / Σ weight · ‖key‖²
};

/// Called on the training thread; false stops.
struct KeyTrainingObserver {
  bool (*observe)(const KeyTrainingProgress& progress, void* user) = nullptr;
  void* user = nullptr;

  bool operator()(const KeyTrainingProgress& progress) const { return observe == nullptr || observe(progress, user); }
};

/// Trains one group of one head. A token costs 4·Nc·g multiply-adds and Nc² additions per iteration of a stage, 20 480
/// with 64 codes for 64 pairs, 45 056 if soft, and `beam` times as many per stage and round of refinement. The same
/// options and data give the same codes on any number of threads. Codes are z, [stages][codes][group]{re, im}.
class KeyTrainer {
 public:
  /// Copies the data. Throws KVQ_E_ARGUMENT, for instance for fewer tokens than codes.
  KeyTrainer(Allocator& allocator, Training& backend, int32_t codes, const KeyTrainingData& data,
             const KeyTrainingOptions& options);

  /// Append stages to `z`, which may have some. False if stopped: z has the finished stages.
  bool add_stages(int32_t stages, Vector<float>& z, const KeyTrainingObserver& observer = {});

  /// Improve all stages of z together; error() never rises. False if stopped: z is valid.
  bool refine(std::span<float> z, const KeyTrainingObserver& observer = {});

  /// Relative squared error of the held-out tokens, or of all without any, with the options' beam.
  double error(std::span<const float> z) const;
  /// The same after every stage, as decoded from the first one, the first two, … [stages].
  Vector<double> stage_errors(std::span<const float> z) const;

 private:
  /// Copied tokens.
  struct Sample {
    explicit Sample(Allocator& allocator)
        : vectors(allocator), weights(allocator), keys(nullptr, Deleter<KeySample>(allocator, 0, 0)) {}

    Vector<float> vectors;  // planar, in random order
    Vector<float> weights;
    int32_t n = 0;
    double energy = 0.0;
    Owned<KeySample> keys;  // null if there are none
  };

  void read(const KeyTrainingData& data);
  int32_t stages_of(std::span<const float> z) const;
  const Sample& judges() const { return held_out_.n > 0 ? held_out_ : training_; }
  bool train_stage(int32_t stage, Vector<float>& z, const KeyTrainingObserver& observer);
  double relative(double energy, const Sample& sample) const { return sample.energy > 0 ? energy / sample.energy : 0; }

  Allocator* allocator_;
  Training* backend_;
  int32_t codes_;
  int32_t group_;
  KeyTrainingOptions options_;
  Sample training_;
  Sample held_out_;
};

}  // namespace kvq
