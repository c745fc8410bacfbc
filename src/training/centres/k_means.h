// Centres that leave little of vectors (k-means).
#pragma once

#include "core/memory.h"
#include "core/parallel.h"
#include "core/training_progress.h"
#include "training/centres/nearest_kernels.h"

#include <cstdint>
#include <span>

namespace kvq::centres {

/// Vectors in an order in which any first ones are a fair sample of all.
struct Vectors {
  const float* numbers;  // [n][dim]
  int32_t n;
  int32_t dim;

  const float* operator[](int32_t i) const { return numbers + static_cast<int64_t>(i) * dim; }
  Vectors first(int32_t count) const { return {numbers, count, dim}; }
};

struct KMeansOptions {
  int32_t rounds = 12;      // over all vectors, at most
  double tolerance = 1e-3;  // the share of the error that a round must take away for another one to follow
  uint64_t seed = 1;
};

/// Work space for clustering vectors of one size into a number of centres.
class KMeans {
 public:
  /// \param centres  1 to 256, at most as many as vectors.
  KMeans(Allocator& allocator, Parallel& parallel, const NearestKernels& kernels, int32_t centres,
         const Vectors& vectors);

  /// Centres [centres][dim]. What they are depends on the vectors and the options alone. Nothing on a cancellation.
  ///
  /// Begins with k-means++ on a sample, goes on with Lloyd's rounds on a larger one and then on all vectors.
  bool find(const KMeansOptions& options, const TrainingProgress& progress, Vector<float>& centres);

  /// Σ ‖x − c‖² with the nearest c of [centres][dim].
  double error(std::span<const float> centres);

 private:
  bool refine(const Vectors& vectors, int32_t rounds, double tolerance, const TrainingProgress& progress,
              Vector<float>& centres);
  void start(const Vectors& sample, Vector<float>& centres);
  double assign(const Vectors& vectors, std::span<const float> centres);
  void move_to_means(const Vectors& vectors, Vector<float>& centres);
  void revive(const Vectors& vectors, Vector<float>& centres);
  void measure(const Vectors& vectors, std::span<const float> centres);
  void lower_distances(const Vectors& vectors, const float* centre);
  bool draw(const Vectors& vectors, float* centre);
  uint64_t random();
  template <typename Use>
  void for_each_block(int32_t n, const Use& use);

  Parallel& parallel_;
  const NearestKernels& kernels_;
  int32_t n_centres_;
  Vectors vectors_;
  uint64_t seed_ = 0;
  uint64_t drawn_ = 0;        // numbers of this seed
  Vector<float> packed_;      // PackedCentres::numbers
  Vector<float> half_norms_;  // PackedCentres::half_norms
  Vector<uint8_t> nearest_;   // [n]
  Vector<float> distances_;   // [n] squared
  Vector<int32_t> order_;     // [n] vectors by centre
  Vector<int32_t> begins_;    // [centres + 1] in order_
};

}  // namespace kvq::centres
