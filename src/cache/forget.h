// Layers with a window forget: pages that no later query sees leave their lists.
#pragma once

#include "cache/sequence.h"

namespace kvq {

/// Free the pages of a layer, behind the sink, that queries from `position` on do not see, and those before it to which
/// `recent` pages in FP16 let a truncation return. Only telling a device can fail. None is freed while the layer waits
/// for scales or in a step, which could not be taken back.
void forget_hidden(Sequence& sequence, int32_t layer, int32_t position);

/// The same by the rule of a device that appends by itself: before it opens a page at `position`, with appends of at
/// most `step` tokens.
void forget_for_page(Sequence& sequence, int32_t layer, int32_t position, int32_t step) noexcept;

/// Most pages that a list of a layer with a window has, if no append and no step is longer than `step` tokens;
/// INT32_MAX without a window.
int32_t most_pages(const LayerShape& layer, const Storage& storage, int32_t step);
/// Slots of such a list after `tokens` tokens that came one by one.
int32_t slots_held(const LayerShape& layer, const Storage& storage, int32_t tokens);

}  // namespace kvq
