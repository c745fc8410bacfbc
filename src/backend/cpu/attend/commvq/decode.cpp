#include "backend/cpu/attend/commvq/decode.h"

#include "core/float16.h"
#include "core/rotation_table.h"
#include "formats/commvq/commvq.h"
#include "formats/commvq/key_kernels.h"
#include "formats/commvq/model_coder.h"

#include <algorithm>

namespace kvq::cpu {
namespace {

constexpr int32_t kRowsAtOnce = 64;

}  // namespace

DecodeAttention::Work::Work(const AttendBatch& batch, MemoryCutter& memory) {
  const CodebookShape& shape = commvq::context_of(*batch.context).coder.shape;
  const auto dim = static_cast<size_t>(batch.head_dim);
  keys = memory.take<float>(kTileSlots * dim);
  values = memory.take<float>(static_cast<size_t>(kTileSlots * kMaxHeadDim));
  indices = memory.take<uint8_t>(2 * kPageSlots * static_cast<size_t>(shape.keys.stages));
  vectors = memory.take<float>(kPageSlots * keys::vector_floats(shape.keys.group));
  rotations = memory.take<float>(kPageSlots * dim);
  numbers = memory.take<uint16_t>(kPageSlots);
  bits = memory.take<float>(static_cast<size_t>(kBlockRows * kRowsAtOnce));
  products = memory.take<float>(static_cast<size_t>(kBlockRows * kMaxHeadDim));
}

void DecodeAttention::prepare(ptrdiff_t first, int32_t count) {
  prepared_ = first;
  for (ptrdiff_t place = first; place < first + count; ++place) {
    if (has_commvq_keys(item_.page(place))) decode_keys(place);
  }
  if (item_.context.values) decode_values(first, count);
}

/// norm · e^{i·position·θ} Σ_r (z[r][a_r] + i z[r][b_r])
void DecodeAttention::decode_keys(ptrdiff_t place) {
  const Page& page = item_.page(place);
  const Rope& rope = *item_.batch.rope;
  const int32_t group = item_.shape().keys.group;
  const size_t plane = static_cast<size_t>(keys::padded(group));
  item_.read_norms(place, work_.numbers);
  for (int32_t slot = 0; slot < kPageSlots; ++slot) {
    const int32_t position = slot < page.count ? page.position(slot) : page.first_position;
    item_.context.rotations.fill(position, work_.rotations + static_cast<size_t>(slot) * rope.table_stride());
  }
  for (int32_t part = 0; part < item_.shape().groups(); ++part) {
    item_.unpack_indices(place, part, work_.indices);
    item_.commvq().sum_centres(item_.context.coder.key_encoder(item_.head, part), work_.indices, work_.vectors);
    for (int32_t j = 0; j < group; ++j) {
      const int32_t pair = part * group + j;
      float* first = keys(place) + rope.first_channel(pair) * kPageSlots;
      float* second = keys(place) + rope.second_channel(pair) * kPageSlots;
      for (int32_t slot = 0; slot < kPageSlots; ++slot) {
        const float* sum = work_.vectors + static_cast<size_t>(slot) * 2 * plane + j;
        const float* rotation = work_.rotations + static_cast<size_t>(slot) * rope.table_stride() + pair;
        const float norm = from_float16(work_.numbers[slot]);
        const float c = rotation[0];
        const float s = rotation[rope.pairs()];
        first[slot] = norm * (sum[0] * c - sum[plane] * s);
        second[slot] = norm * (sum[0] * s + sum[plane] * c);
      }
    }
  }
}

/// channel_scale ∘ scale · (offset + s·C) for all coded values of a tile: a few rows of C at a time, which stay in L1.
void DecodeAttention::decode_values(ptrdiff_t first, int32_t count) {
  const CodebookShape& shape = item_.shape();
  const int32_t dim = shape.head_dim;
  const bool of_layer = shape.values.scope == Scope::kLayer;
  const ValueCode code = value_code(shape, item_.context.coder.numbers, of_layer ? 0 : item_.head);
  const size_t channel = of_layer ? static_cast<size_t>(item_.head * dim) : 0;
  for (ptrdiff_t slot = 0; slot < count * kPageSlots; ++slot) {
    std::copy_n(code.offset.data() + channel, dim, values(first) + slot * kMaxHeadDim);
  }
  for (int32_t bit = 0; bit < code.bits; bit += kRowsAtOnce) {
    const int32_t rows = std::min(kRowsAtOnce, code.bits - bit);
    const float* codes = code.codes.data() + static_cast<size_t>(bit) * static_cast<size_t>(code.width) + channel;
    for (ptrdiff_t place = first; place < first + count; ++place) {
      if (!has_commvq_values(item_.page(place))) continue;
      for (int32_t slot = 0; slot < kPageSlots; slot += kBlockRows) {
        spread_bits(place, slot, bit, rows);
        item_.commvq().multiply(codes, static_cast<size_t>(code.width), rows, dim, kBlockRows, work_.bits, kRowsAtOnce,
                                values(place) + slot * kMaxHeadDim);
      }
    }
  }
  const float* channel_scale = code.channel_scale.data() + channel;
  for (ptrdiff_t place = first; place < first + count; ++place) {
    if (!has_commvq_values(item_.page(place))) continue;
    item_.read_scales(place, work_.numbers);
    float* value = values(place);
    for (int32_t slot = 0; slot < kPageSlots; ++slot, value += kMaxHeadDim) {
      const float scale = from_float16(work_.numbers[slot]);
      for (int32_t c = 0; c < dim; ++c) value[c] *= channel_scale[c] * scale;
    }
  }
}

/// Expands bits [begin, begin + n) of four tokens' codes to zeros and ones.
void DecodeAttention::spread_bits(ptrdiff_t place, int32_t slot, int32_t begin, int32_t n) const {
  const bool of_layer = item_.shape().values.scope == Scope::kLayer;
  const int32_t lanes = commvq::value_layout(item_.shape()).lanes;
  const PageSides sides = item_.sides(place, Side::kValues);
  for (int32_t i = 0; i < n; ++i) {
    const int32_t bit = begin + i;
    const std::byte* side = sides.at(of_layer ? bit / lanes : item_.head, 0);
    const uint32_t word = reinterpret_cast<const uint32_t*>(side)[bit % lanes];
    for (int32_t t = 0; t < kBlockRows; ++t) {
      const uint32_t is_set = word >> static_cast<uint32_t>(8 * t + slot / kBlockRows) & 1U;
      work_.bits[t * kRowsAtOnce + i] = static_cast<float>(is_set);
    }
  }
}

void DecodeAttention::score(ptrdiff_t first, int32_t count, int32_t row, int32_t rows, float* scores) {
  const int32_t dim = item_.batch.head_dim;
  for (ptrdiff_t place = first; place < first + count; ++place, scores += kPageSlots) {
    std::fill_n(work_.products, kBlockRows * kMaxHeadDim, 0.0F);
    item_.commvq().multiply(keys(place), kPageSlots, dim, kPageSlots, rows, item_.query(row), static_cast<size_t>(dim),
                            work_.products);
    for (int32_t r = 0; r < rows; ++r) {
      std::copy_n(work_.products + r * kMaxHeadDim, kPageSlots, scores + r * kTileSlots);
    }
  }
}

void DecodeAttention::add_values(ptrdiff_t first, int32_t count, int32_t row, int32_t rows, const float* p) {
  const int32_t dim = item_.batch.head_dim;
  std::fill_n(work_.products, kBlockRows * kMaxHeadDim, 0.0F);
  item_.commvq().multiply(values(first), kMaxHeadDim, count * kPageSlots, dim, rows, p, kTileSlots, work_.products);
  for (int32_t r = 0; r < rows; ++r) {
    float* out = item_.plain + (row + r) * padded_dim(dim);
    for (int32_t c = 0; c < dim; ++c) out[c] += work_.products[r * kMaxHeadDim + c];
  }
}

}  // namespace kvq::cpu
