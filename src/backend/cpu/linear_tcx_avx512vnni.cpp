// Computed trellis codes: the bytes of a window's 32-bit product with a constant are summed up.
#include "backend/cpu/avx512vnni_linear.h"
#include "backend/cpu/avx512vnni_tables.h"
#include "backend/cpu/avx512vnni_windows.h"

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,avx2,fma,f16c")

namespace kvq::cpu {
namespace {

/// Sums of the bytes of products, which are dwords.
class Products {
 public:
  explicit Products(uint32_t multiplier) : multiplier_(_mm512_set1_epi32(static_cast<int32_t>(multiplier))) {
    alignas(64) uint8_t sources[64];
    for (int i = 0; i < 64; ++i) sources[i] = static_cast<uint8_t>(i % 2 * 64 + i / 2 % 16 * 4 + 1);
    sources_ = _mm512_load_si512(sources);
  }

  /// The levels of two times 32 windows.
  inline __m512i levels(__m512i first, __m512i second) const {
    return _mm512_mask_blend_epi8(0xFFFFFFFF00000000U, levels_twice(first), levels_twice(second));
  }

 private:
  inline __m512i levels_twice(__m512i windows) const {
    const __m512i even = sum(_mm512_and_si512(windows, _mm512_set1_epi32(0xFFFF)));
    const __m512i odd = sum(_mm512_srli_epi32(windows, 16));
    return _mm512_permutex2var_epi8(even, sources_, odd);
  }

  /// 64 times the sum of the bytes of products: its second byte is a quarter of the sum.
  inline __m512i sum(__m512i windows) const {
    return _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_mullo_epi32(windows, multiplier_), _mm512_set1_epi8(64));
  }

  __m512i multiplier_;
  __m512i sources_;  // second bytes of dwords
};

class ComputedDecoder {
 public:
  static constexpr int kPanels = kLinearPanels;

  explicit ComputedDecoder(const palette::Codebook& codebook)
      : windows_(codebook.code), products_(codebook.multiplier) {}

  size_t tile_bytes() const { return 8 * windows_.bytes(); }
  inline void decode(const uint8_t* tile, TileBytes& out) const {
    const size_t bytes = windows_.bytes();
    HWY_UNROLL(8)
    for (int quad = 0; quad < kQuads; ++quad) {
      const uint8_t* codes = tile + 2 * static_cast<size_t>(quad) * bytes;
      const __m512i second = quad + 1 < kQuads ? windows_.load(codes + bytes) : windows_.load_last(codes + bytes, tile);
      out[quad] = products_.levels(windows_.load(codes), second);
    }
  }

 private:
  WordWindows windows_;
  Products products_;
};

}  // namespace
}  // namespace kvq::cpu

HWY_POP_ATTRIBUTES

namespace kvq::cpu {

void set_avx512vnni_tcx(LinearKernels& kernels) {
  LinearKernel(&tcx)[33] = kernels.packed[static_cast<size_t>(palette::Family::kTcx)];
  for (int32_t quarters = 6; quarters <= 20; quarters += 2) tcx[quarters] = multiply_packed<ComputedDecoder>;
}

}  // namespace kvq::cpu
