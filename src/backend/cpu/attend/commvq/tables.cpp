#include "backend/cpu/attend/commvq/tables.h"

#include "backend/cpu/attend/commvq/rebuild.h"
#include "core/float16.h"
#include "core/rotation_table.h"
#include "formats/commvq/context.h"
#include "formats/commvq/key_kernels.h"
#include "formats/commvq/pair_length.h"

#include <algorithm>

namespace kvq::cpu {
namespace {

/// Largest sum of products; the rest of 16 bits absorbs the roundings of up to 2 · kMaxKeyStages of them.
constexpr float kLargestSum = 32700.0F;

size_t plane_of(const CodebookShape& shape) { return static_cast<size_t>(keys::padded(shape.keys.group)); }

size_t products_of(const CodebookShape& shape) {
  return static_cast<size_t>(shape.keys.stages) * static_cast<size_t>(shape.keys.codes) * 2 * plane_of(shape);
}

}  // namespace

bool TableAttention::is_faster(const AttendBatch& batch, const KernelTable& kernels, int32_t rows) {
  // Rebuilding keys takes about as long as three rows of sums without lookups, and less than one with them
  // (docs/history/commvq.md). Both times grow with the stages.
  constexpr int32_t kFewRows = 2;
  return commvq::context_of(*batch.context).coder.shape.keys.stages > 0 &&
         !RebuildAttention::looks_up(batch, kernels) && rows <= kFewRows;
}

TableAttention::Work::Work(const AttendBatch& batch, MemoryCutter& memory) {
  const CodebookShape& shape = commvq::context_of(*batch.context).coder.shape;
  const auto groups = static_cast<size_t>(shape.groups());
  const auto dim = static_cast<size_t>(batch.head.keys);
  const size_t plane = plane_of(shape);
  products = memory.take<int16_t>(kRows * groups * products_of(shape));
  units = memory.take<float>(kRows * groups * plane);
  query = memory.take<float>(2 * plane);
  inverse = memory.take<float>(plane);
  indices = memory.take<uint8_t>(kTilePages * groups * static_cast<size_t>(shape.keys.stages) * 2 * kPageSlots);
  norms = memory.take<uint16_t>(kTileSlots);
  page_rotations = memory.take<float>(kTilePages * dim);
  rows = memory.take<float>(kPageSlots * dim);
  slot_rotations = memory.take<float>(groups * kPageSlots * 2 * plane);
  gap_rotations = memory.take<float>(groups * kPageSlots * 2 * plane);
  weights = memory.take<float>(2 * plane);
}

TableAttention::TableAttention(const CommvqItem& item, const Work& work)
    : item_(item), work_(work), groups_(item.shape().groups()), plane_(plane_of(item.shape())) {}

size_t TableAttention::table_size() const { return products_of(item_.shape()); }

/// Rearranges rows of a Rope table by groups.
void TableAttention::spread_rotations(const float* rows, float* rotations) const {
  const auto pairs = static_cast<size_t>(item_.shape().pairs());
  const auto group = static_cast<size_t>(item_.shape().keys.group);
  for (size_t part = 0; part < static_cast<size_t>(groups_); ++part) {
    for (size_t slot = 0; slot < kPageSlots; ++slot, rotations += 2 * plane_) {
      const float* row = rows + slot * 2 * pairs + part * group;
      std::copy_n(row, group, rotations);
      std::copy_n(row + pairs, group, rotations + plane_);
      std::fill(rotations + group, rotations + plane_, 0.0F);
      std::fill(rotations + plane_ + group, rotations + 2 * plane_, 0.0F);
    }
  }
}

void TableAttention::make_tables() {
  for (int32_t row = 0; row < item_.rows; ++row) {
    for (int32_t group = 0; group < groups_; ++group) make_table(row, group);
  }
  spread_rotations(item_.context.rotations.slots(), work_.slot_rotations);
  has_tables_ = true;
}

void TableAttention::make_table(int32_t row, int32_t group) {
  const KeyEncoder& encoder = item_.context.coder.key_encoder(item_.head, group);
  const Rope& rope = *item_.batch.rope;
  const int32_t pairs = item_.shape().keys.group;
  float* units = work_.units + part(row, group) * plane_;
  std::fill_n(work_.query, 2 * plane_, 0.0F);
  std::fill_n(work_.inverse, plane_, 0.0F);
  std::fill_n(units, plane_, 0.0F);
  for (int32_t pair = 0; pair < pairs; ++pair) {
    const float x = item_.query(row)[rope.first_channel(group * pairs + pair)];
    const float y = item_.query(row)[rope.second_channel(group * pairs + pair)];
    work_.query[pair] = x;
    work_.query[plane_ + static_cast<size_t>(pair)] = y;
    // Twice the bound: the real part of one product and the imaginary part of another are added.
    const float unit = pair_length(x, y) * 2.0F * encoder.bounds()[pair] / kLargestSum;
    units[pair] = unit;
    work_.inverse[pair] = unit > 0.0F ? 1.0F / unit : 0.0F;
  }
  item_.commvq().multiply_codes(encoder, work_.query, work_.inverse, work_.products + part(row, group) * table_size());
}

void TableAttention::prepare(ptrdiff_t first, int32_t count) {
  prepared_ = first;
  const auto page_indices = static_cast<size_t>(groups_ * item_.shape().keys.stages) * 2 * kPageSlots;
  for (ptrdiff_t i = 0; i < count; ++i) {
    const Page& page = item_.page(first + i);
    if (!has_commvq_keys(page)) continue;
    if (!has_tables_) make_tables();
    const PageSides keys = item_.sides(first + i, Side::kKeys);
    const std::byte* later = keys.later(item_.head, 0);
    for (size_t offset = 0; offset < page.format()->key_bytes(); offset += kDataAlignment) prefetch(later + offset);
    for (int32_t group = 0; group < groups_; ++group) {
      item_.unpack_indices(first + i, group,
                           work_.indices + static_cast<size_t>(i) * page_indices +
                               static_cast<size_t>(group) * page_indices / static_cast<size_t>(groups_));
    }
    item_.context.rotations.fill(page.first_position, work_.page_rotations + i * item_.batch.head.keys);
    item_.read_norms(first + i, work_.norms + i * kPageSlots);
  }
}

void TableAttention::score(ptrdiff_t first, int32_t count, int32_t row, int32_t rows, float* scores) {
  for (ptrdiff_t place = first; place < first + count; ++place, scores += kPageSlots) {
    const float* rotations = work_.slot_rotations;
    if (!item_.has_regular_positions(place)) {
      item_.fill_slot_rotations(place, work_.rows);
      spread_rotations(work_.rows, work_.gap_rotations);
      rotations = work_.gap_rotations;
    }
    for (int32_t r = 0; r < rows; ++r) score_page(place, row + r, rotations, scores + r * kTileSlots);
  }
}

void TableAttention::score_page(ptrdiff_t place, int32_t row, const float* rotations, float* scores) const {
  const CodebookShape& shape = item_.shape();
  const ptrdiff_t page = place - prepared_;
  const auto stages = static_cast<size_t>(shape.keys.stages);
  const float* cosines = work_.page_rotations + page * item_.batch.head.keys;
  const float* sines = cosines + shape.pairs();
  std::fill_n(scores, kPageSlots, 0.0F);
  for (int32_t group = 0; group < groups_; ++group) {
    const float* units = work_.units + part(row, group) * plane_;
    for (size_t pair = 0; pair < static_cast<size_t>(shape.keys.group); ++pair) {
      work_.weights[pair] = units[pair] * *cosines++;
      work_.weights[plane_ + pair] = units[pair] * *sines++;
    }
    const ProductTable table{work_.products + part(row, group) * table_size(), shape.keys.stages, shape.keys.codes,
                             static_cast<int32_t>(plane_)};
    const uint8_t* indices =
        work_.indices + (static_cast<size_t>(page) * static_cast<size_t>(groups_) + static_cast<size_t>(group)) *
                            stages * 2 * kPageSlots;
    item_.commvq().sum_products(table, indices, rotations + static_cast<size_t>(group) * kPageSlots * 2 * plane_,
                                work_.weights, scores);
  }
  const uint16_t* norms = work_.norms + page * kPageSlots;
  for (int32_t slot = 0; slot < kPageSlots; ++slot) scores[slot] *= from_float16(norms[slot]);
}

}  // namespace kvq::cpu
