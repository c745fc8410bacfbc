#include "backend/cpu/attend/gain_shape/centred.h"

#include "backend/cpu/attend/attend.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

namespace kvq::cpu {
namespace {

using centred::RotatedCentres;

bool has_centred_keys(const Page& page) { return page.format()->keys.has_trained_centres(); }

const centred::Context& context_of(const AttendBatch& batch) { return centred::context_of(*batch.context); }

/// Bytes of a plane of FP16 keys, or of the instruction set's own layout.
size_t plane_bytes(const AttendBatch& batch) {
  const size_t float16 = static_cast<size_t>(kPageSlots * batch.head.keys) * sizeof(uint16_t);
  if (!context_of(batch).rotated_centres.has_value()) return float16;
  return std::max(float16, centre_plane_numbers(context_of(batch).rotated_centres->order) * sizeof(int16_t));
}

size_t rotation_floats(const AttendBatch& batch) {
  const auto dim = static_cast<size_t>(batch.head.keys);
  return context_of(batch).rotated_centres.has_value()
             ? std::max(dim, context_of(batch).rotated_centres->order.rotation_floats())
             : dim;
}

float sum_of(const float* numbers, int32_t n) {
  constexpr int32_t kTogether = 16;
  std::array<float, kTogether> sums{};
  for (int32_t i = 0; i < n; i += kTogether) {
    for (size_t lane = 0; lane < kTogether; ++lane) sums[lane] += numbers[static_cast<size_t>(i) + lane];
  }
  return std::accumulate(sums.begin(), sums.end(), 0.0F);
}

}  // namespace

CentredAttention::Work::Work(const AttendBatch& batch, MemoryCutter& memory) {
  const auto dim = static_cast<size_t>(batch.head.keys);
  const bool keys = context_of(batch).rotated_centres.has_value();
  const size_t numbers = keys ? context_of(batch).rotated_centres->order.numbers() : 0;
  planes = memory.take<std::byte>((kTilePages + 1) * plane_bytes(batch));
  rotations = memory.take<float>(kTilePages * rotation_floats(batch));
  row = memory.take<float>(dim);
  centres = memory.take<float>(kPageSlots * dim);
  slot_rotations = memory.take<float>(kPageSlots * dim);
  unrotated = memory.take<float>(kBlockRows * dim);
  scores = memory.take<float>(static_cast<size_t>(kBlockRows * kTileSlots));
  queries = memory.take<float>(kItemRows * numbers);
  units = memory.take<float>(kItemRows);
  rows = memory.take<OneCentreRow>(kItemRows);
}

CentredAttention::CentredAttention(const ContextItem& item, const Work& work)
    : item_(item), context_(context_of(item.batch)), kernels_(item.kernels.centres), work_(work) {
  if (!context_.rotated_centres.has_value() || kernels_.next_rotation == nullptr) return;
  if (one_centre()) {
    multiply_queries();
  } else {
    order_queries();
  }
}

size_t CentredAttention::sum_floats(const centred::Context& context) {
  constexpr int32_t kBlock = 16;
  return static_cast<size_t>((context.shape().value_centres + kBlock - 1) / kBlock * kBlock);
}

std::byte* CentredAttention::plane(ptrdiff_t place) const {
  const ptrdiff_t index = read_at_once() && is_fast(place) ? kTilePages : place - prepared_;
  return work_.planes + static_cast<size_t>(index) * plane_bytes(item_.batch);
}

float* CentredAttention::rotation(ptrdiff_t place) const {
  return work_.rotations + static_cast<size_t>(place - prepared_) * rotation_floats(item_.batch);
}

bool CentredAttention::is_fast(ptrdiff_t place) const {
  const Page& page = item_.page(place);
  const SideLayout where = context_.layout(Side::kKeys, *page.format());
  return kernels_.next_rotation != nullptr &&
         *reinterpret_cast<const uint16_t*>(page.data + where.slot_rotation_offset()) == 0;
}

/// Arranges the queries for add_scores.
void CentredAttention::order_queries() {
  const int32_t dim = item_.batch.head.keys;
  for (int32_t r = 0; r < item_.rows; ++r) {
    float* to = work_.queries + static_cast<size_t>(r) * order().numbers();
    const float* q = item_.query(r);
    const float norm = std::sqrt(std::inner_product(q, q + dim, q, 0.0F));
    const float factor = norm > 0.0F ? RotatedCentres::kNorm / norm : 0.0F;
    order().put_floats(*item_.batch.rope, q, to);
    for (size_t i = 0; i < order().numbers(); ++i) to[i] *= factor;
    work_.units[r] = norm / RotatedCentres::kNorm * centres().units[static_cast<size_t>(item_.head)];
  }
}

/// Multiplies the queries by the only centre, for add_one_centre.
void CentredAttention::multiply_queries() {
  constexpr float kRotationUnit = 32767.0F;
  const Rope& rope = *item_.batch.rope;
  const int32_t dim = item_.batch.head.keys;
  const float* centre = context_.centre(Side::kKeys, item_.head, 0);
  std::array<float, kMaxTrainedDim> products;  // a row of a Rope table
  for (int32_t r = 0; r < item_.rows; ++r) {
    const float* q = item_.query(r);
    float size = 0.0F;
    for (int32_t pair = 0; pair < rope.pairs(); ++pair) {
      const int32_t first = rope.first_channel(pair);
      const int32_t second = rope.second_channel(pair);
      const float re = q[first] * centre[first] + q[second] * centre[second];
      const float im = q[first] * centre[second] - q[second] * centre[first];
      if (pair < order().slot_pairs) size += std::abs(re) + std::abs(im);
      const float c = centres().middle[static_cast<size_t>(pair)];
      const float s = centres().middle[static_cast<size_t>(rope.pairs() + pair)];
      products[static_cast<size_t>(pair)] = re * c - im * s;
      products[static_cast<size_t>(rope.pairs() + pair)] = re * s + im * c;
    }
    const float factor = size > 0.0F ? RotatedCentres::kNorm / size : 0.0F;
    for (int32_t pair = 0; pair < order().slot_pairs; ++pair) {
      products[static_cast<size_t>(pair)] *= factor;
      products[static_cast<size_t>(rope.pairs() + pair)] *= factor;
    }
    float* weights = work_.queries + static_cast<size_t>(r) * order().numbers();
    order().put_rotation(products.data(), weights);
    work_.rows[r] = {.weights = weights,
                     .unit = size / (RotatedCentres::kNorm * kRotationUnit),
                     .rest = std::inner_product(q + rope.rotary_dim, q + dim, centre + rope.rotary_dim, 0.0F)};
  }
}

void CentredAttention::prepare(ptrdiff_t first, int32_t count) {
  prepared_ = first;
  for (ptrdiff_t place = first; place < first + count; ++place) {
    if (!has_centred_keys(item_.page(place))) continue;
    if (is_fast(place)) {
      rotate_to(place);
      if (!read_at_once()) put_centres(place);
    } else {
      context_.rotations.fill(item_.page(place).first_position, rotation(place));
      put_float16(place);
    }
  }
}

/// Advances the previous page's rotation if there is one.
void CentredAttention::rotate_to(ptrdiff_t place) {
  const int32_t position = item_.page(place).first_position;
  const bool follows = place > prepared_ && has_centred_keys(item_.page(place - 1)) && is_fast(place - 1) &&
                       item_.page(place - 1).first_position + kPageSlots == position;
  if (follows) return kernels_.next_rotation(order(), rotation(place - 1), context_.page_step.data(), rotation(place));
  context_.rotations.fill(position, work_.row);
  order().put_rotation(work_.row, rotation(place));
}

void CentredAttention::put_centres(ptrdiff_t place) {
  if (one_centre()) return;
  const Page& page = item_.page(place);
  const SideLayout where = context_.layout(Side::kKeys, *page.format());
  kernels_.put_centres(centres(), item_.head, reinterpret_cast<const uint8_t*>(page.data + where.index_offset()),
                       reinterpret_cast<int16_t*>(plane(place)));
}

/// Writes a page's centres as FP16 keys, rotated as if it began at position 0.
void CentredAttention::put_float16(ptrdiff_t place) {
  const Page& page = item_.page(place);
  const SideLayout where = context_.layout(Side::kKeys, *page.format());
  const auto dim = static_cast<size_t>(item_.batch.head.keys);
  const auto* indices = reinterpret_cast<const uint8_t*>(page.data + where.index_offset());
  for (size_t slot = 0; slot < kPageSlots; ++slot) {
    const int32_t index = where.has_indices ? indices[slot] : 0;
    std::copy_n(context_.centre(Side::kKeys, item_.head, index), dim, work_.centres + slot * dim);
  }
  const float* rotations = context_.page_rotations.data();
  if (*reinterpret_cast<const uint16_t*>(page.data + where.slot_rotation_offset()) != 0) {
    for (int32_t slot = 0; slot < kPageSlots; ++slot) {
      const int32_t offset = slot < page.count ? page.position(slot) - page.first_position : 0;
      context_.rotations.fill(offset,
                              work_.slot_rotations + static_cast<size_t>(slot) * item_.batch.rope->table_stride());
    }
    rotations = work_.slot_rotations;
  }
  const auto* rows = reinterpret_cast<const std::byte*>(work_.centres);
  const size_t stride = dim * sizeof(float);
  item_.kernels.append->store_keys({rows, rows, stride, stride, KVQ_F32, kPageSlots, item_.batch.head.keys},
                                   *item_.batch.rope, rotations, 0, reinterpret_cast<uint16_t*>(plane(place)));
}

void CentredAttention::score(ptrdiff_t first, int32_t count, int32_t row, int32_t rows, float* scores) {
  const int32_t dim = item_.batch.head.keys;
  for (ptrdiff_t place = first; place < first + count; ++place, scores += kPageSlots) {
    const Page& page = item_.page(place);
    const SideFormat& format = page.format()->keys;
    const SideData keys{page.data, item_.later(place).data};
    item_.kernels.plain(format.code).keys({dim, format.group, false}, &keys, 1, rows, item_.rotated_rows(row), scores);
    add_centre_scores(place, row, rows, scores);
  }
}

void CentredAttention::add_centre_scores(ptrdiff_t place, int32_t row, int32_t rows, float* scores) {
  if (!is_fast(place)) return add_float16_scores(place, row, rows, scores);
  if (one_centre()) return kernels_.add_one_centre(centres(), rotation(place), rows, work_.rows + row, scores);
  if (read_at_once()) put_centres(place);
  kernels_.add_scores(order(), reinterpret_cast<const int16_t*>(plane(place)), rotation(place), rows,
                      work_.queries + static_cast<size_t>(row) * order().numbers(), work_.units + row, scores);
}

void CentredAttention::add_float16_scores(ptrdiff_t place, int32_t row, int32_t rows, float* scores) {
  const auto dim = static_cast<size_t>(item_.batch.head.keys);
  std::copy_n(item_.query(row), static_cast<size_t>(rows) * dim, work_.unrotated);
  for (int32_t r = 0; r < rows; ++r) {
    undo_rope(*item_.batch.rope, rotation(place), work_.unrotated + static_cast<size_t>(r) * dim);
  }
  const SideData data{plane(place), plane(place)};
  item_.kernels.plain(CodeType::float16())
      .keys({item_.batch.head.keys, SideFormat{}.group, false}, &data, 1, rows, {work_.unrotated, {}}, work_.scores);
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
  const int32_t dim = item_.batch.head.keys;
  item_.kernels.plain(format.values.code)
      .values({dim, format.values.group, false}, sides.data(), count, rows, p, item_.rotated + row * padded_dim(dim));
  add_masses(first, count, row, rows, p);
}

void CentredAttention::add_masses(ptrdiff_t first, int32_t count, int32_t row, int32_t rows, const float* p) const {
  const PageFormat& format = *item_.page(first).format();
  const SideLayout where = context_.layout(Side::kValues, format);
  const size_t width = sum_floats(context_);
  float* sums = item_.sums + static_cast<size_t>(row) * width;
  if (!where.has_indices) {
    for (int32_t r = 0; r < rows; ++r, p += kTileSlots, sums += width) *sums += sum_of(p, count * kPageSlots);
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
