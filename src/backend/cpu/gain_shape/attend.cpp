#include "backend/cpu/gain_shape/attend.h"

#include <algorithm>
#include <array>
#include <numeric>

namespace kvq::cpu {
namespace {

bool has_centred_keys(const Page& page) { return gain_shape::has_trained_centres(page.format()->keys.kind); }

}  // namespace

CentredAttention::Work::Work(const AttendBatch& batch, MemoryCutter& memory) {
  const auto dim = static_cast<size_t>(batch.head_dim);
  planes = memory.take<uint16_t>(kTileSlots * dim);
  turns = memory.take<float>(kTilePages * dim);
  rows = memory.take<float>(kPageSlots * dim);
  slot_turns = memory.take<float>(kPageSlots * dim);
  turned = memory.take<float>(kBlockRows * dim);
  scores = memory.take<float>(static_cast<size_t>(kBlockRows * kTileSlots));
}

CentredAttention::CentredAttention(const ContextItem& item, const Work& work)
    : item_(item), context_(centred::context_of(*item.batch.context)), work_(work) {}

size_t CentredAttention::sum_floats(const centred::Context& context) {
  constexpr int32_t kBlock = 16;
  return static_cast<size_t>((context.shape().value_centres + kBlock - 1) / kBlock * kBlock);
}

void CentredAttention::prepare(ptrdiff_t first, int32_t count) {
  prepared_ = first;
  for (ptrdiff_t place = first; place < first + count; ++place) {
    if (!has_centred_keys(item_.page(place))) continue;
    context_.turns.turn(item_.page(place).first_position, turn(place));
    put_centres(place);
  }
}

/// A page's centres as FP16 keys, turned as if it began at position 0.
void CentredAttention::put_centres(ptrdiff_t place) {
  const Page& page = item_.page(place);
  const gain_shape::Layout where = context_.layout(Side::kKeys, *page.format());
  const auto dim = static_cast<size_t>(item_.batch.head_dim);
  const auto* indices = reinterpret_cast<const uint8_t*>(page.data + where.index_offset());
  for (size_t slot = 0; slot < kPageSlots; ++slot) {
    const int32_t index = where.has_indices ? indices[slot] : 0;
    std::copy_n(context_.centre(Side::kKeys, item_.head, index), dim, work_.rows + slot * dim);
  }
  const float* turns = context_.page_turns.data();
  if (*reinterpret_cast<const uint16_t*>(page.data + where.turn_offset()) != 0) {
    for (int32_t slot = 0; slot < kPageSlots; ++slot) {
      const int32_t offset = slot < page.count ? page.position(slot) - page.first_position : 0;
      context_.turns.turn(offset, work_.slot_turns + static_cast<size_t>(slot) * item_.batch.rope->table_stride());
    }
    turns = work_.slot_turns;
  }
  const auto* rows = reinterpret_cast<const std::byte*>(work_.rows);
  const size_t stride = dim * sizeof(float);
  item_.kernels.append->store_keys({rows, rows, stride, stride, KVQ_F32, kPageSlots, item_.batch.head_dim},
                                   *item_.batch.rope, turns, 0, plane(place));
}

void CentredAttention::score(ptrdiff_t first, int32_t count, int32_t row, int32_t rows, float* scores) {
  const int32_t dim = item_.batch.head_dim;
  for (ptrdiff_t place = first; place < first + count; ++place, scores += kPageSlots) {
    const Page& page = item_.page(place);
    const SideFormat& format = page.format()->keys;
    item_.kernels.side(gain_shape::without_centres(format.kind))
        .keys({dim, format.group, false}, {page.data, item_.later(place).data}, rows, item_.rotated_rows(row), scores);
    add_centre_scores(place, row, rows, scores);
  }
}

void CentredAttention::add_centre_scores(ptrdiff_t place, int32_t row, int32_t rows, float* scores) {
  const auto dim = static_cast<size_t>(item_.batch.head_dim);
  std::copy_n(item_.query(row), static_cast<size_t>(rows) * dim, work_.turned);
  for (int32_t r = 0; r < rows; ++r) {
    turn_back(*item_.batch.rope, turn(place), work_.turned + static_cast<size_t>(r) * dim);
  }
  const auto* data = reinterpret_cast<const std::byte*>(plane(place));
  item_.kernels.side(Kind::kFloat16)
      .keys({item_.batch.head_dim, SideFormat{}.group, false}, {data, data}, rows, {work_.turned, {}}, work_.scores);
  for (int32_t r = 0; r < rows; ++r) {
    for (int32_t slot = 0; slot < kPageSlots; ++slot) {
      scores[r * kTileSlots + slot] += work_.scores[r * kTileSlots + slot];
    }
  }
}

void CentredAttention::add_values(ptrdiff_t first, int32_t count, int32_t row, int32_t rows, const float* p) {
  const PageFormat& format = *item_.page(first).format();
  std::array<SideData, kTilePages> sides;
  for (ptrdiff_t i = 0; i < count; ++i) {
    const size_t offset = format.offset(Side::kValues);
    sides[static_cast<size_t>(i)] = {item_.page(first + i).data + offset, item_.later(first + i).data + offset};
  }
  const int32_t dim = item_.batch.head_dim;
  item_.kernels.side(gain_shape::without_centres(format.values.kind))
      .values({dim, format.values.group, false}, sides.data(), count, rows, p, item_.rotated + row * padded_dim(dim));
  add_masses(first, count, row, rows, p);
}

void CentredAttention::add_masses(ptrdiff_t first, int32_t count, int32_t row, int32_t rows, const float* p) const {
  const PageFormat& format = *item_.page(first).format();
  const gain_shape::Layout where = context_.layout(Side::kValues, format);
  const size_t width = sum_floats(context_);
  float* sums = item_.sums + static_cast<size_t>(row) * width;
  if (!where.has_indices) {
    for (int32_t r = 0; r < rows; ++r, p += kTileSlots, sums += width) {
      *sums = std::accumulate(p, p + count * kPageSlots, *sums);
    }
    return;
  }
  for (ptrdiff_t place = first; place < first + count; ++place, p += kPageSlots) {
    const std::byte* side = item_.page(place).data + format.offset(Side::kValues);
    const auto* indices = reinterpret_cast<const uint8_t*>(side + where.index_offset());
    for (int32_t slot = 0; slot < kPageSlots; ++slot) {
      float* mass = sums + indices[slot];
      for (int32_t r = 0; r < rows; ++r) mass[static_cast<size_t>(r) * width] += p[r * kTileSlots + slot];
    }
  }
}

}  // namespace kvq::cpu
