#include "backend/cpu/attend/commvq/item.h"

#include "core/float16.h"
#include "core/rotation_table.h"
#include "formats/commvq/commvq.h"

#include <algorithm>
#include <array>

namespace kvq::cpu {
namespace {

/// Reads the FP16 numbers of all slots of a page.
void read_numbers(const commvq::TokenNumbers& layout, const PageSides& sides, int32_t head, uint16_t* out) {
  for (int32_t slot = 0, part = 0; slot < kPageSlots; slot += layout.share, ++part) {
    const std::byte* side = sides.at(layout.share == kPageSlots ? head : part, 0);
    const auto* numbers = reinterpret_cast<const uint16_t*>(side + layout.offset);
    std::copy_n(numbers, std::min(layout.share, kPageSlots - slot), out + slot);
  }
}

}  // namespace

CommvqItem::CommvqItem(const ContextItem& item)
    : ContextItem(item), context(commvq::context_of(*item.batch.context)), bit_sums(BitSums::of(context)) {}

void CommvqItem::read_norms(ptrdiff_t place, uint16_t* norms) const {
  read_numbers(commvq::key_layout(shape()).norms, sides(place, Side::kKeys), head, norms);
}

void CommvqItem::read_scales(ptrdiff_t place, uint16_t* scales) const {
  read_numbers(commvq::value_layout(shape()).scales, sides(place, Side::kValues), head, scales);
}

void CommvqItem::fill_slot_rotations(ptrdiff_t place, float* rotations) const {
  for (int32_t slot = 0; slot < kPageSlots; ++slot) {
    const int32_t offset = slot < page(place).count ? page(place).position(slot) - page(place).first_position : 0;
    context.rotations.fill(offset, rotations + static_cast<size_t>(slot) * batch.rope->table_stride());
  }
}

void CommvqItem::unpack_indices(ptrdiff_t place, int32_t group, uint8_t* indices) const {
  const commvq::KeyLayout layout = commvq::key_layout(shape());
  const int32_t stages = shape().keys.stages;
  for (int32_t stage = 0; stage < stages; ++stage, indices += 2 * kPageSlots) {
    uint8_t fields[2 * kPageSlots];
    layout.unpack(page(place).data, group * stages + stage, fields);
    std::copy_n(fields, 2 * kPageSlots, indices);
  }
}

void CommvqItem::add_bit_sums(ptrdiff_t first, int32_t count, int32_t row, int32_t n_rows, const float* p) const {
  const commvq::ValueLayout where = commvq::value_layout(shape());
  const PageSides values = sides(first, Side::kValues);
  std::array<uint16_t, static_cast<size_t>(kTileSlots)> scales;
  for (ptrdiff_t i = 0; i < count; ++i) read_scales(first + i, scales.data() + i * kPageSlots);
  const bool of_head = shape().values.scope == Scope::kHead;
  const BitPlanes planes{.sides = values,
                         .first_head = of_head ? head : 0,
                         .parts = of_head ? 1 : shape().kv_heads,
                         .pages = count,
                         .lanes = where.lanes,
                         .scales = scales.data()};
  commvq().sum_bits(planes, n_rows, p, sums + static_cast<size_t>(row) * bit_sums.width(), bit_sums.width(),
                    bit_sums.total());
}

}  // namespace kvq::cpu
