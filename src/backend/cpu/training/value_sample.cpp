// Values that a code is trained on, in host memory.
#include "backend/cpu/training/cross_products.h"
#include "backend/cpu/training/host_training.h"
#include "core/float16.h"
#include "core/scratch.h"
#include "formats/commvq/value_encoder.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

namespace kvq::cpu {
namespace {

/// A unit vector followed by a 1, which gives regressions their constant.
struct Extended {
  const UnitVectors& vectors;

  float operator()(size_t token, size_t c) const { return c == vectors.width ? 1.0F : vectors.row(token)[c]; }
};

class HostValueSample final : public ValueSample {
 public:
  HostValueSample(Allocator& allocator, Parallel& parallel, const UnitVectors& vectors)
      : allocator_(allocator), parallel_(parallel), vectors_(vectors), packed_(allocator), scales_(allocator) {}

  HostValueSample(Allocator& allocator, Parallel& parallel, UnitVectors&& vectors)
      : allocator_(allocator),
        parallel_(parallel),
        own_(std::move(vectors)),
        vectors_(*own_),
        packed_(allocator),
        scales_(allocator) {}

  double encode(const ValueCode& code) override {
    bits_ = static_cast<size_t>(code.bits);
    words_ = code.words();
    packed_.resize(size(vectors_.tokens(), words_));
    scales_.resize(vectors_.tokens());
    const ValueEncoder encoder(allocator_, parallel_, code);
    Vector<uint16_t> numbers(vectors_.tokens(), allocator_);
    encoder.encode(allocator_, parallel_, vectors_.numbers.data(), vectors_.width, vectors_.tokens(), packed_.data(),
                   numbers.data());
    std::transform(numbers.begin(), numbers.end(), scales_.begin(), from_float16);

    Vector<double> errors(vectors_.held_out, allocator_);
    const auto judge = [&](size_t i, float* decoded) noexcept {
      const size_t token = vectors_.training() + i;
      decode_value(code, packed_.data() + token * words_, scales_[token], decoded);
      for (size_t c = 0; c < vectors_.width; ++c) {
        const double error = static_cast<double>(decoded[c]) - vectors_.row(token)[c];
        errors[i] += error * error;
      }
    };
    for_each_block(parallel_, allocator_, errors.size(), vectors_.width, judge);
    double sum = 0;
    for (const double error : errors) sum += error;
    return sum / static_cast<double>(errors.size());
  }

  void moments(std::span<double> sums) override {
    const Extended input{vectors_};
    cross_products<true>(allocator_, parallel_, vectors_.training(), vectors_.width + 1, vectors_.width + 1, input,
                         input, sums);
  }

  void code_products(std::span<double> normal, std::span<double> sides) override {
    const auto factor = [&](size_t token, size_t n) {
      return n == bits_ || bit(token, n) ? scales_[token] : 0.0F;  // the last row is the offset's
    };
    const auto target = [&](size_t token, size_t c) { return vectors_.row(token)[c]; };
    const size_t tokens = vectors_.training();
    cross_products<true>(allocator_, parallel_, tokens, bits_ + 1, bits_ + 1, factor, factor, normal);
    cross_products<false>(allocator_, parallel_, tokens, bits_ + 1, vectors_.width, factor, target, sides);
  }

  void sign_products(std::span<double> sums) override {
    const auto sign = [&](size_t token, size_t n) { return bit(token, n) ? 1.0F : -1.0F; };
    cross_products<false>(allocator_, parallel_, vectors_.training(), vectors_.width + 1, bits_, Extended{vectors_},
                          sign, sums);
  }

  Owned<ValueSample> residuals(Allocator& allocator, const ValueCode& code, double& norm) override {
    UnitVectors rest{Vector<float>(vectors_.numbers), vectors_.width, vectors_.held_out};
    Vector<double> norms(vectors_.tokens(), allocator_);
    const auto subtract = [&](size_t token, float* decoded) noexcept {
      decode_value(code, packed_.data() + token * words_, scales_[token], decoded);
      float* residual = rest.numbers.data() + token * rest.width;
      double sum = 0;
      for (size_t c = 0; c < rest.width; ++c) {
        residual[c] -= decoded[c];
        sum += static_cast<double>(residual[c]) * residual[c];
      }
      norms[token] = std::sqrt(sum);
      const auto inverse = static_cast<float>(sum > 0 ? 1 / norms[token] : 0);
      for (size_t c = 0; c < rest.width; ++c) residual[c] *= inverse;
    };
    for_each_block(parallel_, allocator_, norms.size(), rest.width, subtract);
    norm = 0;
    for (const double each : norms) norm += each / static_cast<double>(norms.size());
    return make_owned<HostValueSample>(allocator, allocator, parallel_, std::move(rest));
  }

 private:
  bool bit(size_t token, size_t n) const { return is_set(packed_.data() + token * words_, n); }

  Allocator& allocator_;
  Parallel& parallel_;
  std::optional<UnitVectors> own_;
  const UnitVectors& vectors_;
  size_t bits_ = 0;
  size_t words_ = 0;
  Vector<uint32_t> packed_;  // [tokens][words]
  Vector<float> scales_;     // [tokens]
};

}  // namespace

Owned<ValueSample> HostTraining::make_value_sample(Allocator& allocator, const UnitVectors& vectors) {
  return make_owned<HostValueSample>(allocator, allocator, parallel_, vectors);
}

}  // namespace kvq::cpu
