#pragma once

#include "backend/cpu/context_codec.h"
#include "backend/cpu/dispatch/kernels.h"
#include "core/scratch.h"
#include "formats/gain_shape/context.h"

#include <cstddef>
#include <cstdint>

namespace kvq::cpu {

/// Codes are multiplied as those of the plain kinds. The centres of a page's keys are put together once for all rows,
/// turned to the positions 0 to 31; the queries are turned back by the position of the page's first slot instead. The
/// centres of values are what probabilities are summed up by.
class CentredAttention final : public ContextAttention {
 public:
  struct Work {
    Work(const AttendBatch& batch, MemoryCutter& memory);

    uint16_t* planes;   // [kTilePages][32 · head_dim], FP16
    float* turns;       // [kTilePages] rows, of the pages' first slots
    float* rows;        // [32][head_dim], centres
    float* slot_turns;  // [32] rows, of a page with gaps
    float* turned;      // [kBlockRows][head_dim], queries
    float* scores;      // [kBlockRows][kTileSlots]
  };

  CentredAttention(const ContextItem& item, const Work& work);

  void prepare(ptrdiff_t first, int32_t count) override;
  void score(ptrdiff_t first, int32_t count, int32_t row, int32_t rows, float* scores) override;
  void add_values(ptrdiff_t first, int32_t count, int32_t row, int32_t rows, const float* p) override;

  /// Floats of a row of sums: probabilities by a head's centres of values.
  static size_t sum_floats(const centred::Context& context);

 private:
  size_t plane_size() const { return static_cast<size_t>(kPageSlots * item_.batch.head_dim); }
  uint16_t* plane(ptrdiff_t place) const {
    return work_.planes + static_cast<size_t>(place - prepared_) * plane_size();
  }
  float* turn(ptrdiff_t place) const {
    return work_.turns + static_cast<size_t>(place - prepared_) * item_.batch.rope->table_stride();
  }
  void put_centres(ptrdiff_t place);
  void add_centre_scores(ptrdiff_t place, int32_t row, int32_t rows, float* scores);
  void add_masses(ptrdiff_t first, int32_t count, int32_t row, int32_t rows, const float* p) const;

  const ContextItem& item_;
  const centred::Context& context_;
  Work work_;
  ptrdiff_t prepared_ = 0;  // place of the page in the first plane
};

}  // namespace kvq::cpu
