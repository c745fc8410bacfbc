// Trellis codes: a window of 16 bits is hashed to an index and a sign; byte permutations look up the levels.
#include "backend/cpu/dispatch/avx512vnni.h"
#include "backend/cpu/linear/linear_avx512vnni.h"
#include "backend/cpu/linear/windows_avx512vnni.h"

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,avx2,fma,f16c")

namespace kvq::cpu {
namespace {

/// Hashes of a tile's windows, 64 steps at a time. Decoders run each stage for a whole tile, because processors keep
/// only a limited number of waiting operations in flight.
template <typename Windows>
class TileHashes {
 public:
  explicit TileHashes(const weights::Codebook& codebook)
      : windows_(codebook.code), addend_(_mm512_set1_epi16(static_cast<int16_t>(codebook.addend))) {}

  /// Bytes of 64 steps.
  size_t bytes() const { return windows_.bytes(); }

  template <size_t kCount>
  HWY_INLINE void load(const uint8_t* tile, __m512i (&hashes)[kCount][2]) const {
    HWY_UNROLL(4)
    for (size_t i = 0; i + 1 < kCount; ++i) windows_.load(tile + i * bytes(), hashes[i][0], hashes[i][1]);
    windows_.load_last(tile + (kCount - 1) * bytes(), tile, hashes[kCount - 1][0], hashes[kCount - 1][1]);
    HWY_UNROLL(4)
    for (__m512i(&each)[2] : hashes) {
      each[0] = hash(each[0]);
      each[1] = hash(each[1]);
    }
  }

 private:
  HWY_INLINE __m512i hash(__m512i windows) const {
    return _mm512_mullo_epi16(windows, _mm512_add_epi16(windows, addend_));
  }

  Windows windows_;
  __m512i addend_;
};

/// 128 + level becomes 128 − level where hashes have the sign: 256 minus the byte.
inline __m512i with_sign(__m512i level, __m512i upper) {
  return _mm512_mask_sub_epi8(level, _mm512_movepi8_mask(upper), _mm512_setzero_si512(), level);
}

/// tcx: one level per step.
class TrellisDecoder {
 public:
  static constexpr int kPanels = kLinearPanels;

  explicit TrellisDecoder(const weights::Codebook& codebook) : hashes_(codebook) {
    const __m512i zero = _mm512_set1_epi8(static_cast<char>(weights::kZeroPoint));
    for (int i = 0; i < 2; ++i) {
      table_[i] = _mm512_add_epi8(_mm512_loadu_si512(codebook.levels.data() + 64 * i), zero);
    }
  }

  size_t tile_bytes() const { return kQuads * hashes_.bytes(); }
  HWY_INLINE void decode(const uint8_t* tile, TileBytes& out) const {
    __m512i hashes[kQuads][2];
    hashes_.load(tile, hashes);
    __m512i upper[kQuads];
    HWY_UNROLL(4)
    for (int quad = 0; quad < kQuads; ++quad) upper[quad] = bytes_.upper(hashes[quad][0], hashes[quad][1]);
    HWY_UNROLL(4)
    for (int quad = 0; quad < kQuads; ++quad) {
      out[quad] = _mm512_permutex2var_epi8(table_[0], upper[quad], table_[1]);
    }
    HWY_UNROLL(4)
    for (int quad = 0; quad < kQuads; ++quad) out[quad] = with_sign(out[quad], upper[quad]);
  }

 private:
  TileHashes<NarrowWindows> hashes_;
  Bytes<NarrowWindows> bytes_;
  __m512i table_[2];
};

/// tcq: the levels of a pair per step.
template <int kIndexBits, typename Windows>
class PairTrellisDecoder {
 public:
  static constexpr int kPanels = 2;  // tables occupy most registers

  explicit PairTrellisDecoder(const weights::Codebook& codebook) : hashes_(codebook), tables_(codebook) {
    for (int bit = 0; bit < kLowerIndexBits; ++bit) tables_.split_by_lowest_bit();
  }

  size_t tile_bytes() const { return 2 * hashes_.bytes(); }
  HWY_INLINE void decode(const uint8_t* tile, TileBytes& out) const {
    __m512i hashes[2][2];
    hashes_.load(tile, hashes);
    __m512i lower[2];
    __m512i upper[2];
    HWY_UNROLL(2)
    for (int half = 0; half < 2; ++half) {
      lower[half] = bytes_.lower(hashes[half][0], hashes[half][1]);
      upper[half] = bytes_.upper(hashes[half][0], hashes[half][1]);
    }
    HWY_UNROLL(2)
    for (int half = 0; half < 2; ++half) {
      const Selection<kLowerIndexBits> selection = select(lower[half]);
      out[2 * half] = with_sign(selection.look_up(tables_.first, upper[half]), upper[half]);
      out[2 * half + 1] = selection.look_up(tables_.second, upper[half]);
    }
  }

 private:
  /// Index bits beyond those beside the sign in the upper byte of a hash.
  static constexpr int kLowerIndexBits = kIndexBits - 7;

  static HWY_INLINE Selection<kLowerIndexBits> select(__m512i lower) {
    __mmask64 bits[kLowerIndexBits];
    for (int bit = 0; bit < kLowerIndexBits; ++bit) {
      const __m512i place = _mm512_set1_epi8(static_cast<char>(1 << (8 - kLowerIndexBits + bit)));
      bits[bit] = _mm512_test_epi8_mask(lower, place);
    }
    return Selection<kLowerIndexBits>(bits);
  }

  TileHashes<Windows> hashes_;
  Bytes<Windows> bytes_;
  PairTables<kIndexBits> tables_;
};

void multiply_tcq(const LinearSegment& segment, const ActivationGroup* groups, int32_t count, float* sums) {
  switch (segment.codebook.index_bits) {
    case 9:
      return segment.codebook.code.quarters <= 12
                 ? multiply_packed<PairTrellisDecoder<9, NarrowWindows>>(segment, groups, count, sums)
                 : multiply_packed<PairTrellisDecoder<9, WordWindows>>(segment, groups, count, sums);
    case 10:
      return multiply_packed<PairTrellisDecoder<10, WordWindows>>(segment, groups, count, sums);
    default:
      return multiply_packed<PairTrellisDecoder<11, WordWindows>>(segment, groups, count, sums);
  }
}

}  // namespace
}  // namespace kvq::cpu

HWY_POP_ATTRIBUTES

namespace kvq::cpu {

void set_avx512vnni_trellis(LinearKernels& kernels) {
  LinearKernel(&tcq)[33] = kernels.packed[static_cast<size_t>(weights::Family::kTcq)];
  LinearKernel(&tcx)[33] = kernels.packed[static_cast<size_t>(weights::Family::kTcx)];
  for (int32_t quarters = 6; quarters <= 20; quarters += 2) {
    tcq[quarters] = multiply_tcq;
    tcx[quarters] = multiply_packed<TrellisDecoder>;
  }
}

}  // namespace kvq::cpu
