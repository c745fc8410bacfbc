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

/// What a policy leaves to its formats.
struct FormatDefaults {
  void add(const SideFormat& format) {
    // Models attend strongly to their first tokens.
    sink = std::max(sink, describe(format.code).sink);
    has_gains = has_gains || format.code.has_gains();
    is_trained = is_trained || codec_of(format.code).needs_training(format);
  }
  void add_expert(const FormatPair& formats) {
    add(formats.keys);
    add(formats.values);
    is_trained = true;  // the router
  }
  /// Trained data is made for one scale.
  bool calibrates() const { return has_gains && !is_trained; }

  int32_t sink = 0;
  bool has_gains = false;
  bool is_trained = false;
};

/// Storage of pages, as a policy document specifies it.
struct Policy {
  explicit Policy(Allocator& allocator) : overrides(allocator), experts(allocator) {}

  /// Formats of a range of layers; later entries win.
  struct Override {
    int32_t first_layer;
    int32_t last_layer;  // inclusive
    std::optional<SideFormat> keys;
    std::optional<SideFormat> values;
    std::optional<int32_t> window;
  };

  SideFormat keys;
  SideFormat values;
  std::optional<int32_t> sink;      // first pages of every list that stay FP16; unset: the formats' default
  int32_t recent = kDefaultRecent;  // newest pages that stay FP16, the open one included
  int32_t window = 0;               // positions that queries see; 0: all
  std::optional<bool> calibrate;    // sequences find scales by their first tokens; unset: the formats' default
  Eviction eviction;
  CodecOptions options;  // of formats with options
  Vector<Override> overrides;
  Vector<FormatPair> experts;  // a router's formats, those with more bits first; empty: no router
  Votes votes = Votes::kLayer;

  FormatDefaults defaults() const {
    FormatDefaults found;
    if (experts.empty()) {
      found.add(keys);
      found.add(values);
    }
    for (const Override& each : overrides) {
      if (each.keys.has_value()) found.add(*each.keys);
      if (each.values.has_value()) found.add(*each.values);
    }
    for (const FormatPair& each : experts) found.add_expert(each);
    return found;
  }
  int32_t sink_pages() const { return sink.value_or(defaults().sink); }
  bool calibrates() const { return calibrate.value_or(defaults().calibrates()); }

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

  int32_t window_of(int32_t layer) const {
    int32_t of_layer = window;
    for (const Override& each : overrides) {
      if (layer >= each.first_layer && layer <= each.last_layer) of_layer = each.window.value_or(of_layer);
    }
    return of_layer;
  }
};

}  // namespace kvq
