// Key codes as bytes, in tables for vector permutations: one instruction looks up 64 of them.
#pragma once

#include "formats/commvq/codebook.h"

namespace kvq {

/// All groups of one head in fixed point: code c of pair j and stage r is about factor(j) · multiplier(j, r) · byte c.
/// Units keep sums over the stages within 16 bits for any indices, before and after a rotation. A byte's error is at
/// most 1/254 of the largest of its table.
class KeyLookup {
 public:
  static constexpr int32_t kCodes = 64;

  /// One pair and stage.
  struct alignas(kDataAlignment) Table {
    int8_t real[kCodes];
    int8_t imaginary[kCodes];
  };

  /// Codebooks of this shape have tables.
  static bool fits(const CodebookShape& shape) { return shape.keys.stages > 0 && shape.keys.codes == kCodes; }

  KeyLookup(Allocator& allocator, const CodebookShape& shape, const LayerCodebook& numbers, int32_t head);

  /// [stages] tables of a pair of the head.
  const Table* tables(int32_t pair) const { return tables_.data() + static_cast<ptrdiff_t>(pair) * stages_; }
  /// [stages], each byte repeated four times.
  const uint32_t* multipliers(int32_t pair) const {
    return multipliers_.data() + static_cast<ptrdiff_t>(pair) * stages_;
  }
  const float* factors() const { return factors_.data(); }  // [pairs]

 private:
  void fill(const float* z, size_t code_stride, size_t stage_stride, int32_t pair);

  int32_t stages_;
  Vector<Table> tables_;
  Vector<uint32_t> multipliers_;
  Vector<float> factors_;
};

}  // namespace kvq
