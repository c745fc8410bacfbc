#include "backend/cpu/training/centre_sample.h"

#include "backend/cpu/training/host_training.h"
#include "core/limits.h"
#include "core/sizes.h"
#include "formats/gain_shape/model_centres.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

namespace kvq::cpu {
namespace {

using centres::kLanes;

constexpr int32_t kBlock = 512;  // vectors taken by a thread at once

double squared_norm(const float* x, int32_t dim) {
  double sum = 0.0;
  for (int32_t i = 0; i < dim; ++i) sum += double{x[i]} * double{x[i]};
  return sum;
}

}  // namespace

HostCentreSample::HostCentreSample(Allocator& allocator, Parallel& parallel, int32_t centres,
                                   const CentreVectors& vectors, const centres::NearestKernels& kernels)
    : parallel_(parallel),
      kernels_(kernels),
      n_centres_(centres),
      vectors_(vectors),
      packed_(size(centres::padded(centres), vectors.dim), allocator),
      half_norms_(size(centres::padded(centres)), HUGE_VALF, allocator),
      nearest_(size(vectors.n), allocator),
      order_(size(vectors.n), allocator),
      begins_(size(centres) + 1, allocator) {}

void HostCentreSample::assign(int32_t n, std::span<const float> centres, float* distances) {
  const auto dim = size(vectors_.dim);
  for (size_t c = 0; c < size(n_centres_); ++c) {
    const float* centre = centres.data() + c * dim;
    half_norms_[c] = static_cast<float>(0.5 * squared_norm(centre, vectors_.dim));
    float* packed = packed_.data() + c / kLanes * kLanes * dim + c % kLanes;
    for (size_t i = 0; i < dim; ++i) packed[i * kLanes] = centre[i];
  }
  const centres::PackedCentres all{packed_.data(), half_norms_.data(), n_centres_, vectors_.dim};
  parallel_.run((n + kBlock - 1) / kBlock, [&](int32_t block) noexcept {
    const int32_t first = block * kBlock;
    const int32_t end = std::min(first + kBlock, n);
    kernels_.nearest(all, vectors_[first], end - first, nearest_.data() + first);
    for (int32_t i = first; i < end; ++i) {
      const float* centre = centres.data() + size_t{nearest_[size(i)]} * dim;
      distances[i] = squared_distance(vectors_[i], centre, vectors_.dim);
    }
  });
}

/// One thread sums each mean, in the order of vectors.
void HostCentreSample::move_to_means(int32_t n, std::span<float> centres, std::span<int32_t> counts) {
  std::fill(begins_.begin(), begins_.end(), 0);
  for (int32_t i = 0; i < n; ++i) ++begins_[size_t{nearest_[size(i)]} + 1];
  std::copy_n(begins_.begin() + 1, n_centres_, counts.begin());
  std::partial_sum(begins_.begin(), begins_.end(), begins_.begin());
  std::array<int32_t, kMaxCentres> next;
  std::copy_n(begins_.begin(), n_centres_, next.begin());
  for (int32_t i = 0; i < n; ++i) order_[size(next[nearest_[size(i)]]++)] = i;
  parallel_.run(n_centres_, [&](int32_t c) noexcept {
    const int32_t begin = begins_[size(c)];
    const int32_t end = begins_[size(c) + 1];
    if (begin == end) return;
    std::array<double, kMaxHeadDim> sums{};
    for (int32_t at = begin; at < end; ++at) {
      const float* x = vectors_[order_[size(at)]];
      for (size_t i = 0; i < size(vectors_.dim); ++i) sums[i] += double{x[i]};
    }
    float* centre = centres.data() + size(c) * size(vectors_.dim);
    for (size_t i = 0; i < size(vectors_.dim); ++i) centre[i] = static_cast<float>(sums[i] / (end - begin));
  });
}

Owned<CentreSample> HostTraining::make_centre_sample(Allocator& allocator, int32_t centres,
                                                     const CentreVectors& vectors) {
  return make_owned<HostCentreSample>(allocator, allocator, parallel_, centres, vectors);
}

}  // namespace kvq::cpu
