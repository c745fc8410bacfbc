#pragma once

#include "backend/cpu/append/kernels.h"
#include "backend/cpu/linear/kernels.h"
#include "formats/page.h"
#include "formats/page_format.h"

#include <cstddef>
#include <cstdint>

namespace kvq {
class KeyEncoder;
class KeyLookup;
}  // namespace kvq

namespace kvq::cpu {

/// Pages whose scores are formed before their values are read: long enough to amortise the softmax, short enough that
/// scores stay in the first-level cache.
inline constexpr int32_t kTilePages = 8;
inline constexpr int32_t kTileSlots = kTilePages * kPageSlots;
/// Query rows that share one pass over a page. Kernels exist for 1, 2 and 4; 3 runs as 4 with a row of padding.
inline constexpr int32_t kBlockRows = 4;

constexpr int32_t padded_dim(int32_t head_dim) { return (head_dim + 15) / 16 * 16; }

/// What kernels need to know about one side of a page.
struct SideShape {
  int32_t head_dim;
  int32_t group;  // channels per scale of an integer value page
};

/// One side of a page, and of the page that will be read a tile later: kernels prefetch it line by line, since pages
/// lie anywhere and the processor's own prefetchers stop at the end of each.
struct SideData {
  const std::byte* data;
  const std::byte* later;
};

/// Into the second-level cache. Always inlined: GCC takes a call of a function that only prefetches for one without
/// effect and removes it.
[[gnu::always_inline]] inline void prefetch(const void* address) { __builtin_prefetch(address, 0, 2); }

/// scores[r][t] = q[r] · key[t] for the 32 slots of a page.
/// q: [rows, head_dim], scores: [rows, kTileSlots] from the page's first slot.
using KeyKernel = void (*)(const SideShape& shape, const SideData& keys, int32_t rows, const float* q, float* scores);

/// out[r] += Σ_t p[r][t] · value[t] over the slots of consecutive pages of a tile.
/// values: [pages], p: [rows, kTileSlots] from the first page's first slot, out: [rows, padded_dim(head_dim)].
using ValueKernel = void (*)(const SideShape& shape, const SideData* values, int32_t pages, int32_t rows,
                             const float* p, float* out);

/// Unit keys before RoPE from the indices of one group of a page, [stages]{a of 32 slots, b}: planar vectors
/// (codebooks/key_kernels.h), a row a slot.
using CentreKernel = void (*)(const KeyEncoder& encoder, const uint8_t* indices, float* rows);

/// The same side of consecutive pages in the lists of several heads.
struct PageSides {
  const Page* const* const* lists;  // [heads]
  ptrdiff_t first;                  // place of the first page in each list
  ptrdiff_t end;                    // of the lists
  size_t offset;                    // of the side in a page

  const std::byte* at(int32_t head, int32_t page) const { return lists[head][first + page]->data + offset; }
  /// What will be read a tile later; the same page if there is nothing.
  const std::byte* later(int32_t head, int32_t page) const {
    return at(head, first + page + kTilePages < end ? page + kTilePages : page);
  }
  /// The record of a page two tiles later: where its data are.
  [[gnu::always_inline]] void prefetch_record(int32_t head, int32_t page) const {
    if (first + page + 2 * kTilePages < end) prefetch(lists[head][first + page + 2 * kTilePages]);
  }
};

/// Unit keys of up to kTilePages pages of a head, summed by table lookups and rotated by the turns of their slots
/// (fixed point, as PositionTurns::fixed_slots). planes: [pages][32 · head_dim] in an order that the kernel below
/// knows.
using LookupKernel = void (*)(const KeyLookup& lookup, const CodebookShape& shape, const PageSides& keys, int32_t head,
                              int32_t pages, const int16_t* turns, int16_t* planes);

/// A page of keys rebuilt by lookups.
struct LookupPage {
  const int16_t* plane;
  const float* turn;      // of the position of its first slot, a row of a Rope table
  const uint16_t* norms;  // [32], FP16
};

/// As KeyKernel, for consecutive pages.
using LookupScoreKernel = void (*)(const KeyLookup& lookup, const CodebookShape& shape, const LookupPage* pages,
                                   int32_t count, int32_t rows, const float* q, float* scores);

/// Planes of one-bit codes of values, [pages][parts][lanes], parts in the pages of successive heads.
struct BitPlanes {
  PageSides sides;
  int32_t first_head;
  int32_t parts;
  int32_t pages;
  int32_t lanes;           // a multiple of 8
  const uint16_t* scales;  // [pages][32], FP16, of tokens
};

/// sums[r][n] += Σ_t p[r][t] · scale[t] over the slots whose bit n is set; sums[r][total] += the same over all slots.
/// p: as for a ValueKernel; sums: [rows, stride].
using BitKernel = void (*)(const BitPlanes& planes, int32_t rows, const float* p, float* sums, size_t stride,
                           size_t total);

/// out[r][i] += Σ_j left[r][j] · right[j][i] for j below `inner` and i below `columns`. right: [inner, right_stride],
/// left: [rows, left_stride], out: [rows, kMaxHeadDim]. Of three rows there is a fourth of padding.
using MultiplyKernel = void (*)(const float* right, size_t right_stride, int32_t inner, int32_t columns, int32_t rows,
                                const float* left, size_t left_stride, float* out);

/// A query's products with the codes of one group of pairs, as 16-bit integers: [stages][codes]{re[plane], im[plane]}.
struct ProductTable {
  const int16_t* products;
  int32_t stages;
  int32_t codes;
  int32_t plane;  // a multiple of 16
};

/// The products conj(q_j) · z[r][c][j] over the unit of each pair. Planar vectors; `products` as above.
using ProductKernel = void (*)(const KeyEncoder& encoder, const float* query, const float* inverse_units,
                               int16_t* products);

/// scores[t] += Re Σ_j weight_j · turn_tj · Σ_r (product of a_r + i · product of b_r) for the 32 slots of a page.
/// indices: [stages]{a of 32 slots, b}; turns: planar vectors, a row a slot; weights: one of them.
using ProductScoreKernel = void (*)(const ProductTable& table, const uint8_t* indices, const float* turns,
                                    const float* weights, float* scores);

/// Running state of one row's softmax, in base-2 logarithms.
struct SoftmaxState {
  float maximum;  // −infinity before anything was seen
  float sum;
};

/// Turn n scores (base-2 logits, −infinity where masked) into unnormalised probabilities relative to the new maximum.
/// Returns the factor for what was accumulated before.
using SoftmaxKernel = float (*)(float* scores, int32_t n, float softcap, SoftmaxState* state);

/// out[i] = a · out[i] + b · x[i]
using BlendKernel = void (*)(float* out, float a, const float* x, float b, int32_t n);

/// One instruction set's kernels.
struct KernelTable {
  const char* name;
  KeyKernel float16_keys;
  ValueKernel float16_values;
  KeyKernel integer_keys[9];  // by bits; null where no such format exists
  ValueKernel integer_values[9];
  CentreKernel sum_centres;
  LookupKernel lookup_keys;  // null: keys are rebuilt by sum_centres
  LookupScoreKernel lookup_scores;
  BitKernel sum_bits;
  MultiplyKernel multiply;
  ProductKernel multiply_codes;
  ProductScoreKernel sum_products;
  SoftmaxKernel softmax;
  BlendKernel blend;
  const AppendKernels* append;
  const LinearKernels* linear;

  KeyKernel keys(const SideFormat& format) const {
    return format.codec == Codec::kFloat16 ? float16_keys : integer_keys[format.bits];
  }
  ValueKernel values(const SideFormat& format) const {
    return format.codec == Codec::kFloat16 ? float16_values : integer_values[format.bits];
  }
};

}  // namespace kvq::cpu
