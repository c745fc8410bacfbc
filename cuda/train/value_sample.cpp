#include "train/training.h"

#include <algorithm>
#include <cmath>

namespace kvq::cuda {
namespace {

/// Vectors that are encoded together, which bounds the memory of a search.
constexpr int32_t kSearchValues = 8192;

}  // namespace

/// A code in device memory; prepare() computes the tables of a search.
class DeviceValueSample::Code {
 public:
  Code(Device& device, const Call& call, Allocator& allocator, const ValueCode& code)
      : device_(device),
        numbers_(device, allocator,
                 code.codes.size() + code.offset.size() + code.proposal.size() + code.proposal_bias.size()) {
    float* next = numbers_.data();
    const auto put = [&](std::span<const float> array) {
      upload(call, array, next);
      next += array.size();
      return next - array.size();
    };
    code_.width = code.width;
    code_.bits = code.bits;
    code_.stages = (code.bits + code.width - 1) / code.width;
    code_.codes = put(code.codes);
    code_.offset = put(code.offset);
    code_.proposal = put(code.proposal);
    code_.proposal_bias = put(code.proposal_bias);
  }

  const DeviceValueCode& prepare(const Call& call, Allocator& allocator) {
    const size_t bits = size(code_.bits, 1);
    made_.emplace(device_, allocator, bits * (bits + 1) + size(code_.stages, code_.width + code_.bits));
    norms_.emplace(device_, allocator, size(code_.stages, 1));
    code_.gram = made_->data();
    code_.half_norms = code_.gram + bits * bits;
    code_.offsets = code_.half_norms + bits;
    code_.offset_products = code_.offsets + size(code_.stages, code_.width);
    code_.offset_norms = norms_->data();
    call.require(launch_prepare_code(code_, device_.stream()), "kernel of training");
    return code_;
  }

  const DeviceValueCode& get() const { return code_; }

 private:
  Device& device_;
  DeviceArray<float> numbers_;
  std::optional<DeviceArray<float>> made_;
  std::optional<DeviceArray<double>> norms_;
  DeviceValueCode code_{};
};

DeviceValueSample::DeviceValueSample(Device& device, Allocator& allocator, size_t width, size_t tokens, size_t held_out)
    : device_(device),
      allocator_(allocator),
      width_(static_cast<int32_t>(width)),
      tokens_(static_cast<int32_t>(tokens)),
      training_(static_cast<int32_t>(tokens - held_out)),
      units_(device, allocator, tokens * width),
      scales_(device, allocator, tokens) {}

FoundBits DeviceValueSample::found(int32_t first) const {
  const int32_t words = (bits_ + 31) / 32;
  return {.packed = packed_->from(size(first, words)), .scales = scales_.from(size(first, 1)), .words = words};
}

double DeviceValueSample::encode(const ValueCode& code) {
  const Call call(device_, Call::Reports::kNothing);
  const cudaStream_t stream = device_.stream();
  if (bits_ != code.bits) {
    packed_.reset();
    packed_.emplace(device_, allocator_, size(tokens_, 1) * code.words());
    bits_ = code.bits;
  }
  Code uploaded(device_, call, allocator_, code);
  const DeviceValueCode& device_code = uploaded.prepare(call, allocator_);
  {
    const int32_t most = std::min(tokens_, kSearchValues);
    const DeviceArray<float> rest(device_, allocator_, size(most, device_code.stages > 1 ? width_ : 0));
    const DeviceArray<float> bits(device_, allocator_, size(most, bits_));
    const DeviceArray<float> wanted(device_, allocator_, size(most, bits_));
    const DeviceArray<float> decoded(device_, allocator_, size(most, bits_));
    const DeviceArray<float> scales(device_, allocator_, size(most, 1));
    for (int32_t first = 0; first < tokens_; first += most) {
      const ValueSearch search{.n = std::min(most, tokens_ - first),
                               .units = units_.from(size(first, width_)),
                               .rest = rest.data(),
                               .bits = bits.data(),
                               .wanted = wanted.data(),
                               .decoded = decoded.data(),
                               .scales = scales.data()};
      for (int32_t stage = 0; stage < device_code.stages; ++stage) {
        call.require(launch_value_stage(device_code, search, stage, stream), "kernel of training");
      }
      call.require(launch_pack_bits(device_code, search, found(first), stream), "kernel of training");
    }
  }
  return held_out_error(call, device_code);
}

double DeviceValueSample::held_out_error(const Call& call, const DeviceValueCode& code) {
  const int32_t n = tokens_ - training_;
  const int32_t most = std::min(n, kSearchValues);
  const DeviceArray<float> rest(device_, allocator_, size(most, width_));
  const DeviceArray<double> squares(device_, allocator_, size(n, 1));
  for (int32_t first = 0; first < n; first += most) {
    const int32_t count = std::min(most, n - first);
    const int32_t token = training_ + first;
    call.require(launch_subtract_values(code, found(token), units_.from(size(token, width_)), count, rest.data(),
                                        device_.stream()),
                 "kernel of training");
    call.require(launch_row_norms(rest.data(), width_, count, false, squares.from(size(first, 1)), device_.stream()),
                 "kernel of training");
  }
  const Vector<double> errors = to_host(call, allocator_, squares);
  double sum = 0;
  for (const double error : errors) sum += error;
  return sum / n;
}

/// Fills `sums`, [rows][columns], by sum(parts, sums, stream).
template <typename Sum>
void DeviceValueSample::sum(const Call& call, int32_t rows, int32_t columns, std::span<double> sums, const Sum& sum) {
  const DeviceArray<double> on_device =
      sum_on_device(device_, call, allocator_, rows, columns, training_,
                    [&](double* parts, double* to) { return sum(parts, to, call.stream()); });
  download(call, on_device.data(), sums);
}

void DeviceValueSample::moments(std::span<double> sums) {
  const Call call(device_, Call::Reports::kNothing);
  sum(call, width_ + 1, width_ + 1, sums, [&](double* parts, double* to, cudaStream_t stream) {
    return sum_moments(units_.data(), width_, training_, parts, to, stream);
  });
}

void DeviceValueSample::code_products(std::span<double> normal, std::span<double> sides) {
  const Call call(device_, Call::Reports::kNothing);
  sum(call, bits_ + 1, bits_ + 1, normal, [&](double* parts, double* to, cudaStream_t stream) {
    return sum_code_pairs(found(0), bits_, training_, parts, to, stream);
  });
  sum(call, bits_ + 1, width_, sides, [&](double* parts, double* to, cudaStream_t stream) {
    return sum_code_sides(found(0), bits_, units_.data(), width_, training_, parts, to, stream);
  });
}

void DeviceValueSample::sign_products(std::span<double> sums) {
  const Call call(device_, Call::Reports::kNothing);
  sum(call, width_ + 1, bits_, sums, [&](double* parts, double* to, cudaStream_t stream) {
    return sum_signs(found(0), bits_, units_.data(), width_, training_, parts, to, stream);
  });
}

Owned<ValueSample> DeviceValueSample::residuals(Allocator& allocator, const ValueCode& code, double& norm) {
  const Call call(device_, Call::Reports::kNothing);
  const cudaStream_t stream = device_.stream();
  auto rest = make_owned<DeviceValueSample>(allocator, device_, allocator, static_cast<size_t>(width_),
                                            static_cast<size_t>(tokens_), static_cast<size_t>(tokens_ - training_));
  const Code uploaded(device_, call, allocator_, code);
  const DeviceArray<double> squares(device_, allocator_, size(tokens_, 1));
  call.require(launch_subtract_values(uploaded.get(), found(0), units_.data(), tokens_, rest->units(), stream),
               "kernel of training");
  call.require(launch_row_norms(rest->units(), width_, tokens_, true, squares.data(), stream), "kernel of training");
  const Vector<double> of_tokens = to_host(call, allocator_, squares);
  norm = 0;
  for (const double each : of_tokens) norm += std::sqrt(each) / tokens_;
  return rest;
}

Owned<ValueSample> CudaTraining::make_value_sample(Allocator& allocator, const UnitVectors& vectors) {
  const Call call(device_, Call::Reports::kNothing);
  auto sample =
      make_owned<DeviceValueSample>(allocator, device_, allocator, vectors.width, vectors.tokens(), vectors.held_out);
  upload(call, std::span<const float>(vectors.numbers), sample->units());
  return sample;
}

}  // namespace kvq::cuda
