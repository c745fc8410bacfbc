#include "backend/cpu/attend_codes.h"

#include "codebooks/key_kernels.h"
#include "codebooks/model_coder.h"
#include "core/float16.h"
#include "core/position_turns.h"
#include "formats/commvq/commvq.h"

#include <algorithm>

namespace kvq::cpu {
namespace {

/// More stages than bits of a key are refused when a cache is made.
constexpr int32_t kMaxStages = 256;

/// The same side of the pages of all heads; only that of the place's own head if the format spans no heads.
class Sides {
 public:
  Sides(const PagePlace& place, Side side) : place_(place), offset_(place.page().format()->offset(side)) {}

  const std::byte* operator[](int32_t head) const { return place_.lists[head][place_.index]->data + offset_; }

 private:
  const PagePlace& place_;
  size_t offset_;
};

void token_numbers(const commvq::TokenNumbers& layout, const Sides& sides, int32_t head, float (&out)[kPageSlots]) {
  for (int32_t slot = 0; slot < kPageSlots; ++slot) {
    const std::byte* side = sides[layout.share == kPageSlots ? head : slot / layout.share];
    out[slot] = from_float16(reinterpret_cast<const uint16_t*>(side + layout.offset)[slot % layout.share]);
  }
}

}  // namespace

const float* CodedAttention::slot_turns(const Page& page) {
  const PositionTurns& turns = batch_.codes->turns;
  if (page.positions == nullptr || !page.has_gaps()) return turns.slots();
  for (int32_t slot = 0; slot < kPageSlots; ++slot) {
    const int32_t offset = slot < page.count ? page.position(slot) - page.first_position : 0;
    turns.turn(offset, turns_.data() + static_cast<size_t>(slot) * batch_.rope->table_stride());
  }
  return turns_.data();
}

/// Unit keys of a page into plane_, rotated to positions from 0.
void CodedAttention::rebuild(const PagePlace& place) {
  const Page& page = place.page();
  const LayerCoder& coder = batch_.codes->coder;
  const CodebookShape& shape = coder.shape;
  const commvq::KeyLayout layout = commvq::key_layout(shape);
  const auto group = static_cast<size_t>(shape.keys.group);
  const auto padded = static_cast<size_t>(keys::padded(shape.keys.group));
  const auto dim = static_cast<size_t>(shape.head_dim);
  const bool half = shape.pairing == KVQ_ROPE_HALF;
  std::array<uint8_t, 2 * kPageSlots * kMaxStages> indices;
  for (int32_t part = 0; part < shape.groups(); ++part) {
    for (int32_t stage = 0; stage < shape.keys.stages; ++stage) {
      uint8_t fields[2 * kPageSlots];
      layout.unpack(page.data, part * shape.keys.stages + stage, fields);
      std::copy_n(fields, 2 * kPageSlots, indices.data() + static_cast<ptrdiff_t>(stage) * 2 * kPageSlots);
    }
    kernels_.sum_centres(coder.key_encoder(place.head, part), indices.data(), vectors_.data());
    const float* from = vectors_.data();
    const size_t first = static_cast<size_t>(part) * group;
    for (size_t slot = 0; slot < kPageSlots; ++slot, from += 2 * padded) {
      float* row = rows_.data() + slot * dim;
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
  const auto* first_row = reinterpret_cast<const std::byte*>(rows_.data());
  kernels_.append->store_keys({first_row, first_row, dim * sizeof(float), KVQ_F32, kPageSlots, shape.head_dim},
                              *batch_.rope, slot_turns(page), 0, plane_.data());
}

void CodedAttention::score(const PagePlace& place, int32_t rows, const float* q, float* scores) {
  rebuild(place);
  const auto dim = static_cast<size_t>(batch_.head_dim);
  batch_.codes->turns.turn(place.page().first_position, turn_.data());
  std::copy_n(q, static_cast<size_t>(rows) * dim, queries_.data());
  for (int32_t r = 0; r < rows; ++r) {
    turn_back(*batch_.rope, turn_.data(), queries_.data() + static_cast<size_t>(r) * dim);
  }
  const auto* plane = reinterpret_cast<const std::byte*>(plane_.data());
  kernels_.float16_keys({batch_.head_dim, SideFormat{}.group}, {plane, plane}, rows, queries_.data(), scores);
  float norms[kPageSlots];
  token_numbers(commvq::key_layout(batch_.codes->coder.shape).norms, Sides(place, Side::kKeys), place.head, norms);
  for (int32_t r = 0; r < rows; ++r) {
    for (int32_t slot = 0; slot < kPageSlots; ++slot) scores[r * kTileSlots + slot] *= norms[slot];
  }
}

void CodedAttention::add_values(const PagePlace& place, int32_t rows, const float* p, const BitSums& layout,
                                float* sums) {
  const CodebookShape& shape = batch_.codes->coder.shape;
  const commvq::ValueLayout where = commvq::value_layout(shape);
  const Sides sides(place, Side::kValues);
  float scales[kPageSlots];
  token_numbers(where.scales, sides, place.head, scales);
  float weights[kBlockRows * kPageSlots] = {};
  for (int32_t r = 0; r < rows; ++r) {
    float total = 0.0F;
    for (int32_t slot = 0; slot < kPageSlots; ++slot) {
      const float weight = p[r * kTileSlots + slot] * scales[slot];
      weights[r * kPageSlots + slot] = weight;
      total += weight;
    }
    sums[static_cast<size_t>(r) * layout.width() + layout.total()] += total;
  }
  if (shape.values.scope == Scope::kHead) {
    kernels_.sum_bits(reinterpret_cast<const uint32_t*>(sides[place.head]), where.lanes, rows, weights, sums,
                      layout.width());
    return;
  }
  for (int32_t head = 0; head < shape.kv_heads; ++head) {
    kernels_.sum_bits(reinterpret_cast<const uint32_t*>(sides[head]), where.lanes, rows, weights,
                      sums + static_cast<ptrdiff_t>(head) * where.lanes, layout.width());
  }
}

void add_decoded(const LayerCodes& codes, const KernelTable& kernels, int32_t head, const BitSums& layout,
                 const float* sums, float* out) {
  const CodebookShape& shape = codes.coder.shape;
  const bool of_layer = shape.values.scope == Scope::kLayer;
  const ValueCode code = value_code(shape, codes.coder.numbers, of_layer ? 0 : head);
  const auto width = static_cast<size_t>(code.width);
  const size_t first = of_layer ? static_cast<size_t>(head) * static_cast<size_t>(shape.head_dim) : 0;
  alignas(kDataAlignment) std::array<float, kMaxHeadDim> decoded{};
  for (int32_t channel = 0; channel < shape.head_dim; ++channel) {
    decoded[static_cast<size_t>(channel)] = sums[layout.total()] * code.offset[first + static_cast<size_t>(channel)];
  }
  // A row of C may end where its last channels are needed: nothing is read beyond them.
  const int32_t whole = shape.head_dim / 16 * 16;
  for (size_t bit = 0; bit < static_cast<size_t>(code.bits); ++bit) {
    const float* row = code.codes.data() + bit * width + first;
    kernels.blend(decoded.data(), 1.0F, row, sums[bit], whole);
    for (int32_t channel = whole; channel < shape.head_dim; ++channel) {
      decoded[static_cast<size_t>(channel)] += row[channel] * sums[bit];
    }
  }
  for (int32_t channel = 0; channel < shape.head_dim; ++channel) {
    out[channel] += decoded[static_cast<size_t>(channel)] * code.channel_scale[first + static_cast<size_t>(channel)];
  }
}

}  // namespace kvq::cpu
