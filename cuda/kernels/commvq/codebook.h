// Codebook tables and arguments of the kernels that encode and decode CommVQ pages.
#pragma once

#include "kernels/pages/records.h"

#include <cuda_runtime_api.h>
#include <cstdint>

namespace kvq::cuda {

/// Norms or scales stored once per token, for a head or for all heads of a layer; the layer's pages then hold equal
/// shares.
struct SharedNumbers {
  int32_t offset;    // bytes from the beginning of a side
  int32_t share;     // slots whose values a page holds
  int32_t of_layer;  // 1: shared by all heads
};

/// A layer's key codebooks, exact in FP16.
struct KeyTables {
  int32_t stages;  // 0: no key codebooks
  int32_t codes;
  int32_t index_bits;
  int32_t group;   // pairs per group
  int32_t groups;  // groups per head
  SharedNumbers numbers;
  const uint32_t* rows;    // {re, im}: [kv_heads][groups][stages][codes][group]
  const uint16_t* planes;  // [kv_heads][groups][stages][group]{re[codes], im[codes]}
  const float* norms;      // ‖z_a + i·z_b‖²: [kv_heads][groups][stages][codes of b][codes of a]

  KVQ_HOST_DEVICE int32_t head_stages() const { return groups * stages; }
};

/// The network that proposes a vector's bits.
struct NetworkTables {
  int32_t hidden;  // 0: no network
  const float* norm_gain;
  const float* norm_bias;
  const uint16_t* first;
  const float* first_bias;
  const uint16_t* second;
  const float* second_bias;
};

/// A layer's value codebooks; tables of several vectors are consecutive.
struct ValueTables {
  int32_t lanes;   // bits of a code that a page holds; 0: no value codebooks
  int32_t parts;   // pages that share a code
  int32_t width;   // channels of a vector
  int32_t bits;    // bits of a vector's code
  int32_t stages;  // encoding stages
  SharedNumbers numbers;
  const uint16_t* codes;         // exact in FP16: [bits][width]
  const uint16_t* proposal;      // exact in FP16: [bits][width]
  const float* proposal_bias;    // [bits]
  const float* channel_scale;    // [width]
  const float* offset;           // [width]
  const float* offsets;          // [stages][width]: ValueEncoder::offset
  const float* offset_products;  // [stages][bits]
  const double* offset_norms;    // [stages]
  const float* gram;             // [bits][bits]
  NetworkTables network;

  KVQ_HOST_DEVICE bool of_layer() const { return numbers.of_layer != 0; }
  /// End of the bits that stages up to this one determine.
  KVQ_HOST_DEVICE int32_t stage_end(int32_t stage) const { return stage + 1 == stages ? bits : (stage + 1) * width; }
};

struct CodebookTables {
  int32_t kv_heads;
  int32_t head_dim;
  int32_t pairing;  // kvq_rope
  KeyTables keys;
  ValueTables values;
  const float* rotations;  // as RotationTable: [level][32]{cos, sin}[pairs]

  KVQ_HOST_DEVICE int32_t pairs() const { return head_dim / 2; }
  KVQ_HOST_DEVICE int32_t first_channel(int32_t pair) const { return pairing == 1 ? pair : 2 * pair; }
  KVQ_HOST_DEVICE int32_t second_channel(int32_t pair) const { return pairing == 1 ? pair + pairs() : 2 * pair + 1; }
};

// Tables derived from a codebook.

/// Computes squared lengths of all centres, [parts][codes][codes], from rows [parts][codes][group].
cudaError_t launch_centre_norms(const uint32_t* rows, int32_t parts, int32_t codes, int32_t group, float* norms,
                                cudaStream_t stream);
/// Computes the Gram matrices of `vectors` code matrices, the offsets of all stages, and the offsets' products and
/// norms.
cudaError_t launch_value_tables(const ValueTables& tables, int32_t vectors, float* gram, float* offsets,
                                float* offset_products, double* offset_norms, cudaStream_t stream);

/// A side without CommVQ codes in a page whose other side has them: its place in the source and in the target page.
struct CopiedSide {
  int32_t from;
  int32_t to;
  int32_t bytes;  // 0: no such side; a multiple of 8
};

// Encoding.

/// An FP16 page to encode.
struct alignas(16) CommvqPage {
  uint64_t source;
  uint64_t target;
  int32_t head;
  int32_t used;  // slots
  int32_t first_position;
  int32_t positions;  // first index of its slots in CommvqPages::positions; −1: consecutive positions
};

/// Groups of pages of the same tokens.
struct CommvqPages {
  CodebookTables tables;
  const CommvqPage* pages;  // [groups][members]
  const int32_t* positions;
  int32_t groups;
  int32_t members;
  int32_t source_values;  // offset of values in a source
  int32_t target_values;  // offset of values in a target
  int32_t target_bytes;
  CopiedSide copied;  // from the source to the target

  KVQ_HOST_DEVICE int32_t count() const { return groups * members; }
};

/// Energy of a key and its product with the sum of centres.
struct Fit {
  double energy;
  double product;
};

struct KeyWork {
  float* numbers;    // keys before RoPE: [groups][32][members][head_dim]
  float* norms;      // [groups][32] per layer, or [groups][members][32] per head
  uint8_t* indices;  // [pages][head_stages][2][32]
  Fit* fits;         // [pages][groups of pairs][32]
};

// Limits of a codebook.
inline constexpr int32_t kMostStages = 64;
inline constexpr int32_t kMostCodes = 256;
/// Maximum bits of a vector's code that the GPU encodes.
inline constexpr int32_t kMostCodeBits = 8192;

/// Computes indices and norms of all pages' keys.
cudaError_t encode_keys(const CommvqPages& pages, const KeyWork& work, int32_t beam, cudaStream_t stream);
cudaError_t prepare_encode_keys();

/// Rows are vectors: 32 per group of pages that share codes, or 32 per page.
struct ValueWork {
  float* unit;             // [rows][width]
  float* residual;         // [rows][width]; null with one stage
  float* bit;              // [rows][bits]
  float* wanted;           // [rows][bits]
  float* decoded;          // [rows][bits]
  float* hidden;           // [rows][hidden]
  float* outputs;          // [rows][2 · bits]
  double* norms;           // [rows]
  double* residual_norms;  // [rows]; null with one stage
  float* scales;           // [rows]
};

cudaError_t encode_values(const CommvqPages& pages, const ValueWork& work, int32_t flips, cudaStream_t stream);
/// Copies the sides without CommVQ codes.
cudaError_t copy_sides(const CommvqPages& pages, cudaStream_t stream);

// Decoding.

/// Page lists of some heads of a sequence, to be decoded: FP16 sides replace CommVQ sides.
struct CommvqLists {
  CodebookTables tables;
  SequenceView view;    // all heads
  DevicePage* records;  // [heads][capacity]: records of the decoded pages and of all others
  std::byte* pages;     // [heads][longest][page_bytes]
  int32_t first_head;
  int32_t heads;
  int32_t longest;  // maximum pages of a list
  int32_t page_bytes;
  uint32_t format;        // FormatCode of CommVQ pages
  uint32_t stand_in;      // FormatCode of the decoded pages
  int32_t codes_keys;     // 1: keys have CommVQ codes
  int32_t codes_values;   // 1: values have CommVQ codes
  int32_t commvq_values;  // offset of values in a CommVQ page
  int32_t stand_in_values;
  CopiedSide copied;     // to the decoded page
  int32_t shared_limit;  // maximum bytes of shared memory per block
};
/// Must be called first, with the same limit.
cudaError_t prepare_decode_lists(int32_t shared_limit);
cudaError_t decode_lists(const CommvqLists& lists, cudaStream_t stream);

}  // namespace kvq::cuda
