#include "formats/gain_shape/centre_search.h"

#include "core/limits.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace kvq::centred {
namespace {

constexpr float kTop = 127.0F;

int8_t rounded_to_byte(float number) { return static_cast<int8_t>(std::nearbyint(number)); }

float inverse_of(float largest) { return largest > 0.0F ? kTop / largest : 0.0F; }

}  // namespace

CentreSearch::CentreSearch(Allocator& allocator, std::span<const float> centres_, int32_t head_dim_)
    : centres(centres_),
      head_dim(head_dim_),
      count(static_cast<int32_t>(centres_.size()) / head_dim_),
      mean(static_cast<size_t>(head_dim_), 0.0F, allocator),
      rounded(static_cast<size_t>(padded_count() * quads() * kQuad), 0, allocator),
      totals(static_cast<size_t>(padded_count()), 0, allocator) {
  const auto dim = static_cast<size_t>(head_dim);
  const auto n = static_cast<size_t>(count);
  float largest = 0.0F;
  for (size_t channel = 0; channel < dim; ++channel) {
    double sum = 0.0;
    for (size_t i = 0; i < n; ++i) sum += static_cast<double>(centres[i * dim + channel]);
    mean[channel] = static_cast<float>(sum / static_cast<double>(n));
    for (size_t i = 0; i < n; ++i) largest = std::max(largest, std::abs(centres[i * dim + channel] - mean[channel]));
  }
  scale = largest / kTop;
  const float inverse = inverse_of(largest);
  for (size_t i = 0; i < n; ++i) {
    for (size_t channel = 0; channel < dim; ++channel) {
      const int8_t code = rounded_to_byte((centres[i * dim + channel] - mean[channel]) * inverse);
      const size_t quad = channel / kQuad * static_cast<size_t>(padded_count()) + i;
      rounded[quad * kQuad + channel % kQuad] = code;
      totals[i] += code;
    }
  }
}

void CentreSearch::fill_biases(std::span<const float> squares, float* biases) const {
  const auto dim = static_cast<size_t>(head_dim);
  std::fill_n(biases, padded_count(), std::numeric_limits<float>::infinity());
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    double bias = 0.0;
    for (size_t channel = 0; channel < dim; ++channel) {
      const auto number = static_cast<double>(centres[i * dim + channel]);
      const auto middle = static_cast<double>(mean[channel]);
      bias += 0.5 * static_cast<double>(squares[channel]) * number * number - middle * (number - middle);
    }
    biases[i] = static_cast<float>(bias);
  }
}

float CentreSearch::round(const float* x, int8_t* out) const {
  float largest = 0.0F;
  for (int32_t i = 0; i < head_dim; ++i) largest = std::max(largest, std::abs(x[i] - mean[static_cast<size_t>(i)]));
  const float inverse = inverse_of(largest);
  for (int32_t i = 0; i < head_dim; ++i) out[i] = rounded_to_byte((x[i] - mean[static_cast<size_t>(i)]) * inverse);
  std::fill(out + head_dim, out + quads() * kQuad, int8_t{0});
  return largest / kTop * scale;
}

uint8_t CentreSearch::nearest(const float* x, const float* biases) const {
  std::array<int8_t, kMaxTrainedDim + kQuad> own;
  const float unit = round(x, own.data());
  int32_t best = 0;
  float highest = -std::numeric_limits<float>::infinity();
  for (int32_t i = 0; i < count; ++i) {
    int32_t product = 0;
    for (int32_t channel = 0; channel < head_dim; ++channel) {
      const int32_t quad = channel / kQuad * padded_count() + i;
      product += own[static_cast<size_t>(channel)] * rounded[static_cast<size_t>(quad * kQuad + channel % kQuad)];
    }
    const float score = static_cast<float>(product) * unit - biases[i];
    if (score <= highest) continue;
    highest = score;
    best = i;
  }
  return static_cast<uint8_t>(best);
}

}  // namespace kvq::centred
