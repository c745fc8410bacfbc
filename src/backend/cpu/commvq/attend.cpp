#include "backend/cpu/commvq/attend.h"

#include "backend/cpu/attend/attend.h"
#include "backend/cpu/commvq/attend_decode.h"
#include "backend/cpu/commvq/attend_rebuild.h"
#include "backend/cpu/commvq/attend_tables.h"
#include "core/float16.h"
#include "core/position_turns.h"
#include "formats/commvq/commvq.h"
#include "formats/commvq/model_coder.h"

#include <algorithm>
#include <array>

namespace kvq::cpu {
namespace {

/// The numbers of all slots of a page.
void read_numbers(const commvq::TokenNumbers& layout, const PageSides& sides, int32_t head, uint16_t* out) {
  for (int32_t slot = 0, part = 0; slot < kPageSlots; slot += layout.share, ++part) {
    const std::byte* side = sides.at(layout.share == kPageSlots ? head : part, 0);
    const auto* numbers = reinterpret_cast<const uint16_t*>(side + layout.offset);
    std::copy_n(numbers, std::min(layout.share, kPageSlots - slot), out + slot);
  }
}

/// An attention and its work space in one block.
template <typename Attention>
CodedAttention* make(const CodedItem& item, std::byte* work) {
  MemoryCutter memory(work);
  auto* place = memory.take<Attention>(1);
  const typename Attention::Work arrays(item.batch, memory);
  return std::construct_at(place, item, arrays);
}

template <typename Attention>
size_t bytes(const AttendBatch& batch) {
  MemoryCutter memory(nullptr);
  memory.take<Attention>(1);
  static_cast<void>(typename Attention::Work(batch, memory));
  return memory.used();
}

}  // namespace

BitSums BitSums::of(const AttendBatch& batch) {
  const bool by_bits = batch.codes.has_value() && batch.codes->values && batch.codes->way != AttentionWay::kDecode;
  return by_bits ? BitSums(batch.codes->coder.shape) : BitSums();
}

const CodebookShape& CodedItem::shape() const { return codes().coder.shape; }

void CodedItem::read_norms(ptrdiff_t place, uint16_t* norms) const {
  read_numbers(commvq::key_layout(shape()).norms, sides(place, Side::kKeys), head, norms);
}

void CodedItem::read_scales(ptrdiff_t place, uint16_t* scales) const {
  read_numbers(commvq::value_layout(shape()).scales, sides(place, Side::kValues), head, scales);
}

void CodedItem::turn_slots(ptrdiff_t place, float* turns) const {
  for (int32_t slot = 0; slot < kPageSlots; ++slot) {
    const int32_t offset = slot < page(place).count ? page(place).position(slot) - page(place).first_position : 0;
    codes().turns.turn(offset, turns + static_cast<size_t>(slot) * batch.rope->table_stride());
  }
}

void CodedItem::unpack_indices(ptrdiff_t place, int32_t group, uint8_t* indices) const {
  const commvq::KeyLayout layout = commvq::key_layout(shape());
  const int32_t stages = shape().keys.stages;
  for (int32_t stage = 0; stage < stages; ++stage, indices += 2 * kPageSlots) {
    uint8_t fields[2 * kPageSlots];
    layout.unpack(page(place).data, group * stages + stage, fields);
    std::copy_n(fields, 2 * kPageSlots, indices);
  }
}

void CodedItem::add_bit_sums(ptrdiff_t first, int32_t count, int32_t row, int32_t n_rows, const float* p) const {
  const commvq::ValueLayout where = commvq::value_layout(shape());
  const PageSides values = sides(first, Side::kValues);
  std::array<uint16_t, static_cast<size_t>(kTileSlots)> scales;
  for (ptrdiff_t i = 0; i < count; ++i) read_scales(first + i, scales.data() + i * kPageSlots);
  const bool of_head = shape().values.scope == Scope::kHead;
  const BitPlanes planes{values, of_head ? head : 0, of_head ? 1 : shape().kv_heads, count, where.lanes, scales.data()};
  kernels.sum_bits(planes, n_rows, p, sums + static_cast<size_t>(row) * bit_sums.width(), bit_sums.width(),
                   bit_sums.total());
}

AttentionWay choose_way(const AttendBatch& batch, const KernelTable& kernels, int32_t rows) {
  if (!batch.codes.has_value()) return AttentionWay::kAuto;
  if (batch.codes->way != AttentionWay::kAuto) return batch.codes->way;
  return TableAttention::is_faster(batch, kernels, rows) ? AttentionWay::kTables : AttentionWay::kRebuild;
}

int32_t item_rows(AttentionWay way) { return way == AttentionWay::kTables ? TableAttention::kRows : kItemRows; }

size_t coded_work_bytes(const AttendBatch& batch, AttentionWay way) {
  switch (way) {
    case AttentionWay::kTables:
      return bytes<TableAttention>(batch);
    case AttentionWay::kRebuild:
      return bytes<RebuildAttention>(batch);
    case AttentionWay::kDecode:
      return bytes<DecodeAttention>(batch);
    case AttentionWay::kAuto:
      break;
  }
  return 0;
}

std::unique_ptr<CodedAttention, DestroyInPlace> make_coded_attention(const CodedItem& item, AttentionWay way,
                                                                     std::byte* work) {
  CodedAttention* attention = nullptr;
  switch (way) {
    case AttentionWay::kTables:
      attention = make<TableAttention>(item, work);
      break;
    case AttentionWay::kRebuild:
      attention = make<RebuildAttention>(item, work);
      break;
    case AttentionWay::kDecode:
      attention = make<DecodeAttention>(item, work);
      break;
    case AttentionWay::kAuto:
      break;
  }
  return std::unique_ptr<CodedAttention, DestroyInPlace>(attention);
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
  kernels.multiply(code.codes.data() + first, static_cast<size_t>(code.width), code.bits, shape.head_dim, rows, sums,
                   layout.width(), decoded.data());
  for (int32_t r = 0; r < rows; ++r) {
    const float* row = decoded.data() + static_cast<ptrdiff_t>(r) * kMaxHeadDim;
    for (int32_t channel = 0; channel < shape.head_dim; ++channel) {
      out[r * kMaxHeadDim + channel] += row[channel] * code.channel_scale[first + static_cast<size_t>(channel)];
    }
  }
}

}  // namespace kvq::cpu
