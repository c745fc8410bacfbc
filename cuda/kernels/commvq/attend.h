// Attention over pages of CommVQ as they are: scores of all tokens first, with keys summed up from tables in shared
// memory, then sums of probabilities by the bits of values' codes, for all KV heads that share these, and what the sums
// decode to. Pages in FP16 may lie between; for other pages see decode_lists.
#pragma once

#include "kernels/attend/attend.h"
#include "kernels/commvq/codebook.h"

namespace kvq::cuda {

/// The only head size that these kernels know.
inline constexpr int32_t kCodedDim = 128;
/// With more rows of a KV head pages are decoded instead.
inline constexpr int32_t kMostCodedRows = 32;
/// Bits of codes that a block of the second kernel sums, and a warp of them; pages that it takes at a time.
inline constexpr int32_t kBlockBits = 1024;
inline constexpr int32_t kWarpBits = 64;
inline constexpr int32_t kSumPages = 8;
/// Bits that a block of the third kernel decodes.
inline constexpr int32_t kOutputBits = 128;
/// Blocks of the third kernel that share a head's pages in FP16.
inline constexpr int32_t kPlainParts = 4;

/// Codes of keys in bytes, beside KeyTables: of a head [stages][codes] rows of kCodedDim bytes {re, im} + 128, in units
/// of each pair.
struct KeyBytes {
  const uint4* rows;   // [kv_heads][stages][codes][kCodedDim / 16]; null: there are none
  const float* units;  // [kv_heads][kCodedDim / 2]
};

/// What the kernels share beside AttendArguments. Rows of a sequence are [kv_heads][rows]; some may have no query.
struct CodedAttention {
  CodebookTables tables;
  KeyBytes bytes;
  uint32_t coded;     // FormatCode of pages with codes; the others are FP16
  int32_t values_at;  // in these
  int32_t rows;       // of a KV head
  int32_t tokens;     // of a row of scores
  int32_t warps;      // of a block of the first kernel
  int32_t parts;      // blocks of the first kernel that share a list
  int32_t sum_parts;  // parts of a list whose sums by bits are apart
  float* scores;      // [sequences][all rows][tokens]
  float* maxima;      // [sequences][all rows][parts]
  float* sums;        // [sequences][vectors][sum_parts][rows of a vector][bits]
  float* weights;     // [sequences][all rows][sum_parts]{of all tokens, times the scales of those with codes}
  float* outputs;     // [sequences][kv_heads][blocks of the third kernel][rows][kCodedDim]
  int32_t* tickets;   // [sequences][kv_heads]

  KVQ_HOST_DEVICE int32_t all_rows() const { return tables.kv_heads * rows; }
  /// Heads whose values share codes.
  KVQ_HOST_DEVICE int32_t heads_together() const { return tables.values.of_layer() ? tables.kv_heads : 1; }
  KVQ_HOST_DEVICE int32_t vectors() const { return tables.kv_heads / heads_together(); }
  KVQ_HOST_DEVICE int32_t vector_rows() const { return heads_together() * rows; }
  /// Warps of a block of the second kernel along bits; the others take other pages.
  KVQ_HOST_DEVICE int32_t bit_warps() const {
    const int32_t bits = tables.values.bits < kBlockBits ? tables.values.bits : kBlockBits;
    return bits / kWarpBits;
  }
  KVQ_HOST_DEVICE int32_t page_warps() const { return kBlockBits / kWarpBits / bit_warps(); }
  /// Blocks of the third kernel, a head's.
  KVQ_HOST_DEVICE int32_t output_blocks() const { return tables.values.bits / kOutputBits + kPlainParts; }
};

/// Whether the kernels serve a layer's codes for so many rows, and how many warps the first one's blocks have then; 0:
/// they do not.
int32_t coded_warps(const CodebookTables& tables, const KeyBytes& bytes, int32_t rows, int32_t shared_limit);

/// All sequences of the launch; tickets must be zero before and are zero again after.
cudaError_t launch_coded_attention(const AttendArguments& arguments, const CodedAttention& coded, cudaStream_t stream);
cudaError_t prepare_coded_attention(int32_t shared_limit);

}  // namespace kvq::cuda
