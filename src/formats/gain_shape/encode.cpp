#include "formats/gain_shape/encode.h"

#include "core/float16.h"
#include "core/limits.h"
#include "formats/gain_shape/gains.h"
#include "formats/gain_shape/trellis_search.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace kvq::gain_shape {
namespace {

constexpr std::array<float, kTopGain + 1> make_factors() {
  std::array<float, kTopGain + 1> factors{};
  for (int32_t code = 1; code <= kTopGain; ++code) {
    double factor = 1.0;
    int32_t below = kTopGain - code;
    for (; below % kGainSteps != 0; ++below) factor *= gains_internal::kRoots[2];
    for (; below > 0; below -= kGainSteps) factor /= 2.0;
    factors[static_cast<size_t>(code)] = static_cast<float>(factor);
  }
  return factors;
}

Chain chain_of(const SideLayout& layout) {
  return {layout.side, layout.bits() == 3 ? layout.high_plane() : layout.low_plane()};
}

/// Position of a number's code.
struct Place {
  Place(const SideLayout& layout, int32_t slot, int32_t channel)
      : lane(layout.side == Side::kKeys ? slot : channel), element(layout.side == Side::kKeys ? channel : slot) {}

  int32_t lane;
  int32_t element;
};

uint32_t get_code(const SideLayout& layout, const std::byte* data, int32_t slot, int32_t channel) {
  const Place at(layout, slot, channel);
  const auto* low = reinterpret_cast<const uint32_t*>(data);
  const auto* high = reinterpret_cast<const uint32_t*>(data + layout.high_offset());
  if (layout.bits() != 3) return layout.low_plane().get(low, at.lane, at.element);
  const uint32_t lower = channel < layout.head_dim ? layout.low_plane().get(low, at.lane, at.element) : 0;
  return lower | layout.high_plane().get(high, at.lane, at.element) << 2U;
}

/// The bits must still be zeros. Beyond the head size only the highest bit is stored, because a trellis continues
/// there.
void put_code(const SideLayout& layout, std::byte* data, int32_t slot, int32_t channel, uint32_t code) {
  const Place at(layout, slot, channel);
  auto* low = reinterpret_cast<uint32_t*>(data);
  auto* high = reinterpret_cast<uint32_t*>(data + layout.high_offset());
  if (layout.bits() != 3) return layout.low_plane().put(low, at.lane, at.element, code);
  if (channel < layout.head_dim) layout.low_plane().put(low, at.lane, at.element, code & 3U);
  layout.high_plane().put(high, at.lane, at.element, code >> 2U);
}

template <typename Term>
float sum(int32_t head_dim, Term term) {
  float total = 0.0F;
  for (int32_t begin = 0; begin < head_dim; begin += kSumBlock) {
    float block = 0.0F;
    for (int32_t i = begin; i < std::min(begin + kSumBlock, head_dim); ++i) block += term(i);
    total += block;
  }
  return total;
}

uint32_t scalar_code(int32_t bits, float steps) {
  const auto top = static_cast<float>((1 << bits) - 1);
  return static_cast<uint32_t>(std::clamp(steps + middle(bits), 0.0F, top) + 0.5F);
}

/// Inverse of the step with the best cosine between code and vector.
float best_inverse_step(int32_t bits, int32_t head_dim, const float* row, float rms) {
  float best = 0.0F;
  float best_product = 0.0F;
  float best_norm = 0.0F;
  for (const float factor : step_factors(bits)) {
    const float inverse = 1.0F / (step_of(bits) * factor * rms);
    const auto level = [=](int32_t i) {
      return static_cast<float>(scalar_code(bits, row[i] * inverse)) - middle(bits);
    };
    const float product = sum(head_dim, [=](int32_t i) { return row[i] * level(i); });
    const float norm = sum(head_dim, [=](int32_t i) { return level(i) * level(i); });
    if (best != 0.0F && product * product * best_norm <= best_product * best_product * norm) continue;
    best = inverse;
    best_product = product;
    best_norm = norm;
  }
  return best;
}

void put_scalar(const SideLayout& layout, const float* row, float rms, int32_t slot, std::byte* out) {
  const float inverse = best_inverse_step(layout.bits(), layout.head_dim, row, rms);
  for (int32_t i = 0; i < layout.head_dim; ++i) {
    put_code(layout, out, slot, i, scalar_code(layout.bits(), row[i] * inverse));
  }
}

void put_trellis(const SideLayout& layout, const float* row, float rms, int32_t slot, std::byte* out) {
  const Chain chain = chain_of(layout);
  const auto n = static_cast<size_t>(chain.length());
  const float factor = kLevelUnit / rms;
  std::array<int16_t, kMaxChain> targets;
  std::array<uint8_t, kMaxChain> codes;
  for (size_t step = 0; step < n; ++step) {
    const int32_t channel = chain.channel(static_cast<int32_t>(step));
    targets[step] = channel < layout.head_dim ? target_of(row[channel] * factor) : kNoTarget;
  }
  search_trellis(layout.bits(), {targets.data(), n}, {codes.data(), n});
  for (size_t step = 0; step < n; ++step) {
    put_code(layout, out, slot, chain.channel(static_cast<int32_t>(step)), codes[step]);
  }
}

void get_trellis(const SideLayout& layout, const std::byte* data, int32_t slot, float* row) {
  const Chain chain = chain_of(layout);
  const int32_t n = chain.length();
  const auto highest = static_cast<uint32_t>(layout.bits() - 1);
  uint32_t bits = 0;
  const auto code_at = [&](int32_t step) { return get_code(layout, data, slot, chain.channel(step)); };
  for (int32_t step = n - kMemory; step < n; ++step) bits = bits << 1U | code_at(step) >> highest;
  for (int32_t step = 0; step < n; ++step) {
    const uint32_t code = code_at(step);
    bits = bits << 1U | code >> highest;
    const int32_t channel = chain.channel(step);
    if (channel >= layout.head_dim) continue;
    const uint32_t others = code & ((1U << highest) - 1U);
    row[channel] = levels(layout.bits())[kSubsets * static_cast<int32_t>(others) + parities(bits)];
  }
}

}  // namespace

constexpr std::array<float, kTopGain + 1> kGainFactors = make_factors();

uint8_t gain_code(float gain, float largest) {
  const auto bits = std::bit_cast<uint32_t>(gain / largest);
  const int32_t exponent = static_cast<int32_t>(bits >> 23U) - 127;
  const float mantissa = std::bit_cast<float>((bits & 0x7FFFFFU) | 0x3F800000U);
  const auto step =
      std::upper_bound(kGainThresholds.begin(), kGainThresholds.end(), mantissa) - kGainThresholds.begin();
  return static_cast<uint8_t>(std::clamp(kTopGain + kGainSteps * exponent + static_cast<int32_t>(step), 0, kTopGain));
}

int16_t target_of(float units) {
  constexpr auto kFarthest = static_cast<float>(kFarthestTarget);
  return static_cast<int16_t>(std::nearbyint(std::clamp(units, -kFarthest, kFarthest)));
}

void decode_levels(const SideLayout& layout, const std::byte* data, int32_t slot, float* row) {
  if (layout.code.is_trellis()) return get_trellis(layout, data, slot, row);
  for (int32_t i = 0; i < layout.head_dim; ++i) {
    row[i] = static_cast<float>(get_code(layout, data, slot, i)) - middle(layout.bits());
  }
}

float encode_residual(const SideLayout& layout, const float* row, int32_t slot, std::byte* out) {
  const int32_t dim = layout.head_dim;
  const float norm = sum(dim, [=](int32_t i) { return row[i] * row[i]; });
  if (norm == 0.0F) return 0.0F;
  const float rms = std::sqrt(norm / static_cast<float>(dim));
  if (layout.code.is_trellis()) {
    put_trellis(layout, row, rms, slot, out);
  } else {
    put_scalar(layout, row, rms, slot, out);
  }
  std::array<float, kMaxHeadDim> u;
  decode_levels(layout, out, slot, u.data());
  const float product = sum(dim, [&](int32_t i) { return row[i] * u[static_cast<size_t>(i)]; });
  // ⟨gain · u, r⟩ = ⟨r, r⟩: the query a key aligns with keeps its product.
  return product > 0.0F ? norm / product : 0.0F;
}

void put_gains(const SideLayout& layout, const std::array<float, kPageSlots>& gains, std::byte* out) {
  const uint16_t largest = to_float16(std::min(*std::max_element(gains.begin(), gains.end()), kMaxFloat16));
  *reinterpret_cast<uint16_t*>(out + layout.largest_offset()) = largest;
  for (size_t slot = 0; largest != 0 && slot < kPageSlots; ++slot) {
    out[layout.gain_offset() + slot] = std::byte{gain_code(gains[slot], from_float16(largest))};
  }
}

float read_gain(const SideLayout& layout, const std::byte* data, int32_t slot) {
  const auto largest = *reinterpret_cast<const uint16_t*>(data + layout.largest_offset());
  const auto code = static_cast<size_t>(data[layout.gain_offset() + static_cast<size_t>(slot)]);
  return kGainFactors[code] * from_float16(largest);
}

}  // namespace kvq::gain_shape
