#pragma once

#include "backend/cpu/attend/commvq/item.h"
#include "core/scratch.h"

namespace kvq {
class KeyLookup;
}

namespace kvq::cpu {

/// Keys are rebuilt from their codes once for all rows; values are sums of probabilities by bit. Keys are rotated to
/// positions 0 to 31, and queries are rotated back by the position of each page's first slot.
class RebuildAttention final : public ContextAttention {
 public:
  struct Work {
    Work(const AttendBatch& batch, MemoryCutter& memory);

    int16_t* planes;        // [kTilePages][32 · head_dim], or FP16 values
    float* rotations;       // [kTilePages][head_dim], rotations of the pages' first slots
    uint16_t* norms;        // [kTilePages][32]
    uint8_t* indices;       // [stages][2 · 32]
    float* vectors;         // [32] planar vectors
    float* rows;            // [32][head_dim] keys
    float* slot_rotations;  // [32][head_dim], for a page with gaps
    int16_t* fixed;         // [32][head_dim], slot_rotations in fixed point
    float* unrotated;       // [kBlockRows][head_dim] queries
  };

  /// Keys are summed by table lookups in registers.
  static bool looks_up(const AttendBatch& batch, const KernelTable& kernels);

  RebuildAttention(const CommvqItem& item, const Work& work) : item_(item), work_(work) {}

  void prepare(ptrdiff_t first, int32_t count) override;
  void score(ptrdiff_t first, int32_t count, int32_t row, int32_t rows, float* scores) override;
  void add_values(ptrdiff_t first, int32_t count, int32_t row, int32_t rows, const float* p) override {
    item_.add_bit_sums(first, count, row, rows, p);
  }

 private:
  const KeyLookup* lookup() const;
  size_t plane_size() const { return static_cast<size_t>(kPageSlots * item_.batch.head.keys); }
  float* rotation(ptrdiff_t place) const { return work_.rotations + (place - prepared_) * item_.batch.head.keys; }
  uint16_t* norms(ptrdiff_t place) const { return work_.norms + (place - prepared_) * kPageSlots; }
  int16_t* plane(ptrdiff_t place) const { return work_.planes + static_cast<size_t>(place - prepared_) * plane_size(); }

  void rebuild_by_lookup(ptrdiff_t first, int32_t count);
  void rebuild(ptrdiff_t place);
  void score_by_lookup(ptrdiff_t first, int32_t count, int32_t row, int32_t rows, float* scores) const;

  const CommvqItem item_;
  Work work_;
  ptrdiff_t prepared_ = 0;  // place of the page in the first plane
};

}  // namespace kvq::cpu
