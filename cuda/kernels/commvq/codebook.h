// Pages of CommVQ: what the kernels that make and read them know of a codebook, and what they are told.
#pragma once

#include "kernels/pages/records.h"

#include <cuda_runtime_api.h>
#include <cstdint>

namespace kvq::cuda {

/// Numbers that a token has once, for a head or for all heads of a layer, whose pages then hold equal shares.
struct SharedNumbers {
  int32_t offset;    // bytes from the beginning of a side
  int32_t share;     // slots whose numbers a page holds
  int32_t of_layer;  // 1: of all heads
};

/// A layer's codes of keys, in halves, which hold them exactly.
struct KeyTables {
  int32_t stages;  // 0: there are none
  int32_t codes;
  int32_t index_bits;
  int32_t group;   // pairs
  int32_t groups;  // of a head
  SharedNumbers numbers;
  const uint32_t* rows;    // {re, im}: [kv_heads][groups][stages][codes][group]
  const uint16_t* planes;  // [kv_heads][groups][stages][group]{re[codes], im[codes]}
  const float* norms;      // ‖z_a + i·z_b‖²: [kv_heads][groups][stages][codes of b][codes of a]

  KVQ_HOST_DEVICE int32_t head_stages() const { return groups * stages; }
};

/// The network that proposes bits, of a vector.
struct NetworkTables {
  int32_t hidden;  // 0: there is none
  const float* norm_gain;
  const float* norm_bias;
  const uint16_t* first;
  const float* first_bias;
  const uint16_t* second;
  const float* second_bias;
};

/// A layer's codes of values; of each vector one behind the other's.
struct ValueTables {
  int32_t lanes;   // bits of a code that a page holds; 0: there are none
  int32_t parts;   // pages that share a code
  int32_t width;   // channels of a vector
  int32_t bits;    // of a vector's code
  int32_t stages;  // in which they are found
  SharedNumbers numbers;
  const uint16_t* codes;         // halves, exact: [bits][width]
  const uint16_t* proposal;      // the same
  const float* proposal_bias;    // [bits]
  const float* channel_scale;    // [width]
  const float* offset;           // [width]
  const float* offsets;          // [stages][width]: ValueEncoder::offset
  const float* offset_products;  // [stages][bits]
  const double* offset_norms;    // [stages]
  const float* gram;             // [bits][bits]
  NetworkTables network;

  KVQ_HOST_DEVICE bool of_layer() const { return numbers.of_layer != 0; }
  /// What stages up to this one have found.
  KVQ_HOST_DEVICE int32_t stage_end(int32_t stage) const { return stage + 1 == stages ? bits : (stage + 1) * width; }
};

struct CodebookTables {
  int32_t kv_heads;
  int32_t head_dim;
  int32_t pairing;  // kvq_rope
  KeyTables keys;
  ValueTables values;
  const float* turns;  // of PositionTurns: [level][32]{cos, sin}[pairs]

  KVQ_HOST_DEVICE int32_t pairs() const { return head_dim / 2; }
  KVQ_HOST_DEVICE int32_t first_channel(int32_t pair) const { return pairing == 1 ? pair : 2 * pair; }
  KVQ_HOST_DEVICE int32_t second_channel(int32_t pair) const { return pairing == 1 ? pair + pairs() : 2 * pair + 1; }
};

// What follows from the numbers of a codebook.

/// Squared lengths of all centres: [parts][codes][codes] of rows [parts][codes][group].
cudaError_t launch_centre_norms(const uint32_t* rows, int32_t parts, int32_t codes, int32_t group, float* norms,
                                cudaStream_t stream);
/// The Gram matrices of `vectors` matrices of codes, and the offsets of all stages and what follows from these.
cudaError_t launch_value_tables(const ValueTables& tables, int32_t vectors, float* gram, float* offsets,
                                float* offset_products, double* offset_norms, cudaStream_t stream);

/// A side that has no codes, in a page of which the other one has: where it is in either kind of page.
struct CopiedSide {
  int32_t from;
  int32_t to;
  int32_t bytes;  // 0: there is none; a multiple of 8
};

// Encoding.

/// A page to encode, of which FP16 numbers are somewhere.
struct alignas(16) CodedPage {
  uint64_t source;
  uint64_t target;
  int32_t head;
  int32_t used;  // slots
  int32_t first_position;
  int32_t positions;  // where those of its slots begin in CodedPages::positions; −1: they follow each other
};

/// Groups of pages of the same tokens.
struct CodedPages {
  CodebookTables tables;
  const CodedPage* pages;  // [groups][members]
  const int32_t* positions;
  int32_t groups;
  int32_t members;
  int32_t source_values;  // where values begin in a source
  int32_t target_values;  // and in a target
  int32_t target_bytes;
  CopiedSide copied;  // from the source

  KVQ_HOST_DEVICE int32_t count() const { return groups * members; }
};

/// What is left of a key, and how well centres fit it.
struct Fit {
  double energy;
  double product;
};

struct KeyWork {
  float* numbers;    // keys before RoPE: [groups][32][members][head_dim]
  float* norms;      // [groups][32], or [groups][members][32] of heads
  uint8_t* indices;  // [pages][head_stages][2][32]
  Fit* fits;         // [pages][groups of pairs][32]
};

// What the largest codebook has.
inline constexpr int32_t kMostStages = 64;
inline constexpr int32_t kMostCodes = 256;
/// Bits of a vector's code that a GPU encodes.
inline constexpr int32_t kMostCodeBits = 8192;

/// Indices and norms of all pages' keys.
cudaError_t encode_keys(const CodedPages& pages, const KeyWork& work, int32_t beam, cudaStream_t stream);
cudaError_t prepare_encode_keys();

/// Rows are vectors: 32 of a group of pages if they share codes, or of a page.
struct ValueWork {
  float* unit;             // [rows][width]
  float* residual;         // [rows][width]; null: one stage
  float* bit;              // [rows][bits]
  float* wanted;           // [rows][bits]
  float* decoded;          // [rows][bits]
  float* hidden;           // [rows][hidden]
  float* outputs;          // [rows][2 · bits]
  double* norms;           // [rows]
  double* residual_norms;  // [rows]; null: one stage
  float* scales;           // [rows]
};

cudaError_t encode_values(const CodedPages& pages, const ValueWork& work, int32_t flips, cudaStream_t stream);
/// The side without codes.
cudaError_t copy_sides(const CodedPages& pages, cudaStream_t stream);

// Decoding.

/// Some heads' lists of a sequence, to be decoded into pages with halves where codes are.
struct CodedLists {
  CodebookTables tables;
  SequenceView view;    // of all heads
  DevicePage* records;  // [heads][capacity]: of the pages that stand in for those with codes, and of the others
  std::byte* pages;     // [heads][longest][page_bytes]
  int32_t first_head;
  int32_t heads;
  int32_t longest;  // pages of a list, at most
  int32_t page_bytes;
  uint32_t coded;        // FormatCode of pages with codes
  uint32_t stand_in;     // what these become
  int32_t codes_keys;    // 1: keys have codes
  int32_t codes_values;  // 1: values have
  int32_t coded_values;  // where values begin in a page with codes
  int32_t stand_in_values;
  CopiedSide copied;     // to the page that stands in
  int32_t shared_limit;  // bytes of shared memory that a block may have
};
/// Before the first call, with the same limit.
cudaError_t prepare_decode_lists(int32_t shared_limit);
cudaError_t decode_lists(const CodedLists& lists, cudaStream_t stream);

}  // namespace kvq::cuda
