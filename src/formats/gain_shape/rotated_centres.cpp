#include "formats/gain_shape/rotated_centres.h"

#include "core/limits.h"
#include "formats/gain_shape/centre_rotations.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace kvq::centred {
namespace {

constexpr float kRotationUnit = 32767.0F;

int16_t rounded(float number) { return static_cast<int16_t>(std::lround(number)); }

double largest_norm(const CentreSearch& search) {
  double largest = 0.0;
  for (auto centre = search.centres.begin(); centre != search.centres.end(); centre += search.head_dim) {
    double norm = 0.0;
    for (auto number = centre; number != centre + search.head_dim; ++number) norm += double{*number} * double{*number};
    largest = std::max(largest, norm);
  }
  return std::sqrt(largest);
}

}  // namespace

RotationOrder::RotationOrder(const Rope& rope, int32_t head_dim_)
    : pairs(rope.pairs()), slot_pairs(0), head_dim(head_dim_) {
  for (int32_t pair = 0; pair < pairs; ++pair) {
    if (rotates_fast(rope, pair)) slot_pairs = pair + 1;
  }
}

void RotationOrder::put_floats(const Rope& rope, const float* head, float* out) const {
  std::fill_n(out, numbers(), 0.0F);
  for (int32_t pair = 0; pair < pairs; ++pair) {
    float* block = out + pair / kLanes * 2 * kLanes;
    block[pair % kLanes] = head[rope.first_channel(pair)];
    block[kLanes + pair % kLanes] = head[rope.second_channel(pair)];
  }
  std::copy(head + 2 * pairs, head + head_dim, out + pair_blocks() * 2 * kLanes);
}

void RotationOrder::put_rotation(const float* row, float* out) const {
  std::fill_n(out, rotation_floats(), 0.0F);
  for (int32_t pair = 0; pair < pairs; ++pair) {
    float* block = out + pair / kLanes * 2 * kLanes;
    block[pair % kLanes] = row[pair];
    block[kLanes + pair % kLanes] = row[pairs + pair];
  }
}

RotatedCentres::RotatedCentres(Allocator& allocator, const Rope& rope, const RotationOrder& order_,
                               std::span<const CentreSearch> searches, std::span<const float> page_rotations)
    : order(order_),
      count(searches.front().count),
      units(allocator),
      rows(searches.size() * static_cast<size_t>(count) * order.numbers(), 0, allocator),
      slot_rotations(kPageSlots * static_cast<size_t>(order.slot_blocks() * 2 * RotationOrder::kLanes), 0, allocator),
      middle(2 * static_cast<size_t>(order.pairs), 0.0F, allocator),
      slot_columns(static_cast<size_t>((order.slot_pairs + 1) / 2 * 2 * kPageSlots), 0, allocator) {
  fill_rows(rope, searches, page_rotations);
  fill_slot_rotations(rope, page_rotations);
  fill_middle(rope);
  fill_slot_columns(rope);
}

/// Rounds by head. Slow pairs are rotated, equally for all slots.
void RotatedCentres::fill_rows(const Rope& rope, std::span<const CentreSearch> searches,
                               std::span<const float> page_rotations) {
  constexpr int32_t kLanes = RotationOrder::kLanes;
  std::array<float, 2 * kMaxTrainedDim> numbers;
  std::array<float, kMaxTrainedDim> centre;
  std::array<float, kMaxTrainedDim> slow;  // row of a rotation
  for (int32_t pair = 0; pair < order.pairs; ++pair) {
    const bool later = pair >= order.slot_blocks() * kLanes;
    slow[static_cast<size_t>(pair)] = later ? page_rotations[static_cast<size_t>(pair)] : 1.0F;
    slow[static_cast<size_t>(order.pairs + pair)] =
        later ? page_rotations[static_cast<size_t>(order.pairs + pair)] : 0.0F;
  }
  int16_t* to = rows.data();
  for (const CentreSearch& search : searches) {
    units.push_back(static_cast<float>(largest_norm(search)) / kNorm);
    const float inverse = units.back() > 0.0F ? 1.0F / units.back() : 0.0F;
    for (int32_t i = 0; i < count; ++i, to += order.numbers()) {
      std::copy_n(search.centres.data() + static_cast<ptrdiff_t>(i) * order.head_dim, order.head_dim, centre.begin());
      rope.rotate(slow.data(), centre.data());
      order.put_floats(rope, centre.data(), numbers.data());
      for (int32_t at = 0; at < static_cast<int32_t>(order.numbers()); ++at) {
        to[at / kLanes * kLanes + RotationOrder::lane(at % kLanes)] =
            rounded(numbers[static_cast<size_t>(at)] * inverse);
      }
    }
  }
}

void RotatedCentres::fill_slot_rotations(const Rope& rope, std::span<const float> page_rotations) {
  constexpr int32_t kLanes = RotationOrder::kLanes;
  for (int32_t slot = 0; slot < kPageSlots; ++slot) {
    const float* row = page_rotations.data() + static_cast<size_t>(slot) * rope.table_stride();
    int16_t* rotations = slot_rotations.data() + slot * order.slot_blocks() * 2 * kLanes;
    for (int32_t pair = 0; pair < std::min(order.pairs, order.slot_blocks() * kLanes); ++pair) {
      int16_t* block = rotations + pair / kLanes * 2 * kLanes + RotationOrder::lane(pair % kLanes);
      block[0] = rounded(row[pair] * kRotationUnit);
      block[kLanes] = rounded(row[order.pairs + pair] * kRotationUnit);
    }
  }
}

void RotatedCentres::fill_middle(const Rope& rope) {
  for (int32_t pair = 0; pair < order.pairs; ++pair) {
    const double angle = 0.5 * (kPageSlots - 1) * static_cast<double>(rope.inv_freq[static_cast<size_t>(pair)]);
    const double factor = pair < order.slot_pairs ? 1.0 : factor_of(rope, pair);
    middle[static_cast<size_t>(pair)] = static_cast<float>(factor * std::cos(angle));
    middle[static_cast<size_t>(order.pairs + pair)] = static_cast<float>(factor * std::sin(angle));
  }
}

void RotatedCentres::fill_slot_columns(const Rope& rope) {
  for (int32_t pair = 0; pair < order.slot_pairs; ++pair) {
    const double frequency = static_cast<double>(rope.inv_freq[static_cast<size_t>(pair)]);
    const bool fast = rotates_fast(rope, pair);
    const double factor = factor_of(rope, pair) * static_cast<double>(kRotationUnit);
    for (int32_t slot = 0; slot < kPageSlots / 2; ++slot) {
      const double angle = fast ? (0.5 * (kPageSlots - 1) - slot) * frequency : 0.0;
      int16_t* column = slot_columns.data() + pair / 2 * 2 * kPageSlots + 2 * slot + pair % 2;
      column[0] = rounded(static_cast<float>(factor * std::cos(angle)));
      column[kPageSlots] = rounded(static_cast<float>(factor * -std::sin(angle)));
    }
  }
}

}  // namespace kvq::centred
