// Trellis codes of pairs: a window of 16 bits is hashed to an index, which is looked up for each of the two weights.
#include "backend/cpu/avx512vnni_linear.h"
#include "backend/cpu/avx512vnni_tables.h"
#include "backend/cpu/avx512vnni_windows.h"

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,avx2,fma,f16c")

namespace kvq::cpu {
namespace {

template <int kIndexBits>
class TrellisDecoder {
 public:
  static constexpr int kPanels = 2;  // tables take most registers

  explicit TrellisDecoder(const palette::Codebook& codebook) : windows_(codebook.code), tables_(codebook) {}

  size_t tile_bytes() const { return 4 * windows_.bytes(); }
  inline void decode(const uint8_t* tile, TileBytes& out) const {
    const size_t bytes = windows_.bytes();
    look_up_half(windows_.load(tile), windows_.load(tile + bytes), out[0], out[1]);
    look_up_half(windows_.load(tile + 2 * bytes), windows_.load_last(tile + 3 * bytes, tile), out[2], out[3]);
  }

 private:
  inline void look_up_half(__m512i first, __m512i second, __m512i& dim0, __m512i& dim1) const {
    first = hash(first);
    second = hash(second);
    constexpr int kShift = 15 - kIndexBits;
    const __m512i low = bytes_.lower(_mm512_srli_epi16(first, kShift), _mm512_srli_epi16(second, kShift));
    const __m512i high = bytes_.upper(first, second);  // the sign and the upper bits of the index
    const Selection bits = {_mm512_movepi8_mask(low), index_bit<8>(high), index_bit<9>(high), index_bit<10>(high)};
    const __m512i level = look_up<kIndexBits - 7>(tables_.first, low, bits);
    // 128 + level becomes 128 − level: 256 less it.
    dim0 = _mm512_mask_sub_epi8(level, _mm512_movepi8_mask(high), _mm512_setzero_si512(), level);
    dim1 = look_up<kIndexBits - 7>(tables_.second, low, bits);
  }

  static inline __m512i hash(__m512i window) {
    return _mm512_mullo_epi16(window, _mm512_add_epi16(window, _mm512_set1_epi16(1)));
  }

  template <int kBit>
  static inline __mmask64 index_bit(__m512i high) {
    if constexpr (kBit < kIndexBits) {
      return _mm512_test_epi8_mask(high, _mm512_set1_epi8(1 << (kBit + 7 - kIndexBits)));
    } else {
      return 0;
    }
  }

  WordWindows windows_;
  Bytes bytes_;
  PairTables<kIndexBits> tables_;
};

void multiply_tcq(const LinearSegment& segment, const ActivationGroup* groups, int32_t count, float* sums) {
  switch (segment.codebook.index_bits) {
    case 9:
      return multiply_packed<TrellisDecoder<9>>(segment, groups, count, sums);
    case 10:
      return multiply_packed<TrellisDecoder<10>>(segment, groups, count, sums);
    default:
      return multiply_packed<TrellisDecoder<11>>(segment, groups, count, sums);
  }
}

}  // namespace
}  // namespace kvq::cpu

HWY_POP_ATTRIBUTES

namespace kvq::cpu {

void set_avx512vnni_tcq(LinearKernels& kernels) {
  LinearKernel(&tcq)[33] = kernels.packed[static_cast<size_t>(palette::Family::kTcq)];
  for (int32_t quarters = 6; quarters <= 20; quarters += 2) tcq[quarters] = multiply_tcq;
}

}  // namespace kvq::cpu
