#include "train/training.h"

#include <algorithm>
#include <array>
#include <numeric>

namespace kvq::cuda {
namespace {

/// Keys that are searched for together, which bounds the memory of sums of centres.
constexpr int32_t kSearchKeys = 32768;

/// Right side of code c from the vectors with codes a and b of a stage: Σ_b s_cb − i·Σ_a s_ac.
/// `vectors`: {a, b}[codes][length].
template <typename Use>
void for_each_moment(const double* vectors, int32_t codes, int32_t group, int32_t length, const Use& use) {
  const size_t plane = static_cast<size_t>(length) / 2;
  for (int32_t c = 0; c < codes; ++c) {
    const double* of_a = vectors + size(c, length);
    const double* of_b = vectors + size(codes + c, length);
    for (size_t j = 0; j < static_cast<size_t>(group); ++j) {
      use(of_a[j] + of_b[plane + j], of_a[plane + j] - of_b[j]);
    }
  }
}

}  // namespace

/// Codes in device memory.
class DeviceKeySample::Codes {
 public:
  Codes(Device& device, const Call& call, Allocator& allocator, const KeyEncoder& encoder)
      : rows_(device, allocator, size(encoder.stages() * encoder.codes(), 2 * keys::padded(encoder.group()))),
        norms_(device, allocator, size(encoder.stages() * encoder.codes(), encoder.width())),
        codes_{.rows = rows_.data(),
               .norms = norms_.data(),
               .stages = encoder.stages(),
               .codes = encoder.codes(),
               .width = encoder.width(),
               .length = 2 * keys::padded(encoder.group())} {
    upload(call, std::span(encoder.code(0, 0), rows_.size()), rows_.data());
    upload(call, std::span(encoder.norms(0), norms_.size()), norms_.data());
  }

  const KeyCodes& all() const { return codes_; }

 private:
  DeviceArray<float> rows_;
  DeviceArray<float> norms_;
  KeyCodes codes_;
};

DeviceKeySample::DeviceKeySample(Device& device, const Call& call, Allocator& allocator, const KeyVectors& keys)
    : device_(device),
      allocator_(allocator),
      n_(keys.n),
      length_(2 * keys::padded(keys.group)),
      keys_(device, allocator, keys.numbers.size()),
      rest_(device, allocator, keys.numbers.size()),
      weights_(device, allocator, keys.weights.size()),
      host_indices_(allocator) {
  upload(call, keys.numbers, keys_.data());
  upload(call, keys.numbers, rest_.data());
  upload(call, keys.weights, weights_.data());
}

void DeviceKeySample::restore() {
  const Call call(device_, Call::Reports::kNothing);
  call.require(cudaMemcpyAsync(rest_.data(), keys_.data(), keys_.size() * sizeof(float), cudaMemcpyDeviceToDevice,
                               device_.stream()),
               "cudaMemcpyAsync");
}

double DeviceKeySample::energy(int32_t n) { return energy(n, weights()); }

double DeviceKeySample::plain_energy() { return energy(n_, nullptr); }

double DeviceKeySample::energy(int32_t n, const float* weights) {
  const Call call(device_, Call::Reports::kNothing);
  const DeviceArray<double> parts(device_, allocator_, kEnergyParts);
  call.require(launch_key_energy(rest_.data(), weights, length_, n, parts.data(), device_.stream()),
               "kernel of training");
  std::array<double, kEnergyParts> sums;
  download(call, parts.data(), std::span<double>(sums));
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

void DeviceKeySample::read(std::span<const int32_t> keys, float* vectors) {
  const Call call(device_, Call::Reports::kNothing);
  for (const int32_t key : keys) {
    call.require(cudaMemcpyAsync(vectors, rest_.from(size(key, length_)), size(1, length_) * sizeof(float),
                                 cudaMemcpyDeviceToHost, device_.stream()),
                 "cudaMemcpyAsync");
    vectors += length_;
  }
  call.require(cudaStreamSynchronize(device_.stream()), "cudaStreamSynchronize");
}

void DeviceKeySample::require_indices(int32_t stages) {
  const size_t n = 2 * size(n_, stages);
  if (indices_ && indices_->size() == n) return;
  indices_.reset();
  indices_.emplace(device_, allocator_, n);
}

KeyChoices DeviceKeySample::choices(int32_t stages, int32_t codes) const {
  return {.indices = indices_->data(), .weights = weights(), .stages = stages, .codes = codes};
}

/// Finds the indices of all keys, part by part.
void DeviceKeySample::search(const Call& call, const KeyCodes& codes, int32_t beam, bool keep_rest) {
  const cudaStream_t stream = device_.stream();
  const int32_t most = std::min(n_, kSearchKeys);
  const size_t rows = size(most, beam);
  const DeviceArray<float> vectors[2] = {{device_, allocator_, rows * static_cast<size_t>(length_)},
                                         {device_, allocator_, rows * static_cast<size_t>(length_)}};
  const DeviceArray<float> energies[2] = {{device_, allocator_, rows}, {device_, allocator_, rows}};
  const DeviceArray<float> products(device_, allocator_, rows * 2 * static_cast<size_t>(codes.codes));
  const DeviceArray<KeyStep> steps(device_, allocator_, rows * static_cast<size_t>(codes.stages));
  require_indices(codes.stages);
  for (int32_t first = 0; first < n_; first += most) {
    const int32_t n = std::min(most, n_ - first);
    const float* left = rest_.from(size(first, length_));
    call.require(cudaMemsetAsync(energies[0].data(), 0, size(n, 1) * sizeof(float), stream), "cudaMemsetAsync");
    const float* left_energies = energies[0].data();
    for (int32_t stage = 0; stage < codes.stages; ++stage) {
      const int32_t live = codes.live(stage, beam);
      const int32_t to = (stage + 1) % 2;
      const KeySearch step{.codes = codes.stage(stage),
                           .n = n,
                           .live = live,
                           .next_live = codes.live(stage + 1, beam),
                           .vectors = left,
                           .products = products.data(),
                           .energies = left_energies,
                           .next_vectors = vectors[to].data(),
                           .next_energies = energies[to].data(),
                           .steps = steps.from(size(stage, n) * static_cast<size_t>(beam))};
      call.require(launch_key_products(step.codes, left, n * live, products.data(), stream), "kernel of training");
      call.require(launch_key_step(step, stream), "kernel of training");
      left = step.next_vectors;
      left_energies = step.next_energies;
    }
    const KeySearchEnd end{.codes = codes,
                           .n = n,
                           .beam = beam,
                           .vectors = left,
                           .energies = left_energies,
                           .steps = steps.data(),
                           .rest = keep_rest ? rest_.from(size(first, length_)) : nullptr,
                           .indices = indices_->from(2 * size(first, codes.stages))};
    call.require(launch_key_search_end(end, stream), "kernel of training");
  }
}

void DeviceKeySample::assign_nearest(const KeyEncoder& stage, KeyStatistics& statistics) {
  const Call call(device_, Call::Reports::kNothing);
  const cudaStream_t stream = device_.stream();
  const Codes codes(device_, call, allocator_, stage);
  search(call, codes.all(), 1, false);
  const KeyChoices chosen = choices(1, stage.codes());
  const DeviceArray<double> vectors =
      sum_on_device(device_, call, allocator_, chosen.lines(), length_, n_, [&](double* parts, double* sums) {
        return sum_chosen_vectors(chosen, rest_.data(), length_, n_, parts, sums, stream);
      });
  const DeviceArray<double> pairs =
      sum_on_device(device_, call, allocator_, stage.codes(), stage.codes(), n_,
                    [&](double* parts, double* sums) { return sum_chosen_pairs(chosen, n_, parts, sums, stream); });
  const Vector<double> of_codes = to_host(call, allocator_, vectors);
  download(call, pairs.data(), std::span<double>(statistics.counts));
  double* moment = statistics.moments.data();
  for_each_moment(of_codes.data(), stage.codes(), stage.group(), length_, [&](double real, double imaginary) {
    *moment++ = real;
    *moment++ = imaginary;
  });
}

void DeviceKeySample::assign_softly(const KeyEncoder& stage, const SoftKernel& kernel, int32_t n,
                                    KeyStatistics& statistics) {
  const Call call(device_, Call::Reports::kNothing);
  const cudaStream_t stream = device_.stream();
  const Codes codes(device_, call, allocator_, stage);
  const DeviceArray<float> norms(device_, allocator_, kernel.norms.size());
  const DeviceArray<float> k(device_, allocator_, kernel.k.size());
  const DeviceArray<float> transposed(device_, allocator_, kernel.transposed.size());
  upload(call, std::span<const float>(kernel.norms), norms.data());
  upload(call, std::span<const float>(kernel.k), k.data());
  upload(call, std::span<const float>(kernel.transposed), transposed.data());
  const size_t numbers = 2 * size(n, stage.codes());
  const DeviceArray<float> products(device_, allocator_, numbers);
  const DeviceArray<float> factors(device_, allocator_, numbers);
  const DeviceArray<float> sums_of_w(device_, allocator_, numbers);
  const DeviceArray<float> far_weights(device_, allocator_, size(n, 1));
  require_indices(1);
  const SoftKeys soft{.stage = codes.all(),
                      .scale = kernel.scale,
                      .code_norms = norms.data(),
                      .k = k.data(),
                      .transposed = transposed.data(),
                      .n = n,
                      .weights = weights(),
                      .products = products.data(),
                      .factors = factors.data(),
                      .sums = sums_of_w.data(),
                      .indices = indices_->data(),
                      .far_weights = far_weights.data()};
  call.require(launch_key_products(soft.stage, rest_.data(), n, products.data(), stream), "kernel of training");
  call.require(launch_soft_keys(soft, kLeastSoftSum, stream), "kernel of training");

  KeyChoices far = choices(1, stage.codes());
  far.weights = far_weights.data();
  const DeviceArray<double> vectors = sum_on_device(
      device_, call, allocator_, far.lines(), length_, n,
      [&](double* parts, double* sums) { return sum_soft_vectors(soft, rest_.data(), parts, sums, stream); });
  const DeviceArray<double> pairs =
      sum_on_device(device_, call, allocator_, stage.codes(), stage.codes(), n,
                    [&](double* parts, double* sums) { return sum_soft_pairs(soft, parts, sums, stream); });
  const DeviceArray<double> far_pairs =
      sum_on_device(device_, call, allocator_, stage.codes(), stage.codes(), n,
                    [&](double* parts, double* sums) { return sum_chosen_pairs(far, n, parts, sums, stream); });

  const Vector<double> of_codes = to_host(call, allocator_, vectors);
  const Vector<double> of_far = to_host(call, allocator_, far_pairs);
  download(call, pairs.data(), std::span<double>(statistics.counts));
  for (int32_t a = 0; a < stage.codes(); ++a) {
    for (int32_t b = 0; b < stage.codes(); ++b) {
      const size_t at = size(a, stage.codes()) + static_cast<size_t>(b);
      const float factor = kernel.k[size(a, stage.width()) + static_cast<size_t>(b)];
      statistics.counts[at] = statistics.counts[at] * double{factor} + of_far[at];
    }
  }
  double* moment = statistics.moments.data();
  for_each_moment(of_codes.data(), stage.codes(), stage.group(), length_, [&](double real, double imaginary) {
    *moment++ = real;
    *moment++ = imaginary;
  });
}

void DeviceKeySample::encode(const KeyEncoder& encoder, int32_t beam) {
  const Call call(device_, Call::Reports::kNothing);
  const Codes codes(device_, call, allocator_, encoder);
  search(call, codes.all(), beam, true);
}

std::span<const uint8_t> DeviceKeySample::indices() {
  const Call call(device_, Call::Reports::kNothing);
  host_indices_.resize(indices_->size());
  download(call, indices_->data(), std::span<uint8_t>(host_indices_));
  return host_indices_;
}

void DeviceKeySample::add_equations(const KeyEncoder& encoder, std::span<std::complex<double>> system,
                                    std::span<std::complex<double>> sides) {
  const Call call(device_, Call::Reports::kNothing);
  const cudaStream_t stream = device_.stream();
  const KeyChoices chosen = choices(encoder.stages(), encoder.codes());
  const int32_t lines = chosen.lines();
  {
    const DeviceArray<double> pairs =
        sum_on_device(device_, call, allocator_, lines, lines, n_,
                      [&](double* parts, double* sums) { return sum_all_pairs(chosen, n_, parts, sums, stream); });
    const DeviceArray<double> blocks(device_, allocator_, 2 * system.size());
    call.require(launch_key_system(pairs.data(), encoder.stages(), encoder.codes(), blocks.data(), stream),
                 "kernel of training");
    download(call, blocks.data(), std::span(reinterpret_cast<double*>(system.data()), blocks.size()));
  }
  const DeviceArray<double> vectors =
      sum_on_device(device_, call, allocator_, lines, length_, n_, [&](double* parts, double* sums) {
        return sum_chosen_vectors(chosen, rest_.data(), length_, n_, parts, sums, stream);
      });
  const Vector<double> of_codes = to_host(call, allocator_, vectors);
  std::complex<double>* side = sides.data();
  for (int32_t stage = 0; stage < encoder.stages(); ++stage) {
    const double* of_stage = of_codes.data() + 2 * size(stage * encoder.codes(), length_);
    for_each_moment(of_stage, encoder.codes(), encoder.group(), length_, [&](double real, double imaginary) {
      *side++ = {real, imaginary};
    });
  }
}

Owned<KeySample> CudaTraining::make_key_sample(Allocator& allocator, const KeyVectors& keys) {
  const Call call(device_, Call::Reports::kNothing);
  return make_owned<DeviceKeySample>(allocator, device_, call, allocator, keys);
}

}  // namespace kvq::cuda
