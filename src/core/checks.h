// Checks of options and files that name the field, as both spell it, and its value.
#pragma once

#include "core/error.h"
#include "core/float16.h"

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

/// Throws `status` unless there are `elements` numbers and all stay finite when they are written as `dtype`. An array
/// is called LIST.INDEX.NAME.
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
