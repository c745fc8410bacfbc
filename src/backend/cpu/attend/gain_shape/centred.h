#pragma once

#include "backend/cpu/context_codec.h"
#include "backend/cpu/dispatch/kernels.h"
#include "core/scratch.h"
#include "formats/gain_shape/context.h"

#include <array>
#include <cstddef>
#include <cstdint>

namespace kvq::cpu {

/// Codes are multiplied as in pages without centres. A page's key centres are assembled once for all rows, rotated to
/// positions 0 to 31; queries are rotated back by the position of the page's first slot. Probabilities are summed by
/// value centre.
class CentredAttention final : public ContextAttention {
 public:
  struct Work {
    Work(const AttendBatch& batch, MemoryCutter& memory);

    std::byte* planes;  // [kTilePages + 1], FP16 keys or the instruction set's own layout
    float* rotations;  // [kTilePages] rotations of the pages' first slots, as written by put_rotation() or as in a Rope
                       // table
    float* row;        // a row as in a Rope table
    float* centres;    // [32][head_dim]
    float* slot_rotations;  // [32] rows, for a page with gaps
    float* unrotated;       // [kBlockRows][head_dim] queries
    float* scores;          // [kBlockRows][kTileSlots]
    float* queries;         // [kItemRows][numbers()]
    float* units;           // [kItemRows]
    OneCentreRow* rows;     // [kItemRows]
  };

  CentredAttention(const ContextItem& item, const Work& work);

  void prepare(ptrdiff_t first, int32_t count) override;
  void score(ptrdiff_t first, int32_t count, int32_t row, int32_t rows, float* scores) override;
  void add_values(ptrdiff_t first, int32_t count, int32_t row, int32_t rows, const float* p) override;

  /// Floats of a row of sums: probabilities by value centre of a head.
  static size_t sum_floats(const centred::Context& context);

 private:
  const centred::RotatedCentres& centres() const { return *context_.rotated_centres; }
  const centred::RotationOrder& order() const { return centres().order; }
  bool one_centre() const { return centres().count == 1; }
  /// Without further rows, centres are assembled where they are read, in a plane that stays in L1.
  bool read_at_once() const { return item_.rows <= kBlockRows; }
  std::byte* plane(ptrdiff_t place) const;
  float* rotation(ptrdiff_t place) const;
  /// The instruction set's own kernels read the page.
  bool is_fast(ptrdiff_t place) const;
  void order_queries();
  void multiply_queries();
  void rotate_to(ptrdiff_t place);
  void put_centres(ptrdiff_t place);
  void put_float16(ptrdiff_t place);
  void add_centre_scores(ptrdiff_t place, int32_t row, int32_t rows, float* scores);
  void add_float16_scores(ptrdiff_t place, int32_t row, int32_t rows, float* scores);
  void add_masses(ptrdiff_t first, int32_t count, int32_t row, int32_t rows, const float* p) const;

  const ContextItem& item_;
  const centred::Context& context_;
  const CentreKernels& kernels_;
  Work work_;
  ptrdiff_t prepared_ = 0;  // place of the page in the first plane
};

}  // namespace kvq::cpu
