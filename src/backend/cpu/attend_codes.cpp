#include "backend/cpu/attend_codes.h"

#include "codebooks/key_kernels.h"
#include "codebooks/model_coder.h"
#include "core/float16.h"
#include "core/position_turns.h"
#include "formats/commvq/commvq.h"

#include <algorithm>

namespace kvq::cpu {
namespace {

/// The numbers of all slots of a page.
void read_numbers(const commvq::TokenNumbers& layout, const PageSides& sides, int32_t head, int32_t page,
                  uint16_t* out) {
  for (int32_t slot = 0, part = 0; slot < kPageSlots; slot += layout.share, ++part) {
    const std::byte* side = sides.at(layout.share == kPageSlots ? head : part, page);
    const auto* numbers = reinterpret_cast<const uint16_t*>(side + layout.offset);
    std::copy_n(numbers, std::min(layout.share, kPageSlots - slot), out + slot);
  }
}

}  // namespace

CodedAttention::CodedAttention(const AttendBatch& batch, const KernelTable& kernels, const Page* const* const* lists,
                               int32_t head, ptrdiff_t end)
    : batch_(batch), kernels_(kernels), lists_(lists), head_(head), end_(end), tile_pages_(kTilePages) {
  if (batch.codes.has_value()) tile_pages_ = std::min(kTilePages, static_cast<int32_t>(kPlanes / plane_size()));
}

const CodebookShape& CodedAttention::shape() const { return batch_.codes->coder.shape; }

const KeyLookup* CodedAttention::lookup() const {
  const Vector<KeyLookup>& lookups = batch_.codes->coder.lookups;
  const bool exists = kernels_.lookup_keys != nullptr && !lookups.empty();
  return exists ? &lookups[static_cast<size_t>(head_)] : nullptr;
}

PageSides CodedAttention::sides(ptrdiff_t first, Side side) const {
  return {lists_, first, end_, page(first).format()->offset(side)};
}

bool CodedAttention::has_regular_positions(ptrdiff_t place) const {
  return page(place).positions == nullptr || !page(place).has_gaps();
}

/// Turns of a page's slots relative to the first one.
void CodedAttention::turn_slots(const Page& page, float* turns) const {
  for (int32_t slot = 0; slot < kPageSlots; ++slot) {
    const int32_t offset = slot < page.count ? page.position(slot) - page.first_position : 0;
    batch_.codes->turns.turn(offset, turns + static_cast<size_t>(slot) * batch_.rope->table_stride());
  }
}

void CodedAttention::prepare(ptrdiff_t first, int32_t count) {
  prepared_ = first;
  const ptrdiff_t end = first + count;
  for (ptrdiff_t place = first; place < end;) {
    ptrdiff_t next = place + 1;
    if (page(place).format()->keys.is_coded()) {
      if (lookup() == nullptr) {
        rebuild(place);
      } else {
        if (has_regular_positions(place)) {
          while (next < end && page(next).format() == page(place).format() && has_regular_positions(next)) ++next;
        }
        rebuild_by_lookup(place, static_cast<int32_t>(next - place));
      }
      const commvq::TokenNumbers norms = commvq::key_layout(shape()).norms;
      for (ptrdiff_t i = place; i < next; ++i) {
        batch_.codes->turns.turn(page(i).first_position, turns_.data() + (i - prepared_) * batch_.head_dim);
        read_numbers(norms, sides(i, Side::kKeys), head_, 0, norms_.data() + (i - prepared_) * kPageSlots);
      }
    }
    place = next;
  }
}

/// Pages whose slots have the same turns.
void CodedAttention::rebuild_by_lookup(ptrdiff_t first, int32_t count) {
  int16_t* planes = planes_.data() + static_cast<size_t>(first - prepared_) * plane_size();
  const PositionTurns& turns = batch_.codes->turns;
  if (has_regular_positions(first)) {
    kernels_.lookup_keys(*lookup(), shape(), sides(first, Side::kKeys), head_, count, turns.fixed_slots(), planes);
    return;
  }
  std::array<float, static_cast<size_t>(kPageSlots * kMaxHeadDim)> rows;
  std::array<int16_t, static_cast<size_t>(kPageSlots * kMaxHeadDim)> fixed;
  turn_slots(page(first), rows.data());
  turns.to_fixed_point(rows.data(), fixed.data());
  kernels_.lookup_keys(*lookup(), shape(), sides(first, Side::kKeys), head_, count, fixed.data(), planes);
}

/// Unit keys of a page as an FP16 plane, rotated to positions from 0.
void CodedAttention::rebuild(ptrdiff_t place) {
  const LayerCoder& coder = batch_.codes->coder;
  const commvq::KeyLayout layout = commvq::key_layout(shape());
  const auto group = static_cast<size_t>(shape().keys.group);
  const auto padded = static_cast<size_t>(keys::padded(shape().keys.group));
  const auto dim = static_cast<size_t>(batch_.head_dim);
  const bool half = shape().pairing == KVQ_ROPE_HALF;
  const int32_t stages = shape().keys.stages;
  std::array<uint8_t, 2 * kPageSlots * kMaxKeyStages> indices;
  alignas(kDataAlignment) std::array<float, static_cast<size_t>(kPageSlots * kMaxHeadDim)> rows;
  alignas(kDataAlignment) std::array<float, 2 * kPageSlots* static_cast<size_t>(keys::padded(kMaxHeadDim / 2))> vectors;
  for (int32_t part = 0; part < shape().groups(); ++part) {
    for (int32_t stage = 0; stage < stages; ++stage) {
      uint8_t fields[2 * kPageSlots];
      layout.unpack(page(place).data, part * stages + stage, fields);
      std::copy_n(fields, 2 * kPageSlots, indices.data() + static_cast<ptrdiff_t>(stage) * 2 * kPageSlots);
    }
    kernels_.sum_centres(coder.key_encoder(head_, part), indices.data(), vectors.data());
    const float* from = vectors.data();
    const size_t first = static_cast<size_t>(part) * group;
    for (size_t slot = 0; slot < kPageSlots; ++slot, from += 2 * padded) {
      float* row = rows.data() + slot * dim;
      if (half) {
        std::copy_n(from, group, row + first);
        std::copy_n(from + padded, group, row + dim / 2 + first);
        continue;
      }
      for (size_t pair = 0; pair < group; ++pair) {
        row[2 * (first + pair)] = from[pair];
        row[2 * (first + pair) + 1] = from[padded + pair];
      }
    }
  }
  const float* turns = batch_.codes->turns.slots();
  if (!has_regular_positions(place)) {
    turn_slots(page(place), vectors.data());
    turns = vectors.data();
  }
  auto* plane = reinterpret_cast<uint16_t*>(planes_.data()) + static_cast<size_t>(place - prepared_) * plane_size();
  const auto* first_row = reinterpret_cast<const std::byte*>(rows.data());
  kernels_.append->store_keys({first_row, first_row, dim * sizeof(float), KVQ_F32, kPageSlots, shape().head_dim},
                              *batch_.rope, turns, 0, plane);
}

void CodedAttention::score(ptrdiff_t first, int32_t count, int32_t rows, const float* q, float* scores) {
  const auto at = static_cast<size_t>(first - prepared_);
  const int16_t* plane = planes_.data() + at * plane_size();
  const uint16_t* norms = norms_.data() + at * kPageSlots;
  if (lookup() != nullptr) {
    std::array<LookupPage, kTilePages> pages;
    for (ptrdiff_t i = 0; i < count; ++i) {
      pages[static_cast<size_t>(i)] = {plane + static_cast<size_t>(i) * plane_size(), turn(first + i),
                                       norms + i * kPageSlots};
    }
    kernels_.lookup_scores(*lookup(), shape(), pages.data(), count, rows, q, scores);
    return;
  }
  const auto dim = static_cast<size_t>(batch_.head_dim);
  alignas(kDataAlignment) std::array<float, static_cast<size_t>(kBlockRows * kMaxHeadDim)> queries{};
  for (ptrdiff_t i = 0; i < count; ++i, plane += plane_size(), norms += kPageSlots, scores += kPageSlots) {
    std::copy_n(q, static_cast<size_t>(rows) * dim, queries.data());
    for (int32_t r = 0; r < rows; ++r) {
      turn_back(*batch_.rope, turn(first + i), queries.data() + static_cast<size_t>(r) * dim);
    }
    const auto* data = reinterpret_cast<const std::byte*>(plane);
    kernels_.float16_keys({batch_.head_dim, SideFormat{}.group}, {data, data}, rows, queries.data(), scores);
    for (int32_t r = 0; r < rows; ++r) {
      for (int32_t slot = 0; slot < kPageSlots; ++slot) scores[r * kTileSlots + slot] *= from_float16(norms[slot]);
    }
  }
}

void CodedAttention::add_values(ptrdiff_t first, int32_t count, int32_t rows, const float* p, const BitSums& layout,
                                float* sums) {
  const commvq::ValueLayout where = commvq::value_layout(shape());
  const PageSides values = sides(first, Side::kValues);
  std::array<uint16_t, static_cast<size_t>(kTileSlots)> scales;
  for (int32_t page = 0; page < count; ++page) {
    read_numbers(where.scales, values, head_, page, scales.data() + static_cast<ptrdiff_t>(page) * kPageSlots);
  }
  const bool of_head = shape().values.scope == Scope::kHead;
  const BitPlanes planes{values, of_head ? head_ : 0, of_head ? 1 : shape().kv_heads,
                         count,  where.lanes,         scales.data()};
  kernels_.sum_bits(planes, rows, p, sums, layout.width(), layout.total());
}

void add_decoded(const LayerCodes& codes, const KernelTable& kernels, int32_t head, const BitSums& layout, int32_t rows,
                 const float* sums, float* out) {
  const CodebookShape& shape = codes.coder.shape;
  const bool of_layer = shape.values.scope == Scope::kLayer;
  const ValueCode code = value_code(shape, codes.coder.numbers, of_layer ? 0 : head);
  const size_t first = of_layer ? static_cast<size_t>(head) * static_cast<size_t>(shape.head_dim) : 0;
  alignas(kDataAlignment) std::array<float, static_cast<size_t>(kBlockRows * kMaxHeadDim)> decoded{};
  for (int32_t r = 0; r < rows; ++r) {
    const float total = sums[static_cast<size_t>(r) * layout.width() + layout.total()];
    float* row = decoded.data() + static_cast<ptrdiff_t>(r) * kMaxHeadDim;
    for (int32_t channel = 0; channel < shape.head_dim; ++channel) {
      row[channel] = total * code.offset[first + static_cast<size_t>(channel)];
    }
  }
  kernels.decode_bits(code.codes.data() + first, static_cast<size_t>(code.width), code.bits, shape.head_dim, rows, sums,
                      layout.width(), decoded.data());
  for (int32_t r = 0; r < rows; ++r) {
    const float* row = decoded.data() + static_cast<ptrdiff_t>(r) * kMaxHeadDim;
    for (int32_t channel = 0; channel < shape.head_dim; ++channel) {
      out[r * kMaxHeadDim + channel] += row[channel] * code.channel_scale[first + static_cast<size_t>(channel)];
    }
  }
}

}  // namespace kvq::cpu
