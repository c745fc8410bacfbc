// Pair codes: the index of a pair is looked up in a table for each of its two weights.
#include "backend/cpu/dispatch/avx512vnni.h"
#include "backend/cpu/linear/linear_avx512vnni.h"
#include "backend/cpu/linear/windows_avx512vnni.h"

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,avx2,fma,f16c")

namespace kvq::cpu {
namespace {

/// Up to six bits a pair: two byte permutations.
class SmallPairDecoder {
 public:
  static constexpr int kPanels = kLinearPanels;

  explicit SmallPairDecoder(const weights::Codebook& codebook)
      : codes_(codebook.code.quarters / 2), half_bytes_(static_cast<size_t>(4 * codebook.code.quarters)) {
    const int8_t* source = codebook.levels.data();
    const size_t last = codebook.levels.size() / 2 - 1;
    alignas(64) uint8_t levels[2][64];
    for (size_t i = 0; i < 64; ++i) {
      levels[0][i] = static_cast<uint8_t>(source[2 * (i & last)] + weights::kZeroPoint);
      levels[1][i] = static_cast<uint8_t>(source[2 * (i & last) + 1] + weights::kZeroPoint);
    }
    first_ = _mm512_load_si512(levels[0]);
    second_ = _mm512_load_si512(levels[1]);
  }

  size_t tile_bytes() const { return 2 * half_bytes_; }
  inline void decode(const uint8_t* tile, TileBytes& out) const {
    HWY_UNROLL(8)
    for (int half = 0; half < 2; ++half) {
      const __m512i pairs = codes_.load(tile + static_cast<size_t>(half) * half_bytes_);
      out[2 * half] = _mm512_permutexvar_epi8(pairs, first_);
      out[2 * half + 1] = _mm512_permutexvar_epi8(pairs, second_);
    }
  }

 private:
  ByteCodes codes_;
  __m512i first_;
  __m512i second_;
  size_t half_bytes_;
};

/// Seven or eight bits a pair.
template <int kBits>
class BytePairDecoder {
 public:
  static constexpr int kPanels = kLinearPanels;

  explicit BytePairDecoder(const weights::Codebook& codebook) : codes_(kBits), tables_(codebook) {}

  static constexpr size_t tile_bytes() { return 16 * kBits; }
  inline void decode(const uint8_t* tile, TileBytes& out) const {
    HWY_UNROLL(8)
    for (int half = 0; half < 2; ++half) {
      const __m512i pairs = codes_.load(tile + 8 * kBits * half);
      const Selection<kBits - 7> selection({_mm512_movepi8_mask(pairs)});
      out[2 * half] = selection.look_up(tables_.first, pairs);
      out[2 * half + 1] = selection.look_up(tables_.second, pairs);
    }
  }

 private:
  ByteCodes codes_;
  PairTables<kBits> tables_;
};

/// Nine or ten bits a pair.
template <int kBits>
class WordPairDecoder {
 public:
  static constexpr int kPanels = kLinearPanels;

  explicit WordPairDecoder(const weights::Codebook& codebook) : windows_(codebook.code), tables_(codebook) {}

  static constexpr size_t tile_bytes() { return 16 * kBits; }
  inline void decode(const uint8_t* tile, TileBytes& out) const {
    HWY_UNROLL(8)
    for (int half = 0; half < 2; ++half) {
      const uint8_t* codes = tile + 8 * kBits * half;
      __m512i first;
      __m512i second;
      windows_.load(codes, first, second);
      const __m512i low = bytes_.lower(first, second);
      const __m512i high = bytes_.upper(first, second);
      __mmask64 bits[kBits - 7] = {_mm512_movepi8_mask(low)};
      for (int bit = 1; bit < kBits - 7; ++bit) {
        bits[bit] = _mm512_test_epi8_mask(high, _mm512_set1_epi8(static_cast<char>(1 << (bit - 1))));
      }
      const Selection<kBits - 7> selection(bits);
      out[2 * half] = selection.look_up(tables_.first, low);
      out[2 * half + 1] = selection.look_up(tables_.second, low);
    }
  }

 private:
  WordWindows windows_;
  Bytes<> bytes_;
  PairTables<kBits> tables_;
};

}  // namespace
}  // namespace kvq::cpu

HWY_POP_ATTRIBUTES

namespace kvq::cpu {

void set_avx512vnni_vq(LinearKernels& kernels) {
  LinearKernel(&vq)[33] = kernels.packed[static_cast<size_t>(weights::Family::kVq)];
  for (const int32_t pair_bits : {3, 4, 5, 6}) vq[2 * pair_bits] = multiply_packed<SmallPairDecoder>;
  vq[14] = multiply_packed<BytePairDecoder<7>>;
  vq[16] = multiply_packed<BytePairDecoder<8>>;
  vq[18] = multiply_packed<WordPairDecoder<9>>;
  vq[20] = multiply_packed<WordPairDecoder<10>>;
}

}  // namespace kvq::cpu
