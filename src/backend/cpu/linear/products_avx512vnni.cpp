// Products of decoded levels with many rows, by vector byte dot products.
#include "backend/cpu/dispatch/avx512vnni.h"
#include "backend/cpu/linear/linear_avx512vnni.h"

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,avx2,fma,f16c")

namespace kvq::cpu {
namespace {

template <int kRows>
void multiply_rows(const uint8_t* levels, const LinearSegment& segment, int32_t column, int32_t stop,
                   const ActivationGroup& group, float* sums) {
  __m512i acc[kRows];
  HWY_UNROLL(8)
  for (int r = 0; r < kRows; ++r) acc[r] = _mm512_setzero_si512();
  for (int32_t i = column; i < stop; i += weights::kTileColumns) {
    const std::byte* x = group.quads + kQuadSize * group.quad_at(i, 0);
    HWY_UNROLL(8)
    for (int quad = 0; quad < kQuads; ++quad, levels += kQuadBytes) {
      const __m512i bytes = _mm512_load_si512(levels);
      HWY_UNROLL(8)
      for (int r = 0; r < kRows; ++r) {
        acc[r] = _mm512_dpbusd_epi32(acc[r], bytes, broadcast_quad(x + kRowBytes * r + kQuadSize * quad));
      }
    }
  }
  HWY_UNROLL(8)
  for (int r = 0; r < kRows; ++r) {
    add_block(acc[r], segment, group, column / weights::kActivationBlock, r, sums + r * weights::kTileRows);
  }
}

using RowsKernel = void (*)(const uint8_t* levels, const LinearSegment& segment, int32_t column, int32_t stop,
                            const ActivationGroup& group, float* sums);
constexpr RowsKernel kRowsKernels[kGroupRows + 1] = {nullptr,          multiply_rows<1>, multiply_rows<2>,
                                                     multiply_rows<3>, multiply_rows<4>, multiply_rows<5>,
                                                     multiply_rows<6>, multiply_rows<7>, multiply_rows<8>};

void multiply_vectors(const uint8_t* levels, const LinearSegment& segment, int32_t column, int32_t stop,
                      const ActivationGroup* groups, int32_t count, float* sums) {
  for (int32_t g = 0; g < count; ++g) {
    kRowsKernels[groups[g].rows](levels, segment, column, stop, groups[g], sums);
    sums += groups[g].rows * weights::kTileRows;
  }
}

}  // namespace
}  // namespace kvq::cpu

HWY_POP_ATTRIBUTES

namespace kvq::cpu {

DecodedProducts avx512vnni_products() {
  return {kGroupRows + 1, [](int32_t /*rows*/) {}, multiply_vectors, [] {}};
}

}  // namespace kvq::cpu
