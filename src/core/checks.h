// Checks of options and files whose messages name the field and its value.
#pragma once

#include "core/error.h"
#include "core/float16.h"
#include "core/limits.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

namespace kvq {

/// The largest models.
inline constexpr int32_t kMaxLayers = 65536;
inline constexpr int32_t kMaxKvHeads = 4096;

/// Throws `status` unless low ≤ value ≤ high. `prefix` goes before the field's name.
inline void check_range(int32_t value, int32_t low, int32_t high, kvq_status status, const char* prefix,
                        const char* field) {
  if (value >= low && value <= high) return;
  fail(status, "%s%s is %d, must be in [%d, %d]", prefix, field, value, low, high);
}

/// Throws `status` unless the shape is within the limits of models. `most`: channels.
inline void check_model_shape(int32_t n_layers, int32_t kv_heads, int32_t head_dim, kvq_status status,
                              const char* prefix, int32_t most = kMaxTrainedDim) {
  check_range(n_layers, 1, kMaxLayers, status, prefix, "n_layers");
  check_range(kv_heads, 1, kMaxKvHeads, status, prefix, "kv_heads");
  check_range(head_dim, 8, most, status, prefix, "head_dim");
  if (head_dim % 8 != 0) fail(status, "%shead_dim is %d, must be a multiple of 8", prefix, head_dim);
}

/// Throws KVQ_E_MISMATCH unless option `trained` of a cache was trained for its option `what`.
inline void check_trained_for(const char* trained, const char* what, int64_t its, int64_t options) {
  if (its == options) return;
  fail(KVQ_E_MISMATCH, "options->%s was trained for %s %lld, but options->%s is %lld", trained, what,
       static_cast<long long>(its), what, static_cast<long long>(options));
}

/// The same for the model, if both are known.
inline void check_trained_for_model(const char* trained, uint64_t its, uint64_t options) {
  if (its == 0 || options == 0 || its == options) return;
  fail(KVQ_E_MISMATCH, "options->%s was trained for model_id %llu, but options->model_id is %llu", trained,
       static_cast<unsigned long long>(its), static_cast<unsigned long long>(options));
}

/// Throws `status` unless there are `elements` numbers, all finite as `dtype`. An array is called LIST.INDEX.NAME.
inline void check_numbers(std::span<const float> numbers, size_t elements, kvq_dtype dtype, kvq_status status,
                          const char* list, int32_t index, const char* name) {
  if (numbers.size() != elements) {
    fail(status, "%s.%d.%s has %zu numbers, must have %zu", list, index, name, numbers.size(), elements);
  }
  const auto fits = [dtype](float value) {
    return dtype == KVQ_F16 ? is_finite_float16(to_float16(value)) : std::isfinite(value);
  };
  const auto bad = std::find_if_not(numbers.begin(), numbers.end(), fits);
  if (bad == numbers.end()) return;
  fail(status, "%s.%d.%s: number %zu is %g, must be finite%s", list, index, name,
       static_cast<size_t>(bad - numbers.begin()), static_cast<double>(*bad), dtype == KVQ_F16 ? " in FP16" : "");
}

}  // namespace kvq
