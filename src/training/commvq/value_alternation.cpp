#include "training/commvq/value_alternation.h"

#include "core/float16.h"
#include "formats/commvq/value_encoder.h"
#include "training/commvq/value_least_squares.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace kvq {
namespace {

/// Reads a unit vector with a 1 behind it, which gives regressions their constant.
struct Extended {
  const UnitVectors* vectors;

  float operator()(size_t token, size_t c) const { return c == vectors->width ? 1.0F : vectors->row(token)[c]; }
};

}  // namespace

ValueDraft::ValueDraft(Allocator& allocator, size_t width, size_t bits)
    : channel_scale(width, 1.0F, StlAllocator<float>(allocator)),
      codes(bits * width, StlAllocator<float>(allocator)),
      offset(width, StlAllocator<float>(allocator)),
      proposal(bits * width, StlAllocator<float>(allocator)),
      proposal_bias(bits, StlAllocator<float>(allocator)) {}

ValueCode ValueDraft::code() const {
  return {.width = static_cast<int32_t>(width()),
          .bits = static_cast<int32_t>(bits()),
          .channel_scale = channel_scale,
          .codes = codes,
          .offset = offset,
          .proposal = proposal,
          .proposal_bias = proposal_bias};
}

ValueAlternation::ValueAlternation(Allocator& allocator, Parallel& parallel, const AlternationOptions& options,
                                   const UnitVectors& targets, ValueDraft& draft)
    : allocator_(allocator),
      parallel_(parallel),
      options_(options),
      targets_(targets),
      draft_(draft),
      words_(draft.code().words()),
      packed_(targets.tokens() * words_, StlAllocator<uint32_t>(allocator)),
      scales_(targets.tokens(), StlAllocator<float>(allocator)),
      moments_(StlAllocator<double>(allocator)) {}

void ValueAlternation::start_from_signs() {
  const size_t width = draft_.width();
  const Extended input{&targets_};
  moments_ = cross_products<true>(allocator_, parallel_, targets_.training(), width + 1, width + 1, input, input);
  const auto tokens = static_cast<double>(targets_.training());
  const double* sums = moments_.data() + width * (width + 1);
  Vector<double> directions(width * width, StlAllocator<double>(allocator_));
  for (size_t i = 0; i < width; ++i) {
    for (size_t j = 0; j <= i; ++j) {
      directions[i * width + j] = moments_[i * (width + 1) + j] / tokens - sums[i] / tokens * (sums[j] / tokens);
    }
  }
  const Vector<double> variances = principal_directions(directions, width);
  for (size_t c = 0; c < width; ++c) draft_.offset[c] = static_cast<float>(sums[c] / tokens);
  for (size_t n = 0; n < width; ++n) {
    const double* direction = directions.data() + n * width;
    const double step = kSignStep * std::sqrt(variances[n]);
    double center = 0;
    for (size_t c = 0; c < width; ++c) {
      center += direction[c] * sums[c] / tokens;
      draft_.proposal[n * width + c] = static_cast<float>(direction[c]);
      draft_.codes[n * width + c] = static_cast<float>(step * direction[c]);
      draft_.offset[c] -= static_cast<float>(step * direction[c] / 2);
    }
    draft_.proposal_bias[n] = static_cast<float>(-center);
  }
}

double ValueAlternation::encode() {
  const ValueCode code = draft_.code();
  const ValueEncoder encoder(allocator_, parallel_, code);
  Vector<uint16_t> halves(targets_.tokens(), StlAllocator<uint16_t>(allocator_));
  encoder.encode(allocator_, parallel_, targets_.numbers.data(), targets_.width, targets_.tokens(), packed_.data(),
                 halves.data());
  std::transform(halves.begin(), halves.end(), scales_.begin(), from_float16);

  Vector<double> errors(targets_.held_out, StlAllocator<double>(allocator_));
  const auto judge = [&](size_t i, float* decoded) noexcept {
    const size_t token = targets_.training() + i;
    decode_value(code, packed_.data() + token * words_, scales_[token], decoded);
    for (size_t c = 0; c < targets_.width; ++c) {
      const double error = static_cast<double>(decoded[c]) - targets_.row(token)[c];
      errors[i] += error * error;
    }
  };
  for_each_block(parallel_, allocator_, errors.size(), targets_.width, judge);
  double sum = 0;
  for (const double error : errors) sum += error;
  return sum / static_cast<double>(errors.size());
}

/// Least squares of scale · (offset + Σ rows of C whose bit is set) against the targets.
void ValueAlternation::solve_codes() {
  const size_t bits = draft_.bits();
  const size_t width = draft_.width();
  const auto factor = [&](size_t token, size_t n) {
    return n == bits || bit(token, n) ? scales_[token] : 0.0F;  // the last one is the offset's
  };
  const auto target = [&](size_t token, size_t c) { return targets_.row(token)[c]; };
  const size_t tokens = targets_.training();
  Vector<double> normal = cross_products<true>(allocator_, parallel_, tokens, bits + 1, bits + 1, factor, factor);
  Vector<double> solution = cross_products<false>(allocator_, parallel_, tokens, bits + 1, width, factor, target);
  Vector<float> prior(draft_.codes);
  prior.insert(prior.end(), draft_.offset.begin(), draft_.offset.end());
  solve_ridge(normal, options_.ridge, prior.data(), width, solution);
  const double* offset = solution.data() + bits * width;
  for (size_t i = 0; i < bits * width; ++i) draft_.codes[i] = static_cast<float>(solution[i]);
  for (size_t c = 0; c < width; ++c) draft_.offset[c] = static_cast<float>(offset[c]);
}

/// Ridge regression of the bits, as signs.
void ValueAlternation::solve_proposal() {
  const size_t width = draft_.width();
  const size_t bits = draft_.bits();
  const auto sign = [&](size_t token, size_t n) { return bit(token, n) ? 1.0F : -1.0F; };
  const Extended input{&targets_};
  Vector<double> moments(moments_);
  Vector<double> solution =
      cross_products<false>(allocator_, parallel_, targets_.training(), width + 1, bits, input, sign);
  solve_ridge(moments, options_.proposal_ridge, nullptr, bits, solution);
  for (size_t n = 0; n < bits; ++n) {
    for (size_t c = 0; c < width; ++c) draft_.proposal[n * width + c] = static_cast<float>(solution[c * bits + n]);
    draft_.proposal_bias[n] = static_cast<float>(solution[width * bits + n]);
  }
}

UnitVectors ValueAlternation::residuals(double& norm) const {
  UnitVectors rest{Vector<float>(targets_.numbers), targets_.width, targets_.held_out};
  Vector<double> norms(targets_.tokens(), StlAllocator<double>(allocator_));
  const ValueCode code = draft_.code();
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
  return rest;
}

}  // namespace kvq
