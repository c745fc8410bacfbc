#pragma once

#include "backend/backend.h"
#include "backend/cpu/kernels.h"
#include "core/memory.h"

#include <array>
#include <cstdint>

namespace kvq::cpu {

/// Sums of probabilities over tokens by the bits of their codes: what value pages with codes add up to. The last of
/// them is over all tokens.
struct BitSums {
  BitSums() = default;
  explicit BitSums(const CodebookShape& shape) : bits(static_cast<size_t>(padded_dim(shape.code_bits()))) {}

  size_t bits = 0;  // padded; 0: no values have codes

  size_t width() const { return bits == 0 ? 0 : bits + 16; }  // of a row
  size_t total() const { return bits; }                       // where the sum over all tokens is
};

/// Keys and values of pages stored with codes, for rows of queries of one head.
class CodedAttention {
 public:
  /// `lists`: of all KV heads, `end` pages each. Nothing is done if the batch has no codes.
  CodedAttention(const AttendBatch& batch, const KernelTable& kernels, const Page* const* const* lists, int32_t head,
                 ptrdiff_t end);

  /// How many pages may be prepared together.
  int32_t tile_pages() const { return tile_pages_; }

  /// Rebuild the keys of those of `count` pages from place `first` on that have codes, once for all rows.
  void prepare(ptrdiff_t first, int32_t count);

  /// As a KeyKernel, for consecutive pages that were prepared. Keys stand at the positions 0 to 31; the queries are
  /// turned back by the position of each page's first slot instead.
  void score(ptrdiff_t first, int32_t count, int32_t rows, const float* q, float* scores);

  /// As a ValueKernel, but into rows of bit sums.
  void add_values(ptrdiff_t first, int32_t count, int32_t rows, const float* p, const BitSums& layout, float* sums);

 private:
  static constexpr size_t kPlanes = size_t{1} << 15;  // numbers in all planes: eight pages of heads of 128

  const Page& page(ptrdiff_t place) const { return *lists_[head_][place]; }
  const CodebookShape& shape() const;
  const KeyLookup* lookup() const;
  size_t plane_size() const { return static_cast<size_t>(kPageSlots * batch_.head_dim); }
  const float* turn(ptrdiff_t place) const { return turns_.data() + (place - prepared_) * batch_.head_dim; }
  bool has_regular_positions(ptrdiff_t place) const;
  PageSides sides(ptrdiff_t first, Side side) const;

  void rebuild_by_lookup(ptrdiff_t first, int32_t count);
  void rebuild(ptrdiff_t place);
  void turn_slots(const Page& page, float* turns) const;

  const AttendBatch& batch_;
  const KernelTable& kernels_;
  const Page* const* const* lists_;
  int32_t head_;
  ptrdiff_t end_;
  int32_t tile_pages_;
  ptrdiff_t prepared_ = 0;  // place of the page in the first plane
  alignas(kDataAlignment) std::array<int16_t, kPlanes> planes_;
  alignas(kDataAlignment) std::array<float, static_cast<size_t>(kTilePages* kMaxHeadDim)> turns_;
  alignas(kDataAlignment) std::array<uint16_t, static_cast<size_t>(kTileSlots)> norms_;
};

/// out[r][head_dim] += what the bit sums of up to four queries of KV head `head` decode to. sums: rows of
/// layout.width(); out: rows of kMaxHeadDim.
void add_decoded(const LayerCodes& codes, const KernelTable& kernels, int32_t head, const BitSums& layout, int32_t rows,
                 const float* sums, float* out);

}  // namespace kvq::cpu
