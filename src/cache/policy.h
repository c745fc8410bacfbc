#pragma once

#include "backend/eviction.h"
#include "core/memory.h"
#include "formats/codec.h"
#include "formats/format_name.h"

#include <algorithm>
#include <optional>

namespace kvq {

/// Votes on a page's format: all heads of the layer together, or each head for its own.
enum class Votes : uint8_t { kLayer, kHead };

inline constexpr int32_t kDefaultRecent = 1;

/// Storage of pages, as a policy document specifies it.
struct Policy {
  explicit Policy(Allocator& allocator) : overrides(allocator), experts(allocator) {}

  /// Formats of a range of layers; later entries win.
  struct Override {
    int32_t first_layer;
    int32_t last_layer;  // inclusive
    std::optional<SideFormat> keys;
    std::optional<SideFormat> values;
  };

  SideFormat keys;
  SideFormat values;
  std::optional<int32_t> sink;      // first pages that stay FP16; unset: the formats' default
  int32_t recent = kDefaultRecent;  // newest pages that stay FP16, the open one included
  bool calibrates = false;          // sequences find scales by their first tokens
  Eviction eviction;
  CodecOptions options;  // of formats with options
  Vector<Override> overrides;
  Vector<FormatPair> experts;  // a router's formats, those with more bits first; empty: no router
  Votes votes = Votes::kLayer;

  /// First pages of every list that stay FP16: models attend strongly to their first tokens.
  int32_t sink_pages() const {
    int32_t most = 0;
    const auto add = [&most](const SideFormat& format) { most = std::max(most, describe(format.code).sink); };
    if (experts.empty()) {
      add(keys);
      add(values);
    }
    for (const Override& each : overrides) {
      if (each.keys.has_value()) add(*each.keys);
      if (each.values.has_value()) add(*each.values);
    }
    for (const FormatPair& each : experts) {
      add(each.keys);
      add(each.values);
    }
    return sink.value_or(most);
  }

  FormatPair formats(int32_t layer) const {
    SideFormat of_keys = keys;
    SideFormat of_values = values;
    for (const Override& each : overrides) {
      if (layer < each.first_layer || layer > each.last_layer) continue;
      of_keys = each.keys.value_or(of_keys);
      of_values = each.values.value_or(of_values);
    }
    return {of_keys, of_values};
  }
};

}  // namespace kvq
