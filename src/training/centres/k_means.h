// k-means clustering.
#pragma once

#include "backend/centre_sample.h"
#include "core/memory.h"
#include "core/parallel.h"
#include "core/splitmix.h"
#include "core/training_progress.h"

#include <cstdint>
#include <span>

namespace kvq::centres {

struct KMeansOptions {
  int32_t rounds = 8;       // over all vectors at most
  double tolerance = 1e-3;  // least relative gain of a round for another one to follow
  uint64_t seed = 1;
};

/// Work space for clustering vectors of one size into a number of centres.
class KMeans {
 public:
  /// \param sample   of the vectors, for this number of centres.
  /// \param centres  1 to 256, at most as many as vectors.
  KMeans(Allocator& allocator, Parallel& parallel, CentreSample& sample, int32_t centres, const CentreVectors& vectors);

  /// Find centres [centres][dim], which depend only on the vectors and the options. False on cancellation.
  ///
  /// Runs k-means++ on a sample, then Lloyd's rounds on a larger one and on all vectors.
  bool find(const KMeansOptions& options, const TrainingProgress& progress, Vector<float>& centres);

  /// Σ ‖x − c‖² with the nearest c of [centres][dim].
  double error(std::span<const float> centres) { return assign(vectors_, centres); }
  /// Σ ‖x‖².
  double energy();

 private:
  bool refine(const CentreVectors& vectors, int32_t rounds, double tolerance, const TrainingProgress& progress,
              Vector<float>& centres);
  void start(const CentreVectors& sample, Vector<float>& centres);
  double assign(const CentreVectors& vectors, std::span<const float> centres);
  void revive(const CentreVectors& vectors, Vector<float>& centres);
  void lower_distances(const CentreVectors& vectors, const float* centre);
  bool draw(const CentreVectors& vectors, float* centre);
  uint64_t random() { return splitmix64(seed_, drawn_++); }

  Parallel& parallel_;
  CentreSample& sample_;
  int32_t n_centres_;
  CentreVectors vectors_;
  uint64_t seed_ = 0;
  uint64_t drawn_ = 0;       // random numbers drawn from this seed
  Vector<float> distances_;  // [n] squared
  Vector<int32_t> counts_;   // [centres] vectors
};

}  // namespace kvq::centres
