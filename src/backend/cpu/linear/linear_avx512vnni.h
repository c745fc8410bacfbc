// Products with packed matrices: tiles are decoded to vectors of unsigned bytes, one dword lane per row; one int8 dot
// product sums the four columns of a lane.
#pragma once

#include "backend/cpu/linear/kernels.h"
#include "backend/cpu/vectors.h"

#include <hwy/base.h>
#include <immintrin.h>

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,avx2,fma,f16c")

namespace kvq::cpu {
namespace {

/// Four columns of 16 rows.
inline constexpr int kQuads = 4;
inline constexpr size_t kQuadBytes = 64;
/// Bytes of four inputs of a row of activations, and of the row's adjacent quads.
inline constexpr ptrdiff_t kQuadSize = 4;
inline constexpr ptrdiff_t kRowBytes = kQuadSize * kQuadsTogether;
/// Prefetch distance of each stream of codes.
inline constexpr size_t kAhead = 1536;

/// A tile, or a decoder's form of it.
using TileBytes = __m512i[kQuads];

inline __m512i broadcast_quad(const std::byte* quad) {
  return _mm512_set1_epi32(*reinterpret_cast<const int32_t*>(quad));
}

inline void prefetch_tile(const uint8_t* tile, size_t bytes) {
  for (size_t i = 0; i < bytes; i += kDataAlignment) prefetch(tile + kAhead + i);
}

/// sums += (acc − zero point · Σ integers) · (scale · unit)
inline void add_block(__m512i acc, const LinearSegment& segment, const ActivationGroup& group, int32_t block, int row,
                      float* sums) {
  const size_t at = static_cast<size_t>(block) * static_cast<size_t>(group.rows) + static_cast<size_t>(row);
  const int32_t sum = group.sums[static_cast<size_t>(segment.half) * group.block_numbers() + at];
  const __m512i zero = _mm512_set1_epi32(weights::kZeroPoint * sum);
  const __m512 scale = _mm512_set1_ps(group.scales[at] * segment.codebook.unit);
  const __m512 value = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_sub_epi32(acc, zero)), scale);
  _mm512_storeu_ps(sums, _mm512_add_ps(_mm512_loadu_ps(sums), value));
}

/// `kPanels` panels side by side with all rows of one group.
template <typename Decoder, int kRows, int kPanels>
inline void multiply_panels(const Decoder& decoder, const LinearSegment& segment, const uint8_t* codes,
                            const ActivationGroup& group, float* sums) {
  const size_t tile_bytes = decoder.tile_bytes();
  const int32_t end = segment.first_column + segment.columns;
  for (int32_t column = segment.first_column; column < end;) {
    const int32_t block = column / weights::kActivationBlock;
    const int32_t stop = (block + 1) * weights::kActivationBlock < end ? (block + 1) * weights::kActivationBlock : end;
    __m512i acc[kPanels][kRows];
    HWY_UNROLL(8)
    for (int p = 0; p < kPanels; ++p) {
      HWY_UNROLL(8)
      for (int r = 0; r < kRows; ++r) acc[p][r] = _mm512_setzero_si512();
    }
    for (; column < stop; column += weights::kTileColumns) {
      const std::byte* x = group.quads + kQuadSize * group.quad_at(column, 0);
      HWY_UNROLL(8)
      for (int p = 0; p < kPanels; ++p) {
        TileBytes tile;
        const uint8_t* source = codes + static_cast<size_t>(p) * segment.stride;
        decoder.decode(source, tile);
        prefetch_tile(source, tile_bytes);
        HWY_UNROLL(8)
        for (int quad = 0; quad < kQuads; ++quad) {
          HWY_UNROLL(8)
          for (int r = 0; r < kRows; ++r) {
            acc[p][r] =
                _mm512_dpbusd_epi32(acc[p][r], tile[quad], broadcast_quad(x + kRowBytes * r + kQuadSize * quad));
          }
        }
      }
      codes += tile_bytes;
    }
    HWY_UNROLL(8)
    for (int p = 0; p < kPanels; ++p) {
      HWY_UNROLL(8)
      for (int r = 0; r < kRows; ++r) {
        add_block(acc[p][r], segment, group, block, r, sums + (p * kRows + r) * weights::kTileRows);
      }
    }
  }
}

/// Panels one after the other, each decoded once for all groups, a block at a time.
template <typename Decoder>
inline void decode_and_multiply(const Decoder& decoder, const LinearSegment& segment, const uint8_t* codes,
                                const ActivationGroup* groups, int32_t count, float* sums) {
  alignas(64) uint8_t levels[weights::kActivationBlock * weights::kTileRows];
  const size_t tile_bytes = decoder.tile_bytes();
  const int32_t end = segment.first_column + segment.columns;
  for (int32_t column = segment.first_column; column < end;) {
    const int32_t next = (column / weights::kActivationBlock + 1) * weights::kActivationBlock;
    const int32_t stop = next < end ? next : end;
    uint8_t* out = levels;
    for (int32_t i = column; i < stop; i += weights::kTileColumns, codes += tile_bytes) {
      TileBytes tile;
      decoder.decode(codes, tile);
      prefetch_tile(codes, tile_bytes);
      HWY_UNROLL(8)
      for (int quad = 0; quad < kQuads; ++quad, out += kQuadBytes) _mm512_store_si512(out, tile[quad]);
    }
    segment.products.multiply(levels, segment, column, stop, groups, count, sums);
    column = stop;
  }
}

template <typename Decoder, int kRows, int kPanels>
inline void multiply_group(const Decoder& decoder, const LinearSegment& segment, const ActivationGroup& group,
                           float* sums) {
  const uint8_t* codes = segment.codes;
  int32_t panel = 0;
  for (; panel + kPanels <= segment.panels; panel += kPanels) {
    multiply_panels<Decoder, kRows, kPanels>(decoder, segment, codes, group, sums);
    codes += kPanels * segment.stride;
    sums += kPanels * kRows * weights::kTileRows;
  }
  for (; panel < segment.panels; ++panel) {
    multiply_panels<Decoder, kRows, 1>(decoder, segment, codes, group, sums);
    codes += segment.stride;
    sums += kRows * weights::kTileRows;
  }
}

/// One group of at most `kRows` rows.
template <typename Decoder, int kRows>
inline void multiply_few_rows(const Decoder& decoder, const LinearSegment& segment, const ActivationGroup& group,
                              float* sums) {
  if constexpr (kRows > 1) {
    if (group.rows < kRows) return multiply_few_rows<Decoder, kRows - 1>(decoder, segment, group, sums);
  }
  constexpr int kPanels = Decoder::kPanels / kRows > 1 ? Decoder::kPanels / kRows : 1;
  multiply_group<Decoder, kRows, kPanels>(decoder, segment, group, sums);
}

template <typename Decoder>
void multiply_packed(const LinearSegment& segment, const ActivationGroup* groups, int32_t count, float* sums) {
  const Decoder decoder(segment.codebook);
  if (count == 1 && groups[0].rows < segment.products.least_rows) {
    return multiply_few_rows<Decoder, kGroupRows>(decoder, segment, groups[0], sums);
  }
  segment.products.begin(groups[0].rows);
  for (int32_t panel = 0; panel < segment.panels; ++panel) {
    const uint8_t* codes = segment.codes + static_cast<size_t>(panel) * segment.stride;
    decode_and_multiply(decoder, segment, codes, groups, count, sums);
    for (int32_t g = 0; g < count; ++g) sums += groups[g].rows * weights::kTileRows;
  }
  segment.products.end();
}

}  // namespace
}  // namespace kvq::cpu

HWY_POP_ATTRIBUTES
