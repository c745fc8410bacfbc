#include "cache/states.h"

#include "core/error.h"

#include <algorithm>
#include <climits>
#include <utility>

namespace kvq {

uint64_t SavedState::bytes_of(uint64_t size) {
  static const uint64_t object = shared_bytes<SavedState>();
  return object + size;
}

Vector<SavedStates::Shared>::const_iterator SavedStates::place(int32_t layer, int32_t tokens) const {
  return std::ranges::lower_bound(all_, std::pair(layer, tokens), {},
                                  [](const Shared& state) { return std::pair(state->layer, state->tokens); });
}

void SavedStates::put(int32_t layer, int32_t tokens, std::span<const std::byte> bytes) {
  auto made =
      std::allocate_shared<const SavedState>(StlAllocator<SavedState>(*allocator_), layer, tokens, bytes, *allocator_);
  const auto at = place(layer, tokens);
  if (at != all_.end() && (*at)->layer == layer && (*at)->tokens == tokens) {
    all_[static_cast<size_t>(at - all_.begin())] = std::move(made);
  } else {
    all_.insert(at, std::move(made));
  }
}

const SavedStates::Shared* SavedStates::find(int32_t layer, int32_t tokens) const {
  const auto at = place(layer, tokens);
  return at != all_.end() && (*at)->layer == layer && (*at)->tokens == tokens ? &*at : nullptr;
}

int32_t SavedStates::newest(int32_t layer, int32_t most) const {
  auto at = most == INT_MAX ? place(layer + 1, 0) : place(layer, most + 1);
  if (at == all_.begin()) return 0;
  --at;
  return (*at)->layer == layer ? (*at)->tokens : 0;
}

int32_t SavedStates::newest_of_all(int32_t most) const {
  if (all_.empty()) return 0;
  // Each layer lowers the bound to a state of its own, until none has to.
  for (bool lowered = true; lowered && most > 0;) {
    lowered = false;
    for (auto at = all_.begin(); at != all_.end() && most > 0; at = place((*at)->layer + 1, 0)) {
      const int32_t tokens = newest((*at)->layer, most);
      lowered = lowered || tokens < most;
      most = tokens;
    }
  }
  return most;
}

void SavedStates::drop(int32_t begin, int32_t end) noexcept {
  std::erase_if(all_, [=](const Shared& state) { return state->tokens >= begin && state->tokens < end; });
}

void SavedStates::check_cut(int32_t length) const {
  if (length == 0) return;
  for (const Shared& state : all_) {
    if (find(state->layer, length) != nullptr) continue;
    fail(KVQ_E_STATE,
         "length is %d, but layer %d has no state after so many tokens: the nearest length before that has one of each "
         "layer is %d",
         length, state->layer, newest_of_all(length));
  }
}

void SavedStates::truncate(int32_t length) noexcept {
  std::erase_if(all_, [length](const Shared& state) { return state->tokens > length; });
}

uint64_t SavedStates::bytes() const {
  uint64_t bytes = 0;
  for (const Shared& state : all_) bytes += SavedState::bytes_of(state->bytes.size());
  return bytes;
}

}  // namespace kvq
