#pragma once

#include "cache/policy.h"
#include "core/memory.h"
#include "formats/page_format.h"

#include <algorithm>
#include <span>

namespace kvq {

/// A policy in a cache: how its sequences store pages. Sequences of one cache may have different ones.
struct Storage {
  struct Layer {
    std::span<const PageFormat* const> formats;  // of sealed pages: one, or the router's experts
    bool hadamard_keys;
    bool hadamard_values;

    bool is_routed() const { return formats.size() > 1; }
    /// Whether sealing changes nothing.
    bool stays_float16() const { return !is_routed() && formats.front()->is_float16(); }
    bool has_gain_shape(Side side) const {
      return std::ranges::any_of(formats, [side](const PageFormat* each) { return each->side(side).code.has_gains(); });
    }
    bool spans_heads() const { return std::ranges::any_of(formats, &PageFormat::spans_heads); }
  };

  Storage(Allocator& allocator, const Policy& policy)
      : sink(policy.sink_pages()),
        recent(policy.recent),
        calibrates(policy.calibrates()),
        sealed(allocator),
        layers(allocator) {}

  const Layer& layer_at(int32_t index) const { return layers[static_cast<size_t>(index)]; }
  /// Runs of a list, one for each format of sealed pages.
  size_t runs_of_list() const { return layers.front().formats.size(); }
  /// Number of the run for a format of a layer; runs_of_list() for another format.
  size_t run_number(int32_t layer, const PageFormat* format) const {
    const auto& of_layer = layer_at(layer).formats;
    return static_cast<size_t>(std::find(of_layer.begin(), of_layer.end(), format) - of_layer.begin());
  }
  /// Whether the final format of page `index` of a list is always FP16.
  bool ends_float16(int32_t layer, int32_t index) const { return index < sink || layer_at(layer).stays_float16(); }

  /// Whether page `index` of a list of `pages` pages is FP16 for now.
  bool stays_float16(int32_t layer, int32_t index, int32_t pages) const {
    return ends_float16(layer, index) || index >= pages - recent;
  }
  /// Whether pages of a format are final, and so lie in runs, unless a router chose FP16.
  bool is_final(const PageFormat* format, int32_t layer) const {
    return !format->is_float16() || layer_at(layer).stays_float16();
  }

  /// Whether sequences of both have the same pages.
  bool equals(const Storage& other) const {
    return sink == other.sink && recent == other.recent && calibrates == other.calibrates &&
           std::ranges::equal(sealed, other.sealed);
  }

  /// Tokens before the newest that FP16 pages let a truncation take off anywhere.
  int32_t kept_for_truncation() const { return (recent - 1) * kPageSlots; }

  int32_t sink;
  int32_t recent;
  bool calibrates;
  Vector<const PageFormat*> sealed;  // [n_layers], or the router's experts
  Vector<Layer> layers;
};

}  // namespace kvq
