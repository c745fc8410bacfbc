#pragma once

#include "core/host_device.h"
#include "core/memory.h"
#include "kvq.h"

#include <span>

namespace kvq {

/// Position streams of M-RoPE: temporal, height, width.
inline constexpr int32_t kRopeStreams = 3;

/// Which stream's position turns a pair.
struct RopeSections {
  int32_t pairs[kRopeStreams]{};  // of each stream; zeros: all turn by the position of their token
  bool interleaved = false;

  bool any() const { return pairs[0] + pairs[1] + pairs[2] > 0; }
  KVQ_HOST_DEVICE int32_t stream_of(int32_t pair) const {
    if (interleaved) return pair < kRopeStreams * pairs[pair % kRopeStreams] ? pair % kRopeStreams : 0;
    if (pair < pairs[0]) return 0;
    return pair < pairs[0] + pairs[1] ? 1 : 2;
  }
};

/// Rotary position embedding: pair j of a head is multiplied by e^{i·position·inv_freq[j]}.
struct Rope {
  explicit Rope(Allocator& allocator) : inv_freq(allocator) {}

  kvq_rope pairing = KVQ_ROPE_NONE;
  int32_t begin = 0;       // first channel that is rotated
  int32_t rotary_dim = 0;  // channels that are rotated; 0 with KVQ_ROPE_NONE
  Vector<float> inv_freq;  // [rotary_dim / 2]
  RopeSections sections{};

  int32_t pairs() const { return rotary_dim / 2; }
  bool has_streams() const { return sections.any() && rotary_dim > 0; }
  int32_t first_channel(int32_t pair) const { return begin + (pairing == KVQ_ROPE_HALF ? pair : 2 * pair); }
  int32_t second_channel(int32_t pair) const {
    return begin + (pairing == KVQ_ROPE_HALF ? pair + rotary_dim / 2 : 2 * pair + 1);
  }

  /// Frequency of pair j: base^(−2j / rotary_dim).
  static float frequency(float base, int32_t rotary_dim, int32_t pair);

  /// Rope of a model. `rotary_dim` 0: `head_dim`; `frequencies` null: those of `base`.
  void set(kvq_rope rope, int32_t head_dim, int32_t rotary_dim, float base, const float* frequencies);

  /// Floats of one position in a table: cosines of all pairs, then sines.
  size_t table_stride() const { return static_cast<size_t>(rotary_dim); }

  /// Angles are formed in double: a float loses whole radians at long context.
  double angle(int32_t position, int32_t pair) const {
    return static_cast<double>(position) * static_cast<double>(inv_freq[static_cast<size_t>(pair)]);
  }

  /// Fill `[positions, {cos, sin}, pairs]`.
  void fill_table(std::span<const int32_t> positions, float* table) const;
  /// Fill one row by positions of all streams.
  void fill_streams(const int32_t (&positions)[kRopeStreams], float* row) const;

  /// Rotate one head `[head_dim]` in place with its position's table row.
  void rotate(const float* table_row, float* head) const {
    for (int32_t pair = 0; pair < pairs(); ++pair) {
      const float c = table_row[pair];
      const float s = table_row[pairs() + pair];
      float& x = head[first_channel(pair)];
      float& y = head[second_channel(pair)];
      const float rotated = x * c - y * s;
      y = x * s + y * c;
      x = rotated;
    }
  }

 private:
  template <typename PositionOf>
  void fill_row(const PositionOf& position_of, float* row) const;
};

}  // namespace kvq
