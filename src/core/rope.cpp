#include "core/rope.h"

#include <cmath>

namespace kvq {

float Rope::frequency(float base, int32_t rotary_dim, int32_t pair) {
  return static_cast<float>(std::pow(static_cast<double>(base), -2.0 * pair / rotary_dim));
}

void Rope::set(kvq_rope rope, int32_t head_dim, int32_t given_dim, float base, const float* frequencies) {
  pairing = rope;
  if (rope == KVQ_ROPE_NONE) return;
  rotary_dim = given_dim != 0 ? given_dim : head_dim;
  inv_freq.resize(static_cast<size_t>(pairs()));
  for (int32_t pair = 0; pair < pairs(); ++pair) {
    inv_freq[static_cast<size_t>(pair)] =
        frequencies != nullptr ? frequencies[pair] : frequency(base, rotary_dim, pair);
  }
}

template <typename PositionOf>
void Rope::fill_row(const PositionOf& position_of, float* row) const {
  for (int32_t pair = 0; pair < pairs(); ++pair) {
    const double rotation = angle(position_of(pair), pair);
    row[pair] = static_cast<float>(std::cos(rotation));
    row[pairs() + pair] = static_cast<float>(std::sin(rotation));
  }
}

void Rope::fill_table(std::span<const int32_t> positions, float* table) const {
  for (const int32_t position : positions) {
    fill_row([position](int32_t /*pair*/) { return position; }, table);
    table += table_stride();
  }
}

void Rope::fill_streams(const int32_t (&positions)[kRopeStreams], float* row) const {
  fill_row([&](int32_t pair) { return positions[sections.stream_of(pair)]; }, row);
}

}  // namespace kvq
