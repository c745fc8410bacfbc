#pragma once

#include "core/memory.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace kvq {

/// Bytes that the host keeps of a layer, such as what a recurrent layer remembers after the first `tokens` tokens.
/// Nothing changes them, so forks share them.
struct SavedState {
  SavedState(int32_t layer_, int32_t tokens_, std::span<const std::byte> bytes_, Allocator& allocator)
      : layer(layer_), tokens(tokens_), bytes(bytes_.begin(), bytes_.end(), allocator) {}

  /// Bytes of memory for a state of so many.
  static uint64_t bytes_of(uint64_t size);

  int32_t layer;   // number in the model
  int32_t tokens;  // at least 1
  Vector<std::byte> bytes;
};

/// The states of one sequence, in the order of layers, then of tokens.
class SavedStates {
 public:
  using Shared = std::shared_ptr<const SavedState>;

  /// `states`: memory for states, `lists` for lists of them.
  SavedStates(Allocator& states, Allocator& lists) : allocator_(&states), all_(lists) {}

  /// Keep a copy, in place of one of the same layer and tokens.
  void put(int32_t layer, int32_t tokens, std::span<const std::byte> bytes);
  /// Share a state of another sequence, which belongs behind all others.
  void share(const Shared& state) { all_.push_back(state); }
  /// Null without one.
  const Shared* find(int32_t layer, int32_t tokens) const;
  /// The most tokens, up to `most`, after which a layer has a state; 0 if there are none.
  int32_t newest(int32_t layer, int32_t most) const;
  /// The same after which each layer that has states has one.
  int32_t newest_of_all(int32_t most) const;
  /// Drop those after `begin` to `end` − 1 tokens.
  void drop(int32_t begin, int32_t end) noexcept;

  /// Throw KVQ_E_STATE if a layer that has states has none after the first `length` tokens, above 0.
  void check_cut(int32_t length) const;
  void truncate(int32_t length) noexcept;

  std::span<const Shared> all() const { return all_; }
  /// Bytes of the states, and of the list.
  uint64_t bytes() const;
  uint64_t list_bytes() const { return all_.capacity() * sizeof(Shared); }

 private:
  /// Place of the first state of a layer after at least so many tokens.
  Vector<Shared>::const_iterator place(int32_t layer, int32_t tokens) const;

  Allocator* allocator_;
  Vector<Shared> all_;
};

}  // namespace kvq
