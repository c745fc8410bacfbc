#include "training/centres/k_means.h"

#include "core/limits.h"
#include "core/splitmix.h"
#include "formats/gain_shape/model_centres.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

namespace kvq::centres {
namespace {

/// Vectors for each centre in the samples that k-means++ and the first rounds see.
constexpr int32_t kStartSample = 16;
constexpr int32_t kFirstSample = 64;
constexpr int32_t kFirstRounds = 20;
/// Of the time, the share that these take; all rounds over all vectors share the rest.
constexpr double kFirstShare = 0.3;

using Places = std::array<int32_t, kMaxCentres>;

constexpr int32_t kBlock = 512;  // vectors that a thread takes at once

size_t size(int32_t n) { return static_cast<size_t>(n); }

double squared_norm(const float* x, int32_t dim) {
  double sum = 0.0;
  for (int32_t i = 0; i < dim; ++i) sum += double{x[i]} * double{x[i]};
  return sum;
}

/// ‖x − y‖²; dim is a multiple of 8.
float squared_distance(const float* x, const float* y, int32_t dim) {
  std::array<float, 8> sums{};
  for (int32_t i = 0; i < dim; i += 8) {
    for (int32_t lane = 0; lane < 8; ++lane) {
      const float difference = x[i + lane] - y[i + lane];
      sums[size(lane)] += difference * difference;
    }
  }
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

}  // namespace

KMeans::KMeans(Allocator& allocator, Parallel& parallel, const NearestKernels& kernels, int32_t centres,
               const Vectors& vectors)
    : parallel_(parallel),
      kernels_(kernels),
      n_centres_(centres),
      vectors_(vectors),
      packed_(size(padded(centres)) * size(vectors.dim), StlAllocator<float>(allocator)),
      half_norms_(size(padded(centres)), HUGE_VALF, StlAllocator<float>(allocator)),
      nearest_(size(vectors.n), StlAllocator<uint8_t>(allocator)),
      distances_(size(vectors.n), StlAllocator<float>(allocator)),
      order_(size(vectors.n), StlAllocator<int32_t>(allocator)),
      begins_(size(centres) + 1, StlAllocator<int32_t>(allocator)) {}

bool KMeans::find(const KMeansOptions& options, const TrainingProgress& progress, Vector<float>& centres) {
  seed_ = options.seed;
  drawn_ = 0;
  centres.assign(size(n_centres_) * size(vectors_.dim), 0.0F);
  if (n_centres_ == 1) {
    move_to_means(vectors_, centres);
    return progress.report(1.0);
  }
  const auto sample = [&](int32_t of_centre) { return vectors_.first(std::min(of_centre * n_centres_, vectors_.n)); };
  start(sample(kStartSample), centres);
  const Vectors first = sample(kFirstSample);
  if (first.n < vectors_.n &&
      !refine(first, kFirstRounds, options.tolerance, progress.part(0.0, kFirstShare), centres)) {
    return false;
  }
  return refine(vectors_, options.rounds, options.tolerance, progress.part(kFirstShare, 1.0), centres) &&
         progress.report(1.0);
}

double KMeans::error(std::span<const float> centres) {
  assign(vectors_, centres);
  measure(vectors_, centres);
  return std::accumulate(distances_.begin(), distances_.end(), 0.0);
}

/// Lloyd's rounds. Centres end as the means of the vectors that were nearest to them before.
bool KMeans::refine(const Vectors& vectors, int32_t rounds, double tolerance, const TrainingProgress& progress,
                    Vector<float>& centres) {
  double energy = 0.0;
  for (int32_t i = 0; i < vectors.n; ++i) energy += squared_norm(vectors[i], vectors.dim);
  double before = HUGE_VAL;
  for (int32_t round = 0; round < rounds; ++round) {
    if (!progress.report(static_cast<double>(round) / rounds)) return false;
    const double error = energy + assign(vectors, centres);
    if (before - error <= tolerance * error) break;
    before = error;
    move_to_means(vectors, centres);
    revive(vectors, centres);
  }
  return true;
}

/// k-means++: every centre is a vector, drawn in proportion to its squared distance from the centres before it.
void KMeans::start(const Vectors& sample, Vector<float>& centres) {
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

/// The nearest centre of each vector, of equally near ones the first, and Σ (‖x − c‖² − ‖x‖²).
double KMeans::assign(const Vectors& vectors, std::span<const float> centres) {
  const auto dim = size(vectors.dim);
  for (size_t c = 0; c < size(n_centres_); ++c) {
    const float* centre = centres.data() + c * dim;
    half_norms_[c] = static_cast<float>(0.5 * squared_norm(centre, vectors.dim));
    float* packed = packed_.data() + c / kLanes * kLanes * dim + c % kLanes;
    for (size_t i = 0; i < dim; ++i) packed[i * kLanes] = centre[i];
  }
  const PackedCentres all{packed_.data(), half_norms_.data(), n_centres_, vectors.dim};
  for_each_block(vectors.n, [&](int32_t first, int32_t n) {
    kernels_.nearest(all, vectors[first], n, nearest_.data() + first, distances_.data() + first);
  });
  return 2.0 * std::accumulate(distances_.begin(), distances_.begin() + vectors.n, 0.0);
}

/// Every centre that has vectors moves to their mean, which one thread sums in the order of vectors.
void KMeans::move_to_means(const Vectors& vectors, Vector<float>& centres) {
  std::fill(begins_.begin(), begins_.end(), 0);
  for (int32_t i = 0; i < vectors.n; ++i) ++begins_[size_t{nearest_[size(i)]} + 1];
  std::partial_sum(begins_.begin(), begins_.end(), begins_.begin());
  Places next;
  std::copy_n(begins_.begin(), n_centres_, next.begin());
  for (int32_t i = 0; i < vectors.n; ++i) order_[size(next[nearest_[size(i)]]++)] = i;
  parallel_.run(n_centres_, [&](int32_t c) noexcept {
    const int32_t begin = begins_[size(c)];
    const int32_t end = begins_[size(c) + 1];
    if (begin == end) return;
    std::array<double, kMaxHeadDim> sums{};
    for (int32_t at = begin; at < end; ++at) {
      const float* x = vectors[order_[size(at)]];
      for (size_t i = 0; i < size(vectors.dim); ++i) sums[i] += double{x[i]};
    }
    float* centre = centres.data() + size(c) * size(vectors.dim);
    for (size_t i = 0; i < size(vectors.dim); ++i) centre[i] = static_cast<float>(sums[i] / (end - begin));
  });
}

/// Centres without vectors start anew, as in k-means++.
void KMeans::revive(const Vectors& vectors, Vector<float>& centres) {
  bool measured = false;
  for (int32_t c = 0; c < n_centres_; ++c) {
    if (begins_[size(c)] != begins_[size(c) + 1]) continue;
    if (!measured) measure(vectors, centres);
    measured = true;
    float* centre = centres.data() + size(c) * size(vectors.dim);
    if (!draw(vectors, centre)) return;
    lower_distances(vectors, centre);
  }
}

/// How far vectors are from the centres that they belong to.
void KMeans::measure(const Vectors& vectors, std::span<const float> centres) {
  for_each_block(vectors.n, [&](int32_t first, int32_t n) {
    for (int32_t i = first; i < first + n; ++i) {
      const float* centre = centres.data() + size_t{nearest_[size(i)]} * size(vectors.dim);
      distances_[size(i)] = squared_distance(vectors[i], centre, vectors.dim);
    }
  });
}

/// After a new centre.
void KMeans::lower_distances(const Vectors& vectors, const float* centre) {
  for_each_block(vectors.n, [&](int32_t first, int32_t n) {
    for (int32_t i = first; i < first + n; ++i) {
      const float distance = squared_distance(vectors[i], centre, vectors.dim);
      distances_[size(i)] = std::min(distances_[size(i)], distance);
    }
  });
}

/// Put a centre on a vector, drawn in proportion to its distance. False if all are on centres already.
bool KMeans::draw(const Vectors& vectors, float* centre) {
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

uint64_t KMeans::random() { return splitmix64(seed_, drawn_++); }

template <typename Use>
void KMeans::for_each_block(int32_t n, const Use& use) {
  parallel_.run((n + kBlock - 1) / kBlock, [&](int32_t i) noexcept {
    const int32_t first = i * kBlock;
    use(first, std::min(kBlock, n - first));
  });
}

}  // namespace kvq::centres
