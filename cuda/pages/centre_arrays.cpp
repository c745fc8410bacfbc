#include "pages/centre_arrays.h"

#include "formats/gain_shape/centre_search.h"
#include "formats/gain_shape/centre_turns.h"

#include <algorithm>
#include <array>
#include <span>

namespace kvq::cuda {
namespace {

using centred::CentreSearch;

/// Calls `use` with the centres of each head, [centres][head_dim].
template <typename Use>
void for_each_head(const ModelCentres& centres, int32_t layer, Side side, const Use& use) {
  const CentresShape& shape = centres.shape;
  const size_t floats = static_cast<size_t>(shape.centres(side)) * static_cast<size_t>(shape.head_dim);
  if (floats == 0) return;
  const std::span<const float> numbers(centres.layers[static_cast<size_t>(layer)].numbers->side(side));
  for (size_t head = 0; head < static_cast<size_t>(shape.kv_heads); ++head) {
    use(numbers.subspan(head * floats, floats));
  }
}

void append_biases(const CentreSearch& search, std::span<const float> squares, Vector<float>& out) {
  const auto padded = static_cast<size_t>(search.padded_count());
  out.resize(out.size() + padded);
  search.fill_biases(squares, out.data() + out.size() - padded);
}

}  // namespace

SideArrays::SideArrays(Allocator& allocator, const ModelCentres& centres, int32_t layer, Side side)
    : floats(StlAllocator<float>(allocator)),
      rounded(StlAllocator<int8_t>(allocator)),
      means(StlAllocator<float>(allocator)),
      scales(StlAllocator<float>(allocator)),
      biases(StlAllocator<float>(allocator)) {
  const int32_t dim = centres.shape.head_dim;
  const Vector<float> ones(static_cast<size_t>(dim), 1.0F, StlAllocator<float>(allocator));
  for_each_head(centres, layer, side, [&](std::span<const float> numbers) {
    const CentreSearch search(allocator, numbers, dim);
    floats.insert(floats.end(), numbers.begin(), numbers.end());
    rounded.insert(rounded.end(), search.rounded.begin(), search.rounded.end());
    means.insert(means.end(), search.mean.begin(), search.mean.end());
    scales.push_back(search.scale);
    append_biases(search, ones, biases);
    padded = search.padded_count();
  });
}

TurnArrays::TurnArrays(Allocator& allocator, const ModelCentres& centres, int32_t layer, const Rope& rope)
    : page_turns(kPageSlots * rope.table_stride(), 0.0F, StlAllocator<float>(allocator)),
      biases(StlAllocator<float>(allocator)) {
  for (int32_t slot = 0; slot < kPageSlots; ++slot) {
    centred::fill_page_turn(rope, 0, slot, page_turns.data() + static_cast<size_t>(slot) * rope.table_stride());
  }
  const int32_t dim = centres.shape.head_dim;
  Vector<float> squares(static_cast<size_t>(dim), 1.0F, StlAllocator<float>(allocator));
  for (int32_t pair = 0; pair < rope.pairs(); ++pair) {
    const double factor = centred::factor_of(rope, pair);
    for (const int32_t channel : {rope.first_channel(pair), rope.second_channel(pair)}) {
      squares[static_cast<size_t>(channel)] = static_cast<float>(factor * factor);
    }
  }
  for_each_head(centres, layer, Side::kKeys, [&](std::span<const float> numbers) {
    append_biases(CentreSearch(allocator, numbers, dim), squares, biases);
  });
}

}  // namespace kvq::cuda
