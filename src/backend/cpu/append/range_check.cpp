#include "backend/cpu/append/range_check.h"

#include "core/error.h"
#include "core/float16.h"
#include "core/head_rotation.h"
#include "core/tensor.h"

#include <algorithm>
#include <cmath>

namespace kvq::cpu {
namespace {

bool fits_float16(std::span<const float> head) {
  return std::all_of(head.begin(), head.end(), [](float value) { return std::fabs(value) <= kMaxFloat16; });
}

/// Rotations keep the norm, so a head with a small enough norm fits. False for NaN.
bool norm_fits_float16(std::span<const float> head) {
  float squares = 0.0F;
  for (const float value : head) squares += value * value;
  return squares <= kMaxFloat16 * kMaxFloat16;
}

}  // namespace

void RangeCheck::inspect(Side side, const PageWrite& write) noexcept {
  Head head;
  for (int32_t i = 0; i < write.token_count; ++i) {
    const auto token = static_cast<size_t>(write.token_begin + i);
    const size_t index = token * static_cast<size_t>(tokens_.kv_heads) + static_cast<size_t>(write.head);
    if (head_fits(side, index, write.scales, head)) continue;
    const size_t unfit = index + (side == Side::kKeys ? 0 : heads());
    size_t first = first_unfit_.load(std::memory_order_relaxed);
    while (unfit < first && !first_unfit_.compare_exchange_weak(first, unfit, std::memory_order_relaxed)) {
    }
    return;
  }
}

/// Leaves a head that does not fit in `storage`.
bool RangeCheck::head_fits(Side side, size_t index, const LayerScales& scales, Head& storage) const noexcept {
  const bool keys = side == Side::kKeys;
  const int32_t dim = tokens_.head.of(side);
  const std::span<float> head(storage.data(), static_cast<size_t>(dim));
  const auto heads_of_token = static_cast<size_t>(tokens_.kv_heads);
  const HeadStrides& strides = keys ? tokens_.k_strides : tokens_.v_strides;
  read_floats(keys ? tokens_.k : tokens_.v, tokens_.dtype, strides.at(index / heads_of_token, index % heads_of_token),
              dim, head.data());
  const auto of_token = static_cast<int32_t>(index % heads_of_token);
  // What waits in FP16 must fit before it is scaled.
  if (scales.rounds_first() && !fits_float16(head)) return false;
  if (scales && !keys) {
    const float* offsets = scales.of(ScaleArray::kOffsets, of_token, tokens_.head);
    const float* factors = scales.of(ScaleArray::kValues, of_token, tokens_.head);
    for (size_t i = 0; i < head.size(); ++i) head[i] = (head[i] - offsets[i]) * factors[i];
  }
  if (norm_fits_float16(head)) return true;
  if (!scales && !fits_float16(head)) return false;
  if (keys) {
    Head table;
    tokens_.rope->fill_table(tokens_.positions.subspan(index / heads_of_token, 1), table.data());
    tokens_.rope->rotate(table.data(), head.data());
    const float* factors = scales.find(ScaleArray::kKeys, of_token, tokens_.head);
    for (size_t i = 0; factors != nullptr && i < head.size(); ++i) head[i] *= factors[i];
  }
  if (!fits_float16(head)) return false;
  if (keys ? tokens_.hadamard_keys : tokens_.hadamard_values) rotate_head(head.data(), dim);
  return fits_float16(head);
}

LayerScales RangeCheck::scales_of(int32_t token) const noexcept {
  const auto holds = [token](const PageWrite& write) {
    return token >= write.token_begin && token < write.token_begin + write.token_count;
  };
  return std::ranges::find_if(writes_.list(), holds)->scales;
}

void RangeCheck::report() const {
  const size_t first = first_unfit_.load(std::memory_order_relaxed);
  const Side side = first < heads() ? Side::kKeys : Side::kValues;
  const size_t index = first % heads();
  Head head;
  head_fits(side, index, scales_of(static_cast<int32_t>(index / static_cast<size_t>(tokens_.kv_heads))), head);
  size_t channel = 0;
  while (std::fabs(head[channel]) <= kMaxFloat16) ++channel;
  // Of a latent, both sides are parts of k.
  const bool is_key = side == Side::kKeys || tokens_.head.is_latent;
  const int32_t before = side == Side::kKeys ? tokens_.head.before_keys() : 0;
  fail(KVQ_E_ARGUMENT,
       "%s of token %zu, head %zu, channel %zu is %g when it is stored, but pages hold finite numbers up to %g",
       is_key ? "k" : "v", static_cast<size_t>(tokens_.first) + index / static_cast<size_t>(tokens_.kv_heads),
       index % static_cast<size_t>(tokens_.kv_heads), channel + static_cast<size_t>(before),
       static_cast<double>(head[channel]), static_cast<double>(kMaxFloat16));
}

}  // namespace kvq::cpu
