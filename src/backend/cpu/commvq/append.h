#pragma once

#include "backend/backend.h"
#include "core/aligned_bytes.h"
#include "core/memory.h"
#include "core/parallel.h"

#include <span>

namespace kvq::cpu {

/// The writes of one slice of an append whose pages are stored with a codebook. Pages are filled in FP16 first, of all
/// heads; then what is coded is encoded from there, keys with their rotation undone.
class CodedPages {
 public:
  CodedPages(const TokenBatch& tokens, Allocator& scratch);

  /// Make room for the pages of the next slice. `slice` must stay as it is until encode().
  void begin(std::span<const PageWrite* const> slice);
  /// Where write `i` of the slice puts its page in FP16; null if it is stored without a codebook.
  std::byte* staging(size_t i) { return staging_[i]; }
  /// Encode the coded sides of all pages.
  void encode(Parallel& parallel);

 private:
  struct Write {
    const PageWrite* write;
    const std::byte* page;  // FP16
  };
  /// Pages that belong together: of all heads, or of one.
  struct Group {
    size_t first;  // of writes_
    size_t count;
    size_t floats;  // where its keys begin in numbers_, [slots][count][head_dim], followed by its values
  };

  void find_groups();
  void load(size_t index) noexcept;
  void encode_keys(size_t index, float* work) const noexcept;
  void encode_values(size_t index, float* work) const noexcept;
  const Group& group_of(size_t index) const { return groups_[group_of_[index]]; }
  float* keys(const Group& group) { return numbers_.data() + group.floats; }
  const float* keys(const Group& group) const { return numbers_.data() + group.floats; }
  size_t side_floats(const Group& group) const;

  const TokenBatch& tokens_;
  const PageFormat plain_;
  AlignedBytes memory_;
  Vector<std::byte*> staging_;  // [slice]
  Vector<Write> writes_;        // the coded ones, those of a group side by side
  Vector<Group> groups_;
  Vector<size_t> group_of_;  // [writes_]
  Vector<float> numbers_;
};

}  // namespace kvq::cpu
