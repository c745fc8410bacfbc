// An instruction set's kernels for CommVQ pages.
#pragma once

#include "backend/cpu/attend/kernels.h"
#include "formats/commvq/codebook.h"
#include "formats/page.h"

namespace kvq {
class KeyEncoder;
class KeyLookup;
}  // namespace kvq

namespace kvq::cpu {

/// Unit keys before RoPE from the indices of one group of a page, [stages]{a of 32 slots, b}: planar vectors
/// (formats/commvq/key_kernels.h), one row per slot.
using CentreKernel = void (*)(const KeyEncoder& encoder, const uint8_t* indices, float* rows);

/// One side of consecutive pages in the lists of several heads.
struct PageSides {
  const Page* const* const* lists;  // [heads]
  ptrdiff_t first;                  // place of the first page in each list
  ptrdiff_t end;                    // length of the lists
  size_t offset;                    // side offset within a page

  const std::byte* at(int32_t head, int32_t page) const { return lists[head][first + page]->data + offset; }
  /// Data read one tile later; the same page at the end of the list.
  const std::byte* later(int32_t head, int32_t page) const {
    return at(head, first + page + kTilePages < end ? page + kTilePages : page);
  }
  /// Prefetches the record, which points to the data, of a page two tiles later.
  [[gnu::always_inline]] void prefetch_record(int32_t head, int32_t page) const {
    if (first + page + 2 * kTilePages < end) prefetch(lists[head][first + page + 2 * kTilePages]);
  }
};

/// Unit keys of up to kTilePages pages of a head, summed by table lookups and rotated by the offsets of their slots
/// (fixed point, as RotationTable::fixed_slots). planes: [pages][32 · head_dim] in the order of LookupScoreKernel.
using LookupKernel = void (*)(const KeyLookup& lookup, const CodebookShape& shape, const PageSides& keys, int32_t head,
                              int32_t pages, const int16_t* rotations, int16_t* planes);

/// A page of keys rebuilt by lookups.
struct LookupPage {
  const int16_t* plane;
  const float* rotation;  // rotation of its first slot's position, a row of a Rope table
  const uint16_t* norms;  // [32], FP16
};

/// KeyKernel for consecutive pages rebuilt by lookups.
using LookupScoreKernel = void (*)(const KeyLookup& lookup, const CodebookShape& shape, const LookupPage* pages,
                                   int32_t count, int32_t rows, const float* q, float* scores);

/// Planes of one-bit value codes, [pages][parts][lanes]; parts lie in the pages of successive heads.
struct BitPlanes {
  PageSides sides;
  int32_t first_head;
  int32_t parts;
  int32_t pages;
  int32_t lanes;           // a multiple of 8
  const uint16_t* scales;  // [pages][32] token scales, FP16
};

/// sums[r][n] += Σ_t p[r][t] · scale[t] over the slots with bit n set; sums[r][total] += the same over all slots. p: as
/// for a ValueKernel; sums: [rows, stride].
using BitKernel = void (*)(const BitPlanes& planes, int32_t rows, const float* p, float* sums, size_t stride,
                           size_t total);

/// out[r][i] += Σ_j left[r][j] · right[j][i] for j below `inner` and i below `columns`. right: [inner, right_stride],
/// left: [rows, left_stride], out: [rows, kMaxHeadDim]. Three rows run as four with a row of padding.
using MultiplyKernel = void (*)(const float* right, size_t right_stride, int32_t inner, int32_t columns, int32_t rows,
                                const float* left, size_t left_stride, float* out);

/// A query's products with the codes of one group of pairs, 16-bit integers: [stages][codes]{re[plane], im[plane]}.
struct ProductTable {
  const int16_t* products;
  int32_t stages;
  int32_t codes;
  int32_t plane;  // a multiple of 16
};

/// The products conj(q_j) · z[r][c][j] over the unit of each pair, from planar vectors to `products` as in
/// ProductTable.
using ProductKernel = void (*)(const KeyEncoder& encoder, const float* query, const float* inverse_units,
                               int16_t* products);

/// scores[t] += Re Σ_j weight_j · e^{iθ_tj} · Σ_r (product of a_r + i · product of b_r) for the 32 slots of a page.
/// indices: [stages]{a of 32 slots, b}; rotations: e^{iθ}, a planar vector per slot; weights: one planar vector.
using ProductScoreKernel = void (*)(const ProductTable& table, const uint8_t* indices, const float* rotations,
                                    const float* weights, float* scores);

struct CommvqKernels {
  CentreKernel sum_centres;
  LookupKernel lookup_keys;  // null: keys are rebuilt by sum_centres
  LookupScoreKernel lookup_scores;
  BitKernel sum_bits;
  MultiplyKernel multiply;
  ProductKernel multiply_codes;
  ProductScoreKernel sum_products;
};

}  // namespace kvq::cpu
