// Key centres of one cache in 16 bits, for CPUs with 16-bit dot products.
#pragma once

#include "core/memory.h"
#include "core/rope.h"
#include "formats/gain_shape/centre_search.h"

#include <cstdint>
#include <span>

namespace kvq::centred {

/// Order of channels: a vector of the first numbers of 32 pairs, one of the second ones, the next pairs; then channels
/// without RoPE. Pairs up to the last fast one are rotated slot by slot, the others are rotated to the middle of a page
/// that begins at position 0.
class RotationOrder {
 public:
  static constexpr int32_t kLanes = 32;

  RotationOrder(const Rope& rope, int32_t head_dim);

  int32_t pair_blocks() const { return (pairs + kLanes - 1) / kLanes; }
  int32_t slot_blocks() const { return (slot_pairs + kLanes - 1) / kLanes; }
  int32_t rest_blocks() const { return (head_dim - 2 * pairs + kLanes - 1) / kLanes; }
  int32_t vectors() const { return 2 * pair_blocks() + rest_blocks(); }
  size_t numbers() const { return static_cast<size_t>(vectors() * kLanes); }
  size_t rotation_floats() const { return static_cast<size_t>(2 * pair_blocks() * kLanes); }

  /// Lanes of packed vectors: four by four, from vectors of 16 numbers.
  static constexpr int32_t lane(int32_t index) { return index % 16 / 4 * 8 + index / 16 * 4 + index % 4; }

  /// Write a head's numbers, `[numbers()]`, zeros for padding; lanes in natural order.
  void put_floats(const Rope& rope, const float* head, float* out) const;
  /// Write a row of a rotation: cosines of 32 pairs, sines of these, the next pairs.
  void put_rotation(const float* row, float* out) const;

  int32_t pairs;
  int32_t slot_pairs;
  int32_t head_dim;
};

/// Rotated centres of a layer.
struct RotatedCentres {
  /// `page_rotations`: [32] rows, as Context::page_rotations. `searches`: of all heads.
  RotatedCentres(Allocator& allocator, const Rope& rope, const RotationOrder& order,
                 std::span<const CentreSearch> searches, std::span<const float> page_rotations);

  const int16_t* of_head(int32_t head) const {
    return rows.data() + static_cast<size_t>(head) * static_cast<size_t>(count) * order.numbers();
  }

  /// Norm of rounded rows and queries: products then fit 32 bits.
  static constexpr float kNorm = 32000.0F;

  RotationOrder order;
  int32_t count;
  Vector<float> units;             // [heads], unit of `rows`
  Vector<int16_t> rows;            // [heads][count][numbers()], lanes packed
  Vector<int16_t> slot_rotations;  // [32][slot_blocks()]{cos, sin}[32] in units of 2^-15, lanes packed
  // Factors of a single centre's products with queries: by the page's middle, a row as in a Rope table, and from there
  // to the slots before, [slot_pairs / 2, rounded up]{cos[16][2 pairs], sin}.
  Vector<float> middle;
  Vector<int16_t> slot_columns;

 private:
  void fill_rows(const Rope& rope, std::span<const CentreSearch> searches, std::span<const float> page_rotations);
  void fill_slot_rotations(const Rope& rope, std::span<const float> page_rotations);
  void fill_middle(const Rope& rope);
  void fill_slot_columns(const Rope& rope);
};

}  // namespace kvq::centred
