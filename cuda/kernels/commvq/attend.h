// Attention over CommVQ pages without decoding them: scores of all tokens, with keys summed from tables in shared
// memory; sums of probabilities per bit of the value codes, for all KV heads that share these; and the outputs that the
// sums decode to. FP16 pages may lie between; for other pages see decode_lists.
#pragma once

#include "kernels/attend/attend.h"
#include "kernels/commvq/codebook.h"

namespace kvq::cuda {

/// Head size that these kernels serve.
inline constexpr int32_t kCommvqDim = 128;
/// With more rows per KV head, pages are decoded instead.
inline constexpr int32_t kMostCommvqRows = 32;
/// Bits that a block of the sums kernel covers, and a warp of it; pages per step.
inline constexpr int32_t kBlockBits = 1024;
inline constexpr int32_t kWarpBits = 64;
inline constexpr int32_t kSumPages = 8;
/// Bits that a block of the outputs kernel decodes.
inline constexpr int32_t kOutputBits = 128;
/// Blocks of the outputs kernel that share a head's FP16 pages.
inline constexpr int32_t kPlainParts = 4;

/// Key codebooks as bytes, beside KeyTables: per head [stages][codes] rows of kCommvqDim bytes {re, im} + 128, in units
/// per pair.
struct KeyBytes {
  const uint4* rows;   // [kv_heads][stages][codes][kCommvqDim / 16]; null: no byte tables
  const float* units;  // [kv_heads][kCommvqDim / 2]
};

/// Arguments of all three kernels beside AttendArguments. Rows of a sequence are [kv_heads][rows]; some may have no
/// query.
struct CommvqAttention {
  CodebookTables tables;
  KeyBytes bytes;
  uint32_t format;    // FormatCode of CommVQ pages; the others are FP16
  int32_t values_at;  // offset of the values in a CommVQ page
  int32_t rows;       // per KV head
  int32_t tokens;     // per row of scores
  int32_t warps;      // per block of the scores kernel
  int32_t parts;      // blocks of the scores kernel that share a list
  int32_t sum_parts;  // parts of a list with separate sums per bit
  float* scores;      // [sequences][all rows][tokens]
  float* maxima;      // [sequences][all rows][parts]
  float* sums;        // [sequences][vectors][sum_parts][rows of a vector][bits]
  float* weights;     // [sequences][all rows][sum_parts]{total weight, weight times value scales of CommVQ tokens}
  float* outputs;     // [sequences][kv_heads][output_blocks()][rows][kCommvqDim]
  int32_t* tickets;   // [sequences][kv_heads]

  KVQ_HOST_DEVICE int32_t all_rows() const { return tables.kv_heads * rows; }
  /// Heads whose values share codes.
  KVQ_HOST_DEVICE int32_t heads_together() const { return tables.values.of_layer() ? tables.kv_heads : 1; }
  KVQ_HOST_DEVICE int32_t vectors() const { return tables.kv_heads / heads_together(); }
  KVQ_HOST_DEVICE int32_t vector_rows() const { return heads_together() * rows; }
  /// Warps of a block of the sums kernel side by side along bits; page_warps() such groups take different pages.
  KVQ_HOST_DEVICE int32_t bit_warps() const {
    const int32_t bits = tables.values.bits < kBlockBits ? tables.values.bits : kBlockBits;
    return bits / kWarpBits;
  }
  KVQ_HOST_DEVICE int32_t page_warps() const { return kBlockBits / kWarpBits / bit_warps(); }
  /// Blocks of the outputs kernel per head.
  KVQ_HOST_DEVICE int32_t output_blocks() const { return tables.values.bits / kOutputBits + kPlainParts; }
};

/// Returns the warps per block of the scores kernel, or 0 if the kernels do not serve this codebook with `rows` rows.
int32_t commvq_warps(const CodebookTables& tables, const KeyBytes& bytes, int32_t rows, int32_t shared_limit);

/// Runs all sequences of the launch; tickets must be zero and are left zero.
cudaError_t launch_commvq_attention(const AttendArguments& arguments, const CommvqAttention& commvq,
                                    cudaStream_t stream);
cudaError_t prepare_commvq_attention(int32_t shared_limit);

}  // namespace kvq::cuda
