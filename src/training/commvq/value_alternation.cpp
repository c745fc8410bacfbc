#include "training/commvq/value_alternation.h"

#include "training/commvq/value_least_squares.h"

#include <cmath>

namespace kvq {

ValueDraft::ValueDraft(Allocator& allocator, size_t width, size_t bits)
    : channel_scale(width, 1.0F, allocator),
      codes(bits * width, allocator),
      offset(width, allocator),
      proposal(bits * width, allocator),
      proposal_bias(bits, allocator) {}

ValueCode ValueDraft::code() const {
  return {.width = static_cast<int32_t>(width()),
          .bits = static_cast<int32_t>(bits()),
          .channel_scale = channel_scale,
          .codes = codes,
          .offset = offset,
          .proposal = proposal,
          .proposal_bias = proposal_bias};
}

void start_from_signs(Allocator& allocator, std::span<const double> moments, ValueDraft& draft) {
  const size_t width = draft.width();
  const double* sums = moments.data() + width * (width + 1);
  const double tokens = sums[width];
  Vector<double> directions(width * width, allocator);
  for (size_t i = 0; i < width; ++i) {
    for (size_t j = 0; j <= i; ++j) {
      directions[i * width + j] = moments[i * (width + 1) + j] / tokens - sums[i] / tokens * (sums[j] / tokens);
    }
  }
  const Vector<double> variances = principal_directions(directions, width);
  for (size_t c = 0; c < width; ++c) draft.offset[c] = static_cast<float>(sums[c] / tokens);
  for (size_t n = 0; n < width; ++n) {
    const double* direction = directions.data() + n * width;
    const double step = kSignStep * std::sqrt(variances[n]);
    double center = 0;
    for (size_t c = 0; c < width; ++c) {
      center += direction[c] * sums[c] / tokens;
      draft.proposal[n * width + c] = static_cast<float>(direction[c]);
      draft.codes[n * width + c] = static_cast<float>(step * direction[c]);
      draft.offset[c] -= static_cast<float>(step * direction[c] / 2);
    }
    draft.proposal_bias[n] = static_cast<float>(-center);
  }
}

ValueAlternation::ValueAlternation(Allocator& allocator, const AlternationOptions& options, ValueSample& targets,
                                   ValueDraft& draft)
    : allocator_(allocator), options_(options), targets_(targets), draft_(draft), moments_(allocator) {}

void ValueAlternation::start_from_signs() {
  const size_t extended = draft_.width() + 1;
  moments_.assign(extended * extended, 0.0);
  targets_.moments(moments_);
  kvq::start_from_signs(allocator_, moments_, draft_);
}

/// Least squares of scale · (offset + Σ rows of C whose bit is set) against the targets.
void ValueAlternation::solve_codes() {
  const size_t bits = draft_.bits();
  const size_t width = draft_.width();
  Vector<double> normal((bits + 1) * (bits + 1), allocator_);
  Vector<double> solution((bits + 1) * width, allocator_);
  targets_.code_products(normal, solution);
  Vector<float> prior(draft_.codes);
  prior.insert(prior.end(), draft_.offset.begin(), draft_.offset.end());
  solve_ridge(normal, options_.ridge, prior.data(), width, solution);
  const double* offset = solution.data() + bits * width;
  for (size_t i = 0; i < bits * width; ++i) draft_.codes[i] = static_cast<float>(solution[i]);
  for (size_t c = 0; c < width; ++c) draft_.offset[c] = static_cast<float>(offset[c]);
}

/// Ridge regression of the bits as signs.
void ValueAlternation::solve_proposal() {
  const size_t width = draft_.width();
  const size_t bits = draft_.bits();
  Vector<double> moments(moments_);
  Vector<double> solution((width + 1) * bits, allocator_);
  targets_.sign_products(solution);
  solve_ridge(moments, options_.proposal_ridge, nullptr, bits, solution);
  for (size_t n = 0; n < bits; ++n) {
    for (size_t c = 0; c < width; ++c) draft_.proposal[n * width + c] = static_cast<float>(solution[c * bits + n]);
    draft_.proposal_bias[n] = static_cast<float>(solution[width * bits + n]);
  }
}

}  // namespace kvq
