#pragma once

#include "backend/cpu/attend/commvq/item.h"
#include "core/scratch.h"

namespace kvq::cpu {

/// The reference path: every call decodes each key and value by its definition, then multiplies. Other paths are tested
/// and compared against it.
class DecodeAttention final : public ContextAttention {
 public:
  struct Work {
    Work(const AttendBatch& batch, MemoryCutter& memory);

    float* keys;        // [kTilePages][head_dim][32], after RoPE
    float* values;      // [kTilePages][32][kMaxHeadDim]
    uint8_t* indices;   // [stages][2 · 32]
    float* vectors;     // [32] planar vectors
    float* rotations;   // [32][head_dim]
    uint16_t* numbers;  // [32], key norms or value scales
    float* bits;        // [kBlockRows] code bits as zeros and ones
    float* products;    // [kBlockRows][kMaxHeadDim]
  };

  DecodeAttention(const CommvqItem& item, const Work& work) : item_(item), work_(work) {}

  void prepare(ptrdiff_t first, int32_t count) override;
  void score(ptrdiff_t first, int32_t count, int32_t row, int32_t rows, float* scores) override;
  void add_values(ptrdiff_t first, int32_t count, int32_t row, int32_t rows, const float* p) override;

 private:
  void decode_keys(ptrdiff_t place);
  void decode_values(ptrdiff_t first, int32_t count);
  void spread_bits(ptrdiff_t place, int32_t slot, int32_t begin, int32_t n) const;
  float* keys(ptrdiff_t place) const { return work_.keys + (place - prepared_) * kPageSlots * item_.batch.head_dim; }
  float* values(ptrdiff_t place) const { return work_.values + (place - prepared_) * kPageSlots * kMaxHeadDim; }

  const CommvqItem item_;
  Work work_;
  ptrdiff_t prepared_ = 0;  // place of the first decoded page
};

}  // namespace kvq::cpu
