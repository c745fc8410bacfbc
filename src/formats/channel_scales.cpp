#include "formats/channel_scales.h"

#include "core/float16.h"
#include "core/limits.h"
#include "formats/layer_scales.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace kvq {
namespace {

constexpr double kSmallestShare = 1e-6;  // of the mean energy: a channel that does nothing has any scale
// Exponents of scales without knowing what reads the channels, by how uneven these are.
constexpr double kExponentOfSpread = 0.3;
constexpr double kMostExponent = 0.5;

double mean(std::span<const double> numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), 0.0) / static_cast<double>(numbers.size());
}

/// Base-2 logarithms of a channel's energies, none below a share of their mean; empty if they are all zero.
Vector<double> logarithms(Allocator& allocator, std::span<const double> energies) {
  Vector<double> logs(allocator);
  const double least = kSmallestShare * mean(energies);
  if (!(least > 0.0 && std::isfinite(least))) return logs;
  for (const double energy : energies) logs.push_back(std::log2(std::max(energy, least)));
  return logs;
}

double deviation(std::span<const double> numbers) {
  const double middle = mean(numbers);
  double squares = 0.0;
  for (const double number : numbers) squares += (number - middle) * (number - middle);
  return std::sqrt(squares / static_cast<double>(numbers.size()));
}

}  // namespace

void ChannelEnergies::add(const ChannelEnergies& other) {
  for (size_t i = 0; i < read.size(); ++i) read[i] += other.read[i];
  for (size_t i = 0; i < stored.size(); ++i) {
    stored[i] += other.stored[i];
    offsets[i] += other.offsets[i];
  }
}

void ChannelEnergies::join(int32_t first, int32_t second) {
  for (Vector<double>* energies : {&read, &stored, &offsets}) {
    if (energies->empty()) continue;
    double& a = (*energies)[static_cast<size_t>(first)];
    double& b = (*energies)[static_cast<size_t>(second)];
    a = b = 0.5 * (a + b);
  }
}

Vector<float> find_scales(Allocator& allocator, const ChannelEnergies& energies, bool powers_of_two) {
  Vector<float> scales(energies.channels(), 1.0F, allocator);
  Vector<double> all(energies.stored, allocator);
  for (size_t i = 0; i < all.size(); ++i) all[i] += energies.offsets[i];
  const Vector<double> stored = logarithms(allocator, all);
  const Vector<double> read = energies.read.empty() ? Vector<double>(allocator) : logarithms(allocator, energies.read);
  if (stored.empty() || (read.empty() && !energies.read.empty())) return scales;  // a head that does nothing
  const double exponent = read.empty() ? std::min(kExponentOfSpread * deviation(stored), kMostExponent) : 0.25;
  Vector<double> logs(stored.size(), 0.0, allocator);
  for (size_t i = 0; i < logs.size(); ++i) logs[i] = exponent * ((read.empty() ? 0.0 : read[i]) - stored[i]);
  if (powers_of_two) {
    const double middle = mean(logs);
    for (double& log : logs) log = std::round(log - middle);
  }
  const double largest = *std::ranges::max_element(logs);
  for (size_t i = 0; i < scales.size(); ++i) {
    const auto scale = static_cast<float>(std::exp2(logs[i] - largest));
    scales[i] = std::max(from_float16(to_float16(scale)), kLeastScale);
  }
  return scales;
}

void append_scales_header(Vector<float>& numbers, bool rounds_first) {
  numbers.resize(numbers.size() + LayerScales::kHeader, 0.0F);
  numbers[numbers.size() - LayerScales::kHeader] = rounds_first ? 1.0F : 0.0F;
}

void append_head_scales(Vector<float>& numbers, std::span<const float> key_scales, std::span<const float> value_scales,
                        std::span<const float> value_offsets, const HeadShape& head) {
  const auto put = [&](std::span<const float> from, int32_t channels, float absent) {
    if (from.empty()) return numbers.resize(numbers.size() + static_cast<size_t>(channels), absent);
    for (const float number : from) numbers.push_back(number);
  };
  const auto put_with_inverses = [&](std::span<const float> scales, int32_t channels) {
    put(scales, channels, 1.0F);
    put(scales, channels, 1.0F);
    for (size_t i = numbers.size() - static_cast<size_t>(channels); i < numbers.size(); ++i) {
      numbers[i] = 1.0F / numbers[i];
    }
  };
  put_with_inverses(key_scales, head.keys);
  put_with_inverses(value_scales, head.values);
  put(value_offsets, head.values, 0.0F);
}

double noise_of(const ChannelEnergies& energies, std::span<const float> scales) {
  double of_reading = 0.0;
  double of_storing = 0.0;
  double least = 0.0;
  for (size_t i = 0; i < energies.channels(); ++i) {
    const double scale = scales.empty() ? 1.0 : double{scales[i]};
    const double read = energies.read.empty() ? 1.0 : energies.read[i];
    of_reading += read / (scale * scale);
    of_storing += scale * scale * (energies.stored[i] + energies.offsets[i]);
    least += std::sqrt(read * energies.stored[i]);
  }
  return least > 0.0 ? of_reading * of_storing / (least * least) : 1.0;
}

double left_by_page_mean(double angle) {
  const double half = 0.5 * angle;
  if (std::abs(std::sin(half)) < 1e-9) return 0.0;
  const double mean = std::sin(kPageSlots * half) / (kPageSlots * std::sin(half));
  return std::max(0.0, 1.0 - mean * mean);
}

}  // namespace kvq
