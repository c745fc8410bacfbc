#include "formats/gain_shape/context.h"

#include "formats/gain_shape/centre_rotations.h"
#include "formats/gain_shape/gain_shape.h"

#include <array>

namespace kvq::centred {
namespace {

Vector<CentreSearch> make_searches(Allocator& allocator, const ModelCentres& centres, Side side) {
  const CentresShape& shape = centres.shape;
  Vector<CentreSearch> searches(allocator);
  if (shape.centres(side) == 0) return searches;
  const size_t floats = static_cast<size_t>(shape.centres(side)) * static_cast<size_t>(shape.head_dim);
  searches.reserve(static_cast<size_t>(shape.n_layers * shape.kv_heads));
  for (const ModelCentres::Layer& layer : centres.layers) {
    const std::span<const float> numbers(layer.numbers->side(side));
    for (size_t head = 0; head < static_cast<size_t>(shape.kv_heads); ++head) {
      searches.emplace_back(allocator, numbers.subspan(head * floats, floats), shape.head_dim);
    }
  }
  return searches;
}

Vector<float> make_biases(Allocator& allocator, const Context& context, Side side, std::span<const float> squares) {
  Vector<float> biases(allocator);
  if (context.shape().centres(side) == 0) return biases;
  for (int32_t head = 0; head < context.shape().kv_heads; ++head) {
    const CentreSearch& search = context.search(side, head);
    biases.resize(biases.size() + static_cast<size_t>(search.padded_count()));
    search.fill_biases(squares, biases.data() + biases.size() - search.padded_count());
  }
  return biases;
}

}  // namespace

CentreSearches::CentreSearches(Allocator& allocator, std::shared_ptr<const ModelCentres> centres)
    : centres_(std::move(centres)),
      keys_(make_searches(allocator, *centres_, Side::kKeys)),
      values_(make_searches(allocator, *centres_, Side::kValues)) {}

Context::Context(Allocator& allocator, const CentreSearches& searches_, int32_t layer_, const RotationTable& rotations_)
    : LayerContext(gain_shape::kCodec),
      searches(searches_),
      layer(layer_),
      rotations(rotations_),
      page_rotations(allocator),
      page_columns(allocator),
      key_biases(allocator),
      own_biases(allocator),
      value_biases(allocator),
      page_step(allocator) {
  const Rope& rope = rotations.rope();
  Vector<float> squares(static_cast<size_t>(shape().head_dim), 1.0F, allocator);
  own_biases = make_biases(allocator, *this, Side::kKeys, squares);
  value_biases = make_biases(allocator, *this, Side::kValues, squares);
  for (int32_t pair = 0; pair < rope.pairs(); ++pair) {
    const double factor = factor_of(rope, pair);
    for (const int32_t channel : {rope.first_channel(pair), rope.second_channel(pair)}) {
      squares[static_cast<size_t>(channel)] = static_cast<float>(factor * factor);
    }
  }
  key_biases = make_biases(allocator, *this, Side::kKeys, squares);
  page_rotations.resize(kPageSlots * rope.table_stride());
  for (int32_t slot = 0; slot < kPageSlots; ++slot) {
    fill_page_rotation(rope, 0, slot, page_rotations.data() + static_cast<size_t>(slot) * rope.table_stride());
  }
  for (size_t i = 0; i < rope.table_stride(); ++i) {
    for (size_t slot = 0; slot < kPageSlots; ++slot)
      page_columns.push_back(page_rotations[slot * rope.table_stride() + i]);
  }
}

void Context::rotate_centres(Allocator& allocator) {
  if (shape().key_centres == 0) return;
  const Rope& rope = rotations.rope();
  const RotationOrder order(rope, shape().head_dim);
  rotated_centres.emplace(allocator, rope, order, searches.of(layer, Side::kKeys), page_rotations);
  std::array<float, kMaxHeadDim> step;
  rotations.fill(kPageSlots, step.data());
  page_step.resize(order.rotation_floats());
  order.put_rotation(step.data(), page_step.data());
}

}  // namespace kvq::centred
