// The codes of keys as bytes, in tables that vector permutations look up: one instruction reads 64 of them.
#pragma once

#include "formats/commvq/codebook.h"

namespace kvq {

/// All groups of one head in fixed point: code c of pair j and stage r is about factor(j) · multiplier(j, r) · byte c.
/// Units are such that sums over the stages fit 16 bits whatever the indices, before and after a rotation. A byte is
/// off by at most 1/254 of the largest of its table.
class KeyLookup {
 public:
  static constexpr int32_t kCodes = 64;

  /// Of one pair and stage.
  struct alignas(kDataAlignment) Table {
    int8_t real[kCodes];
    int8_t imaginary[kCodes];
  };

  /// Whether codebooks of that shape have tables.
  static bool fits(const CodebookShape& shape) { return shape.keys.stages > 0 && shape.keys.codes == kCodes; }

  KeyLookup(Allocator& allocator, const CodebookShape& shape, const LayerCodebook& numbers, int32_t head);

  /// Of a pair of the head: [stages].
  const Table* tables(int32_t pair) const { return tables_.data() + static_cast<ptrdiff_t>(pair) * stages_; }
  /// [stages], each four times the same byte.
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
