#pragma once

#include "core/memory.h"
#include "formats/page_format.h"

#include <optional>

namespace kvq {

/// How pages are stored, as a policy document says it.
struct Policy {
  explicit Policy(Allocator& allocator) : overrides(StlAllocator<Override>(allocator)) {}

  /// Formats of a range of layers; later entries win.
  struct Override {
    int32_t first_layer;
    int32_t last_layer;  // inclusive
    std::optional<SideFormat> keys;
    std::optional<SideFormat> values;
  };

  SideFormat keys;
  SideFormat values;
  int32_t sink = 0;    // first pages that stay FP16
  int32_t recent = 1;  // newest pages that stay FP16, the open one included
  Vector<Override> overrides;

  PageFormat sealed_format(int32_t layer, int32_t head_dim) const {
    PageFormat format{keys, values, head_dim};
    for (const Override& each : overrides) {
      if (layer < each.first_layer || layer > each.last_layer) continue;
      if (each.keys) format.keys = *each.keys;
      if (each.values) format.values = *each.values;
    }
    return format;
  }
};

}  // namespace kvq
