#include "pages/centre_arrays.h"

#include "core/float16.h"
#include "core/head_rotation.h"
#include "formats/gain_shape/centre_rotations.h"
#include "formats/gain_shape/centre_search.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <span>

namespace kvq::cuda {
namespace {

using centred::CentreSearch;

/// Calls `use` with the centres of each head, [centres][head_dim].
template <typename Use>
void for_each_head(const ModelCentres& centres, int32_t layer, Side side, const Use& use) {
  const CentresShape& shape = centres.shape;
  const size_t floats = static_cast<size_t>(shape.centres(side)) * static_cast<size_t>(shape.head_dim);
  if (floats == 0) return;
  const std::span<const float> numbers(centres.layers[static_cast<size_t>(layer)].numbers->side(side));
  for (size_t head = 0; head < static_cast<size_t>(shape.kv_heads); ++head) {
    use(numbers.subspan(head * floats, floats));
  }
}

void append_biases(const CentreSearch& search, std::span<const float> squares, Vector<float>& out) {
  const auto padded = static_cast<size_t>(search.padded_count());
  out.resize(out.size() + padded);
  search.fill_biases(squares, out.data() + out.size() - padded);
}

/// Channel `which` of a pair: rotated pairs first, then neighbours.
size_t pair_channel(const Rope& rope, int32_t pair, int32_t which) {
  if (pair >= rope.pairs()) return static_cast<size_t>(2 * pair + which);
  return static_cast<size_t>(which == 0 ? rope.first_channel(pair) : rope.second_channel(pair));
}

/// Writes FP16 numbers of a row whose chunks are swizzled.
class RowWriter {
 public:
  RowWriter(uint16_t* row, int32_t swizzle) : row_(row), swizzle_(swizzle) {}
  void put(int32_t place, float number) { row_[place ^ 8 * swizzle_] = to_finite_float16(number); }

 private:
  uint16_t* row_;
  int32_t swizzle_;
};

void put_pairs(const Rope& rope, const float* centre, int32_t head_dim, RowWriter row) {
  for (int32_t pair = 0; pair < head_dim / 2; ++pair) {
    for (const int32_t which : {0, 1}) row.put(key_place(pair, which), centre[pair_channel(rope, pair, which)]);
  }
}

using CentreVector = std::array<float, kMaxHeadDim>;

/// A row of a Rope table: a slot's rotation within its page, of pairs from `begin` up to `end` alone.
CentreVector rotations_of_slot(const Rope& rope, int32_t slot, int32_t begin, int32_t end) {
  CentreVector rotations{};
  centred::fill_page_rotation(rope, 0, slot, rotations.data());
  const auto pairs = static_cast<size_t>(rope.pairs());
  for (size_t pair = 0; pair < pairs; ++pair) {
    if (pair >= static_cast<size_t>(begin) && pair < static_cast<size_t>(end)) continue;
    rotations[pair] = 1.0F;
    rotations[pairs + pair] = 0.0F;
  }
  return rotations;
}

/// Revolutions without their whole part, in units of 2^-64.
uint64_t turn_fraction(float radians) {
  const double rotations = static_cast<double>(radians) * (0.5 * std::numbers::inv_pi);
  const double units = (rotations - std::floor(rotations)) * 0x1p32;
  const double whole = std::floor(units);
  return (static_cast<uint64_t>(whole) << 32U) + static_cast<uint64_t>((units - whole) * 0x1p32);
}

/// Calls `put` with each of a side's centres and its number in its head.
template <typename Put>
void for_each_centre(const ModelCentres& centres, int32_t layer, Side side, const Put& put) {
  const int32_t dim = centres.shape.head_dim;
  const int32_t of_head = centres.shape.centres(side);
  const float* numbers = centres.layers[static_cast<size_t>(layer)].numbers->side(side).data();
  CentreVector centre;
  for (int32_t i = 0; i < centres.shape.kv_heads * of_head; ++i, numbers += dim) {
    std::copy_n(numbers, dim, centre.begin());
    put(centre, i % of_head);
  }
}

/// Appends a row of zeros.
uint16_t* add_row(int32_t head_dim, Vector<uint16_t>& rows) {
  const auto width = static_cast<size_t>(row_width(head_dim));
  rows.resize(rows.size() + width, 0);
  return rows.data() + rows.size() - width;
}

}  // namespace

SideArrays::SideArrays(Allocator& allocator, const ModelCentres& centres, int32_t layer, Side side)
    : floats(allocator), rounded(allocator), means(allocator), scales(allocator), biases(allocator) {
  const int32_t dim = centres.shape.head_dim;
  const Vector<float> ones(static_cast<size_t>(dim), 1.0F, allocator);
  for_each_head(centres, layer, side, [&](std::span<const float> numbers) {
    const CentreSearch search(allocator, numbers, dim);
    floats.insert(floats.end(), numbers.begin(), numbers.end());
    rounded.insert(rounded.end(), search.rounded.begin(), search.rounded.end());
    means.insert(means.end(), search.mean.begin(), search.mean.end());
    scales.push_back(search.scale);
    append_biases(search, ones, biases);
    padded = search.padded_count();
  });
}

RotationArrays::RotationArrays(Allocator& allocator, const ModelCentres& centres, int32_t layer, const Rope& rope)
    : page_rotations(kPageSlots * rope.table_stride(), 0.0F, allocator), biases(allocator) {
  for (int32_t slot = 0; slot < kPageSlots; ++slot) {
    centred::fill_page_rotation(rope, 0, slot, page_rotations.data() + static_cast<size_t>(slot) * rope.table_stride());
  }
  const int32_t dim = centres.shape.head_dim;
  Vector<float> squares(static_cast<size_t>(dim), 1.0F, allocator);
  for (int32_t pair = 0; pair < rope.pairs(); ++pair) {
    const double factor = centred::factor_of(rope, pair);
    for (const int32_t channel : {rope.first_channel(pair), rope.second_channel(pair)}) {
      squares[static_cast<size_t>(channel)] = static_cast<float>(factor * factor);
    }
  }
  for_each_head(centres, layer, Side::kKeys, [&](std::span<const float> numbers) {
    append_biases(CentreSearch(allocator, numbers, dim), squares, biases);
  });
}

CentreRowArrays::CentreRowArrays(Allocator& allocator, const ModelCentres& centres, int32_t layer, const Rope& rope)
    : keys(allocator), values(allocator), slot_rotations(allocator), frequencies(allocator) {
  const CentresShape& shape = centres.shape;
  counts.key_centres = shape.key_centres;
  counts.value_centres = shape.value_centres;
  for_each_centre(centres, layer, Side::kValues, [&](CentreVector& centre, int32_t number) {
    rotate_head(centre.data(), shape.head_dim);
    RowWriter row(add_row(shape.head_dim, values), row_swizzle(number));
    for (int32_t i = 0; i < shape.head_dim; ++i) row.put(value_place(i), centre[static_cast<size_t>(i)]);
  });
  if (shape.key_centres == 0) return;
  frequencies.resize(static_cast<size_t>(row_width(shape.head_dim) / 2), 0);
  std::transform(rope.inv_freq.begin(), rope.inv_freq.end(), frequencies.begin(), turn_fraction);
  if (shape.key_centres == 1) {
    put_single_keys(centres, layer, rope);
  } else {
    put_keys(centres, layer, rope);
    put_slot_rotations(rope);
  }
}

void CentreRowArrays::put_single_keys(const ModelCentres& centres, int32_t layer, const Rope& rope) {
  counts.key_rows = kPageSlots;
  for_each_centre(centres, layer, Side::kKeys, [&](const CentreVector& centre, int32_t /*number*/) {
    for (int32_t number = 0; number < kPageSlots; ++number) {
      CentreVector rotated = centre;
      rope.rotate(rotations_of_slot(rope, slot_of_row(number), 0, rope.pairs()).data(), rotated.data());
      put_pairs(rope, rotated.data(), centres.shape.head_dim,
                {add_row(centres.shape.head_dim, keys), row_swizzle(number)});
    }
  });
}

void CentreRowArrays::put_keys(const ModelCentres& centres, int32_t layer, const Rope& rope) {
  counts.key_rows = centres.shape.key_centres;
  for (int32_t pair = 0; pair < rope.pairs(); ++pair) {
    if (centred::rotates_fast(rope, pair)) counts.fast_pairs = pair + 1;
  }
  // Slow pairs rotate alike in all slots: any slot's rotation serves.
  const CentreVector slow = rotations_of_slot(rope, 0, counts.fast_pairs, rope.pairs());
  for_each_centre(centres, layer, Side::kKeys, [&](CentreVector& centre, int32_t number) {
    rope.rotate(slow.data(), centre.data());
    put_pairs(rope, centre.data(), centres.shape.head_dim,
              {add_row(centres.shape.head_dim, keys), row_swizzle(number)});
  });
}

void CentreRowArrays::put_slot_rotations(const Rope& rope) {
  constexpr int32_t kPlaceNumbers = 8;
  counts.rotation_blocks = (counts.fast_pairs + 31) / 32;
  const int32_t pairs = 32 * counts.rotation_blocks;
  slot_rotations.resize(static_cast<size_t>(kPlaceNumbers * slot_rotation_place(pairs, 0)), 0);
  for (int32_t slot = 0; slot < kPageSlots; ++slot) {
    const CentreVector rotations = rotations_of_slot(rope, slot, 0, counts.fast_pairs);
    const int32_t g = slot_place(slot) / 4;
    const int32_t tile = slot_place(slot) % 4;
    for (int32_t pair = 0; pair < pairs; ++pair) {
      const bool rotated = pair < rope.pairs();
      const int32_t lane = 4 * g + pair % 8 / 2;
      const int32_t word = tile % 2 + 2 * (pair % 16 / 8);
      uint16_t* cosine =
          slot_rotations.data() + kPlaceNumbers * (slot_rotation_place(pair, tile / 2) + lane) + 2 * word + pair % 2;
      *cosine = to_finite_float16(rotated ? rotations[static_cast<size_t>(pair)] : 1.0F);
      cosine[kPlaceNumbers * kPageSlots] =
          to_finite_float16(rotated ? rotations[static_cast<size_t>(rope.pairs() + pair)] : 0.0F);
    }
  }
}

}  // namespace kvq::cuda
