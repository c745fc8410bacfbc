#include "backend/cpu/attend/commvq/rebuild.h"

#include "core/float16.h"
#include "core/rotation_table.h"
#include "formats/commvq/context.h"
#include "formats/commvq/key_kernels.h"

#include <algorithm>
#include <array>

namespace kvq::cpu {

RebuildAttention::Work::Work(const AttendBatch& batch, MemoryCutter& memory) {
  const CodebookShape& shape = commvq::context_of(*batch.context).coder.shape;
  const auto dim = static_cast<size_t>(batch.head.keys);
  planes = memory.take<int16_t>(kTileSlots * dim);
  rotations = memory.take<float>(kTilePages * dim);
  norms = memory.take<uint16_t>(kTileSlots);
  indices = memory.take<uint8_t>(2 * kPageSlots * static_cast<size_t>(shape.keys.stages));
  vectors = memory.take<float>(kPageSlots * keys::vector_floats(shape.keys.group));
  rows = memory.take<float>(kPageSlots * dim);
  slot_rotations = memory.take<float>(kPageSlots * dim);
  fixed = memory.take<int16_t>(kPageSlots * dim);
  unrotated = memory.take<float>(kBlockRows * dim);
}

bool RebuildAttention::looks_up(const AttendBatch& batch, const KernelTable& kernels) {
  return kernels.commvq.lookup_keys != nullptr && !commvq::context_of(*batch.context).coder.lookups.empty();
}

const KeyLookup* RebuildAttention::lookup() const {
  const bool exists = looks_up(item_.batch, item_.kernels);
  return exists ? &item_.context.coder.lookups[static_cast<size_t>(item_.head)] : nullptr;
}

void RebuildAttention::prepare(ptrdiff_t first, int32_t count) {
  prepared_ = first;
  const ptrdiff_t end = first + count;
  for (ptrdiff_t place = first; place < end;) {
    ptrdiff_t next = place + 1;
    const PageFormat* format = item_.page(place).format();
    if (has_commvq_keys(item_.page(place))) {
      if (lookup() == nullptr) {
        rebuild(place);
      } else {
        if (item_.has_regular_positions(place)) {
          while (next < end && item_.page(next).format() == format && item_.has_regular_positions(next)) ++next;
        }
        rebuild_by_lookup(place, static_cast<int32_t>(next - place));
      }
      for (ptrdiff_t i = place; i < next; ++i) {
        item_.context.rotations.fill(item_.page(i).first_position, rotation(i));
        item_.read_norms(i, norms(i));
      }
    }
    place = next;
  }
}

/// Rebuilds pages whose slots have the same rotations.
void RebuildAttention::rebuild_by_lookup(ptrdiff_t first, int32_t count) {
  const RotationTable& rotations = item_.context.rotations;
  const int16_t* fixed = rotations.fixed_slots();
  if (!item_.has_regular_positions(first)) {
    item_.fill_slot_rotations(first, work_.slot_rotations);
    rotations.to_fixed_point(work_.slot_rotations, work_.fixed);
    fixed = work_.fixed;
  }
  item_.commvq().lookup_keys(*lookup(), item_.shape(), item_.sides(first, Side::kKeys), item_.head, count, fixed,
                             plane(first));
}

/// Rebuilds the unit keys of a page as an FP16 plane, rotated to positions from 0.
void RebuildAttention::rebuild(ptrdiff_t place) {
  const CodebookShape& shape = item_.shape();
  const auto group = static_cast<size_t>(shape.keys.group);
  const auto padded = static_cast<size_t>(keys::padded(shape.keys.group));
  const auto dim = static_cast<size_t>(shape.head_dim);
  for (int32_t part = 0; part < shape.groups(); ++part) {
    item_.unpack_indices(place, part, work_.indices);
    item_.commvq().sum_centres(item_.context.coder.key_encoder(item_.head, part), work_.indices, work_.vectors);
    const float* from = work_.vectors;
    const size_t first = static_cast<size_t>(part) * group;
    for (size_t slot = 0; slot < kPageSlots; ++slot, from += 2 * padded) {
      float* row = work_.rows + slot * dim;
      if (shape.pairing == KVQ_ROPE_HALF) {
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
  const float* rotations = item_.context.rotations.slots();
  if (!item_.has_regular_positions(place)) {
    item_.fill_slot_rotations(place, work_.slot_rotations);
    rotations = work_.slot_rotations;
  }
  const auto* first_row = reinterpret_cast<const std::byte*>(work_.rows);
  const size_t stride = dim * sizeof(float);
  item_.kernels.append->store_keys({first_row, first_row, stride, stride, KVQ_F32, kPageSlots, shape.head_dim},
                                   *item_.batch.rope, rotations, 0, reinterpret_cast<uint16_t*>(plane(place)));
}

void RebuildAttention::score(ptrdiff_t first, int32_t count, int32_t row, int32_t rows, float* scores) {
  if (lookup() != nullptr) return score_by_lookup(first, count, row, rows, scores);
  const auto dim = static_cast<size_t>(item_.batch.head.keys);
  for (ptrdiff_t place = first; place < first + count; ++place, scores += kPageSlots) {
    std::copy_n(item_.query(row), static_cast<size_t>(rows) * dim, work_.unrotated);
    for (int32_t r = 0; r < rows; ++r) {
      undo_rope(*item_.batch.rope, rotation(place), work_.unrotated + static_cast<size_t>(r) * dim);
    }
    const auto* data = reinterpret_cast<const std::byte*>(plane(place));
    const SideData keys{data, data};
    item_.kernels.plain(CodeType::float16())
        .keys({item_.batch.head.keys, SideFormat{}.group, false}, &keys, 1, rows, {work_.unrotated, {}}, scores);
    for (int32_t r = 0; r < rows; ++r) {
      for (int32_t slot = 0; slot < kPageSlots; ++slot) {
        scores[r * kTileSlots + slot] *= from_float16(norms(place)[slot]);
      }
    }
  }
}

void RebuildAttention::score_by_lookup(ptrdiff_t first, int32_t count, int32_t row, int32_t rows, float* scores) const {
  std::array<LookupPage, kTilePages> pages;
  for (ptrdiff_t i = 0; i < count; ++i) {
    pages[static_cast<size_t>(i)] = {plane(first + i), rotation(first + i), norms(first + i)};
  }
  item_.commvq().lookup_scores(*lookup(), item_.shape(), pages.data(), count, rows, item_.query(row), scores);
}

}  // namespace kvq::cpu
