#include "train/training.h"

#include <algorithm>

namespace kvq::cuda {
namespace {

/// Vectors whose products with all centres are in memory together.
constexpr int32_t kSearchVectors = 65536;

}  // namespace

DeviceCentreSample::DeviceCentreSample(Device& device, Allocator& allocator, int32_t centres,
                                       const CentreVectors& vectors)
    : device_(device),
      allocator_(allocator),
      n_centres_(centres),
      host_(vectors),
      vectors_(device, allocator, size(vectors.n, vectors.dim)),
      nearest_(device, allocator, size(vectors.n, 1)) {}

void DeviceCentreSample::reload() {
  const Call call(device_, Call::Reports::kNothing);
  upload(call, std::span<const float>(host_.numbers, vectors_.size()), vectors_.data());
  // A single centre is nearest to all.
  call.require(cudaMemsetAsync(nearest_.data(), 0, nearest_.size(), device_.stream()), "cudaMemsetAsync");
}

void DeviceCentreSample::assign(int32_t n, std::span<const float> centres, float* distances) {
  const Call call(device_, Call::Reports::kNothing);
  Vector<float> half_norms(size(n_centres_, 1), allocator_);
  for (size_t c = 0; c < half_norms.size(); ++c) {
    double sum = 0.0;
    for (const float x : centres.subspan(c * size(host_.dim, 1), size(host_.dim, 1))) sum += double{x} * double{x};
    half_norms[c] = static_cast<float>(0.5 * sum);
  }
  const int32_t most = std::min(n, kSearchVectors);
  const DeviceArray<float> numbers(device_, allocator_, centres.size());
  const DeviceArray<float> norms(device_, allocator_, half_norms.size());
  const DeviceArray<float> products(device_, allocator_, size(most, n_centres_));
  const DeviceArray<float> on_device(device_, allocator_, size(n, 1));
  upload(call, centres, numbers.data());
  upload(call, std::span<const float>(half_norms), norms.data());
  for (int32_t first = 0; first < n; first += most) {
    const NearestCentres search{.vectors = vectors_.from(size(first, host_.dim)),
                                .n = std::min(most, n - first),
                                .dim = host_.dim,
                                .centres = numbers.data(),
                                .half_norms = norms.data(),
                                .count = n_centres_,
                                .products = products.data(),
                                .nearest = nearest_.from(size(first, 1)),
                                .distances = on_device.from(size(first, 1))};
    call.require(launch_nearest_centres(search, device_.stream()), "kernel of training");
  }
  download(call, on_device.data(), std::span(distances, on_device.size()));
}

void DeviceCentreSample::move_to_means(int32_t n, std::span<float> centres, std::span<int32_t> counts) {
  const Call call(device_, Call::Reports::kNothing);
  const NearestCentres found{.vectors = vectors_.data(),
                             .n = n,
                             .dim = host_.dim,
                             .centres = nullptr,
                             .half_norms = nullptr,
                             .count = n_centres_,
                             .products = nullptr,
                             .nearest = nearest_.data(),
                             .distances = nullptr};
  const DeviceArray<double> sums =
      sum_on_device(device_, call, allocator_, n_centres_, host_.dim, n,
                    [&](double* parts, double* to) { return sum_nearest(found, parts, to, call.stream()); });
  Vector<uint8_t> nearest(size(n, 1), allocator_);
  download(call, nearest_.data(), std::span<uint8_t>(nearest));
  const Vector<double> of_centres = to_host(call, allocator_, sums);
  std::fill(counts.begin(), counts.end(), 0);
  for (const uint8_t centre : nearest) ++counts[centre];
  for (size_t i = 0; i < centres.size(); ++i) {
    const int32_t count = counts[i / size(host_.dim, 1)];
    if (count > 0) centres[i] = static_cast<float>(of_centres[i] / count);
  }
}

Owned<CentreSample> CudaTraining::make_centre_sample(Allocator& allocator, int32_t centres,
                                                     const CentreVectors& vectors) {
  const Call call(device_, Call::Reports::kNothing);
  return make_owned<DeviceCentreSample>(allocator, device_, allocator, centres, vectors);
}

}  // namespace kvq::cuda
