#include "training/commvq/value_training_data.h"

#include "core/splitmix.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace kvq {

TokenSplit split_tokens(Allocator& allocator, size_t tokens, size_t at_most, double held_out, uint64_t seed) {
  // Neighbours are similar: a held-out token between two of training would look too good.
  constexpr size_t kRun = 64;
  const size_t length = std::clamp<size_t>(tokens / 16, 1, kRun);
  Vector<size_t> runs((tokens + length - 1) / length, allocator);
  std::iota(runs.begin(), runs.end(), size_t{0});
  uint64_t drawn = 0;
  for (size_t i = runs.size(); i > 1; --i) std::swap(runs[i - 1], runs[splitmix64(seed, drawn++) % i]);

  TokenSplit split(allocator);
  const size_t n = std::min(tokens, at_most);
  split.tokens.reserve(n);
  for (const size_t run : runs) {
    const size_t end = std::min(tokens, (run + 1) * length);
    for (size_t t = run * length; t < end && split.tokens.size() < n; ++t) split.tokens.push_back(t);
  }
  split.held_out = std::clamp<size_t>(static_cast<size_t>(held_out * static_cast<double>(n)), 1, n - 1);
  return split;
}

void mean_magnitudes(std::span<const float> values, size_t channels, Vector<float>& out) {
  constexpr double kFloor = 1e-3;  // of the mean over channels: a dead channel must not dominate
  const size_t tokens = values.size() / channels;
  Vector<double> sums(channels, out.get_allocator());
  for (size_t t = 0; t < tokens; ++t) {
    for (size_t c = 0; c < channels; ++c) sums[c] += std::fabs(static_cast<double>(values[t * channels + c]));
  }
  const double mean = std::accumulate(sums.begin(), sums.end(), 0.0) / static_cast<double>(channels);
  const double least = mean > 0 ? kFloor * mean : static_cast<double>(tokens);
  out.resize(channels);
  for (size_t c = 0; c < channels; ++c) {
    out[c] = std::max(static_cast<float>(std::max(sums[c], least) / static_cast<double>(tokens)), 0x1p-60F);
  }
}

Vector<float> unit_vectors(Allocator& allocator, const TokenSplit& split, const float* values, size_t stride,
                           std::span<const float> channel_scale) {
  const size_t width = channel_scale.size();
  Vector<float> units(split.tokens.size() * width, allocator);
  for (size_t i = 0; i < split.tokens.size(); ++i) {
    const float* vector = values + split.tokens[i] * stride;
    float* unit = units.data() + i * width;
    double sum = 0;
    for (size_t c = 0; c < width; ++c) {
      unit[c] = vector[c] / channel_scale[c];
      sum += static_cast<double>(unit[c]) * unit[c];
    }
    const auto inverse = static_cast<float>(sum > 0 ? 1 / std::sqrt(sum) : 0);
    for (size_t c = 0; c < width; ++c) unit[c] *= inverse;
  }
  return units;
}

}  // namespace kvq
