#include "training/centres/k_means.h"

#include "core/limits.h"
#include "core/sizes.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

namespace kvq::centres {
namespace {

/// Vectors per centre in the samples of k-means++ and of the first rounds.
constexpr int32_t kStartSample = 16;
constexpr int32_t kFirstSample = 64;
constexpr int32_t kFirstRounds = 20;
/// Share of the time of these; rounds over all vectors share the rest.
constexpr double kFirstShare = 0.3;

constexpr int32_t kVectorsOfTask = 512;

}  // namespace

KMeans::KMeans(Allocator& allocator, Parallel& parallel, CentreSample& sample, int32_t centres,
               const CentreVectors& vectors)
    : parallel_(parallel),
      sample_(sample),
      n_centres_(centres),
      vectors_(vectors),
      distances_(size(vectors.n), allocator),
      counts_(size(centres), allocator) {}

bool KMeans::find(const KMeansOptions& options, const TrainingProgress& progress, Vector<float>& centres) {
  seed_ = options.seed;
  drawn_ = 0;
  centres.assign(size(n_centres_, vectors_.dim), 0.0F);
  if (n_centres_ == 1) {
    sample_.move_to_means(vectors_.n, centres, counts_);
    return progress.report(1.0);
  }
  const auto sample = [&](int32_t of_centre) { return vectors_.first(std::min(of_centre * n_centres_, vectors_.n)); };
  start(sample(kStartSample), centres);
  const CentreVectors first = sample(kFirstSample);
  if (first.n < vectors_.n &&
      !refine(first, kFirstRounds, options.tolerance, progress.part(0.0, kFirstShare), centres)) {
    return false;
  }
  return refine(vectors_, options.rounds, options.tolerance, progress.part(kFirstShare, 1.0), centres) &&
         progress.report(1.0);
}

double KMeans::energy() {
  const std::array<float, kMaxHeadDim> zeros{};
  std::fill(distances_.begin(), distances_.end(), HUGE_VALF);
  lower_distances(vectors_, zeros.data());
  return std::accumulate(distances_.begin(), distances_.end(), 0.0);
}

/// Run Lloyd's rounds. Centres become the means of their nearest vectors.
bool KMeans::refine(const CentreVectors& vectors, int32_t rounds, double tolerance, const TrainingProgress& progress,
                    Vector<float>& centres) {
  double before = HUGE_VAL;
  for (int32_t round = 0; round < rounds; ++round) {
    if (!progress.report(static_cast<double>(round) / rounds)) return false;
    const double error = assign(vectors, centres);
    if (before - error <= tolerance * error) break;
    before = error;
    sample_.move_to_means(vectors.n, centres, counts_);
    revive(vectors, centres);
  }
  return true;
}

/// k-means++: every centre is a vector drawn with probability proportional to its squared distance from earlier
/// centres.
void KMeans::start(const CentreVectors& sample, Vector<float>& centres) {
  const auto dim = size(sample.dim);
  const uint64_t any = random() % static_cast<uint64_t>(sample.n);
  for (int32_t c = 0; c < n_centres_; ++c) {
    std::copy_n(sample[static_cast<int32_t>(any)], dim, centres.data() + size(c) * dim);
  }
  std::fill_n(distances_.begin(), sample.n, HUGE_VALF);
  for (int32_t c = 1; c < n_centres_; ++c) {
    lower_distances(sample, centres.data() + size(c - 1) * dim);
    if (!draw(sample, centres.data() + size(c) * dim)) return;
  }
}

/// Find the nearest centre of each vector and its distance; returns Σ ‖x − c‖².
double KMeans::assign(const CentreVectors& vectors, std::span<const float> centres) {
  sample_.assign(vectors.n, centres, distances_.data());
  return std::accumulate(distances_.begin(), distances_.begin() + vectors.n, 0.0);
}

/// Restart centres without vectors, as in k-means++.
void KMeans::revive(const CentreVectors& vectors, Vector<float>& centres) {
  for (int32_t c = 0; c < n_centres_; ++c) {
    if (counts_[size(c)] != 0) continue;
    float* centre = centres.data() + size(c) * size(vectors.dim);
    if (!draw(vectors, centre)) return;
    lower_distances(vectors, centre);
  }
}

/// Update distances after a new centre.
void KMeans::lower_distances(const CentreVectors& vectors, const float* centre) {
  parallel_.run((vectors.n + kVectorsOfTask - 1) / kVectorsOfTask, [&](int32_t task) noexcept {
    const int32_t end = std::min((task + 1) * kVectorsOfTask, vectors.n);
    for (int32_t i = task * kVectorsOfTask; i < end; ++i) {
      const float distance = squared_distance(vectors[i], centre, vectors.dim);
      distances_[size(i)] = std::min(distances_[size(i)], distance);
    }
  });
}

/// Put a centre on a vector drawn in proportion to its distance. False if all vectors are centres already.
bool KMeans::draw(const CentreVectors& vectors, float* centre) {
  const double total = std::accumulate(distances_.begin(), distances_.begin() + vectors.n, 0.0);
  const double place = static_cast<double>(random() >> 11U) * 0x1p-53 * total;
  double sum = 0.0;
  for (int32_t i = 0; i < vectors.n; ++i) {
    sum += double{distances_[size(i)]};
    if (sum <= place) continue;
    std::copy_n(vectors[i], vectors.dim, centre);
    return true;
  }
  return false;
}

}  // namespace kvq::centres
