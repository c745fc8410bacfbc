// Tensor-core fragments of page sides.
//
// Scores are computed as Sᵀ = K·Qᵀ (rows: tokens, columns: queries) and outputs as Oᵀ = Vᵀ·Pᵀ (rows: channels), both
// with m16n8k16. A lane is (g, t) = (lane / 4, lane % 4): it supplies row g of the first operand and columns from t.
// The token, channel or reduction element of a row or column is free as long as both operands agree, so the assignment
// follows the words of a page (formats/packed_plane.h):
//
//   reduction over channels   lane t takes whole words, 2 to 16 consecutive channels of a token
//   tokens of a page          lane g holds four, one in each of four tiles of eight rows: token_of(g, tile)
//   reduction over tokens     lane t takes tokens 8t … 8t + 7; rows 2t and 2t + 1 of a tile are two of them, in bytes 0
//                             and 2, or 1 and 3, of a word
//   channels                  lane g takes four consecutive ones of each 32
//
// Codes become FP16 values without arithmetic: read as FP16, masked code bits are exactly the subnormal number
// code · 2^(position − 24). Tensor cores multiply subnormal numbers like any other; the power of two is removed in
// FP32, and the other operand compensates for the position beforehand.
#pragma once

#include "kernels/pages/records.h"

#include <cuda_fp16.h>

namespace kvq::cuda {

__device__ inline int32_t token_of(int32_t g, int32_t tile) {
  return 8 * (g >> 1) + 2 * (g & 1) + (tile & 1) + 4 * (tile >> 1);
}

__device__ inline void mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                           uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ inline uint32_t transpose8x8(uint32_t value) {
  uint32_t result;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;\n" : "=r"(result) : "r"(value));
  return result;
}

__device__ inline uint32_t multiply(uint32_t a, uint32_t b) {
  uint32_t result;
  asm("mul.rn.f16x2 %0, %1, %2;\n" : "=r"(result) : "r"(a), "r"(b));
  return result;
}

__device__ inline uint32_t pack(float low, float high) {
  uint32_t result;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;\n" : "=r"(result) : "f"(high), "f"(low));
  return result;
}

__device__ inline uint32_t multiply_add(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t result;
  asm("fma.rn.f16x2 %0, %1, %2, %3;\n" : "=r"(result) : "r"(a), "r"(b), "r"(c));
  return result;
}

__device__ inline uint32_t negated(uint32_t a) {
  uint32_t result;
  asm("neg.f16x2 %0, %1;\n" : "=r"(result) : "r"(a));
  return result;
}

__device__ inline void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  mma(c, a[0], a[1], a[2], a[3], b0, b1);
}

/// Loads four 8 × 8 matrices of FP16; lane i supplies the shared address of row i % 8 of matrix i / 8.
__device__ inline void load_blocks(uint32_t row, uint32_t (&blocks)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(blocks[0]), "=r"(blocks[1]), "=r"(blocks[2]), "=r"(blocks[3])
               : "r"(row));
}

/// Loads and transposes four 8 × 8 matrices.
__device__ inline void load_transposed(uint32_t row, uint32_t (&blocks)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(blocks[0]), "=r"(blocks[1]), "=r"(blocks[2]), "=r"(blocks[3])
               : "r"(row));
}

/// Low halves, or high halves, of two words.
__device__ inline uint32_t low_halves(uint32_t a, uint32_t b) { return __byte_perm(a, b, 0x5410); }
__device__ inline uint32_t high_halves(uint32_t a, uint32_t b) { return __byte_perm(a, b, 0x7632); }

/// Inverse of the scale of codes as subnormal FP16.
inline constexpr float kSubnormalScale = 16777216.0F;  // 2^24
/// Trellis levels have a root mean square of 48, so gains are small; this factor keeps their products with weights
/// normal in FP16.
inline constexpr float kTrellisWeight = 32.0F;

/// Field kField of bytes 0 and 2 of a word, for codes of kBits bits; shift the word by 8 for bytes 1 and 3.
template <int kBits, int kField>
__device__ inline uint32_t code_pair(uint32_t word) {
  constexpr uint32_t kMask = ((1U << kBits) - 1U) << (kBits * kField);
  return word & (kMask | kMask << 16U);
}

/// Three-bit codes: two low bits at 2·kField of each byte of `low`, the high bit at kField of each byte of `high`.
template <int kField>
__device__ inline uint32_t code_pair3(uint32_t low, uint32_t high) {
  const uint32_t placed = kField <= 2 ? high << (2 - kField) : high >> (kField - 2);
  return ((low >> (2 * kField)) & 0x00030003U) | (placed & 0x00040004U);
}

}  // namespace kvq::cuda
