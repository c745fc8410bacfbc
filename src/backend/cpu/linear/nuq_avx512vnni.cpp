// Non-uniform scalar codes: a byte permutation looks up in up to 64 levels.
#include "backend/cpu/dispatch/avx512vnni.h"
#include "backend/cpu/linear/linear_avx512vnni.h"
#include "backend/cpu/linear/windows_avx512vnni.h"

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,avx2,fma,f16c")

namespace kvq::cpu {
namespace {

/// The levels of a code as unsigned bytes, repeated so that indices need no mask.
template <int kEntries>
inline void fill_levels(const weights::Codebook& codebook, uint8_t (&levels)[kEntries]) {
  const int8_t* source = codebook.levels.data();
  const size_t last = codebook.levels.size() - 1;
  for (size_t i = 0; i < kEntries; ++i) levels[i] = static_cast<uint8_t>(source[i & last] + weights::kZeroPoint);
}

/// One bit: a mask that chooses between two levels.
class BitDecoder {
 public:
  static constexpr int kPanels = kLinearPanels;

  explicit BitDecoder(const weights::Codebook& codebook) {
    uint8_t levels[2];
    fill_levels(codebook, levels);
    low_ = _mm512_set1_epi8(static_cast<char>(levels[0]));
    high_ = _mm512_set1_epi8(static_cast<char>(levels[1]));
  }

  static constexpr size_t tile_bytes() { return 32; }
  inline void decode(const uint8_t* tile, TileBytes& out) const {
    HWY_UNROLL(8)
    for (int quad = 0; quad < kQuads; ++quad) {
      const __mmask64 bits = _load_mask64(const_cast<__mmask64*>(reinterpret_cast<const __mmask64*>(tile) + quad));
      out[quad] = _mm512_mask_blend_epi8(bits, low_, high_);
    }
  }

 private:
  __m512i low_;
  __m512i high_;
};

/// Two to six bits.
class NuqDecoder {
 public:
  static constexpr int kPanels = kLinearPanels;

  explicit NuqDecoder(const weights::Codebook& codebook)
      : codes_(codebook.code.quarters / 4), quad_bytes_(static_cast<size_t>(2 * codebook.code.quarters)) {
    alignas(64) uint8_t levels[64];
    fill_levels(codebook, levels);
    levels_ = _mm512_load_si512(levels);
  }

  size_t tile_bytes() const { return kQuads * quad_bytes_; }
  inline void decode(const uint8_t* tile, TileBytes& out) const {
    HWY_UNROLL(8)
    for (int quad = 0; quad < kQuads; ++quad) {
      out[quad] = _mm512_permutexvar_epi8(codes_.load(tile + static_cast<size_t>(quad) * quad_bytes_), levels_);
    }
  }

 private:
  ByteCodes codes_;
  __m512i levels_;
  size_t quad_bytes_;
};

/// Two bits and one row of inputs, where decoding costs most: a byte holds the codes of four neighbouring columns, so a
/// register of a tile, with bytes in row order, gives every fourth column by a shift. Inputs are gathered to match,
/// once for all panels.
class FourthsDecoder {
 public:
  explicit FourthsDecoder(const weights::Codebook& codebook) {
    alignas(64) uint8_t levels[64];
    fill_levels(codebook, levels);
    levels_ = _mm512_load_si512(levels);
    alignas(64) uint8_t rows[64];
    for (int i = 0; i < 64; ++i) rows[i] = static_cast<uint8_t>(i % 4 * 16 + i / 4);
    by_row_ = _mm512_load_si512(rows);
  }

  inline void pick_inputs(const std::byte* x, __m512i (&inputs)[4]) const {
    const __m512i all = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x)));
    HWY_UNROLL(8)
    for (int i = 0; i < 4; ++i) inputs[i] = _mm512_shuffle_epi8(all, _mm512_set1_epi32(0x0C080400 + 0x01010101 * i));
  }
  inline __m512i add_tile(__m512i acc, const uint8_t* tile, const __m512i (&inputs)[4]) const {
    const __m512i codes = _mm512_permutexvar_epi8(by_row_, _mm512_loadu_si512(tile));
    acc = _mm512_dpbusd_epi32(acc, _mm512_permutexvar_epi8(codes, levels_), inputs[0]);
    acc = _mm512_dpbusd_epi32(acc, _mm512_permutexvar_epi8(_mm512_srli_epi16(codes, 2), levels_), inputs[1]);
    acc = _mm512_dpbusd_epi32(acc, _mm512_permutexvar_epi8(_mm512_srli_epi16(codes, 4), levels_), inputs[2]);
    return _mm512_dpbusd_epi32(acc, _mm512_permutexvar_epi8(_mm512_srli_epi16(codes, 6), levels_), inputs[3]);
  }

 private:
  __m512i levels_;
  __m512i by_row_;
};

template <int kPanels>
inline void multiply_fourths(const FourthsDecoder& decoder, const LinearSegment& segment, const uint8_t* codes,
                             const ActivationGroup& group, float* sums) {
  constexpr size_t kTileBytes = 64;
  const int32_t end = segment.first_column + segment.columns;
  for (int32_t column = segment.first_column; column < end;) {
    const int32_t block = column / weights::kActivationBlock;
    const int32_t stop = (block + 1) * weights::kActivationBlock < end ? (block + 1) * weights::kActivationBlock : end;
    __m512i acc[kPanels];
    HWY_UNROLL(8)
    for (int p = 0; p < kPanels; ++p) acc[p] = _mm512_setzero_si512();
    for (; column < stop; column += weights::kTileColumns, codes += kTileBytes) {
      __m512i inputs[4];
      decoder.pick_inputs(group.quads + column, inputs);
      HWY_UNROLL(8)
      for (int p = 0; p < kPanels; ++p) {
        const uint8_t* tile = codes + static_cast<size_t>(p) * segment.stride;
        acc[p] = decoder.add_tile(acc[p], tile, inputs);
        prefetch_tile(tile, kTileBytes);
      }
    }
    HWY_UNROLL(8)
    for (int p = 0; p < kPanels; ++p) add_block(acc[p], segment, group, block, 0, sums + p * weights::kTileRows);
  }
}

void multiply_two_bits(const LinearSegment& segment, const ActivationGroup* groups, int32_t count, float* sums) {
  if (count != 1 || groups[0].rows != 1) return multiply_packed<NuqDecoder>(segment, groups, count, sums);
  const FourthsDecoder decoder(segment.codebook);
  const uint8_t* codes = segment.codes;
  int32_t panel = 0;
  for (; panel + kLinearPanels <= segment.panels; panel += kLinearPanels) {
    multiply_fourths<kLinearPanels>(decoder, segment, codes, groups[0], sums);
    codes += kLinearPanels * segment.stride;
    sums += kLinearPanels * weights::kTileRows;
  }
  for (; panel < segment.panels; ++panel) {
    multiply_fourths<1>(decoder, segment, codes, groups[0], sums);
    codes += segment.stride;
    sums += weights::kTileRows;
  }
}

/// Eight bits.
class ByteDecoder {
 public:
  static constexpr int kPanels = kLinearPanels;

  explicit ByteDecoder(const weights::Codebook& codebook) {
    alignas(64) uint8_t levels[256];
    fill_levels(codebook, levels);
    for (int i = 0; i < 4; ++i) levels_[i] = _mm512_load_si512(levels + 64 * i);
  }

  static constexpr size_t tile_bytes() { return 256; }
  inline void decode(const uint8_t* tile, TileBytes& out) const {
    HWY_UNROLL(8)
    for (int quad = 0; quad < kQuads; ++quad) {
      const __m512i codes = _mm512_loadu_si512(tile + 64 * quad);
      out[quad] = Selection<1>({_mm512_movepi8_mask(codes)}).look_up(levels_, codes);
    }
  }

 private:
  __m512i levels_[4];
};

}  // namespace
}  // namespace kvq::cpu

HWY_POP_ATTRIBUTES

namespace kvq::cpu {

void set_avx512vnni_nuq(LinearKernels& kernels) {
  LinearKernel(&nuq)[33] = kernels.packed[static_cast<size_t>(weights::Family::kNuq)];
  nuq[4] = multiply_packed<BitDecoder>;
  nuq[8] = multiply_two_bits;
  for (const int32_t bits : {3, 4, 5, 6}) nuq[4 * bits] = multiply_packed<NuqDecoder>;
  nuq[32] = multiply_packed<ByteDecoder>;
}

}  // namespace kvq::cpu
