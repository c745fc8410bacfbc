// Scales that balance the channels of a head, so that codes with one gain a token lose least (docs/numerics.md).
#pragma once

#include "core/memory.h"
#include "formats/head_shape.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvq {

/// Mean squares of a head's channels.
struct ChannelEnergies {
  ChannelEnergies(Allocator& allocator, size_t channels)
      : read(channels, 0.0, allocator), stored(channels, 0.0, allocator), offsets(channels, 0.0, allocator) {}

  size_t channels() const { return stored.size(); }
  void add(const ChannelEnergies& other);
  /// Both channels get the mean of their energies.
  void join(int32_t first, int32_t second);

  Vector<double> read;     // of what multiplies them: queries, or columns of the output projection; empty: not known
  Vector<double> stored;   // around their offsets
  Vector<double> offsets;  // what pages store of the offsets
};

/// The scales with the least noise, the largest 1. Where `read` is not known, uneven channels are made even and even
/// ones are left as they are. `powers_of_two`: rounded to such.
Vector<float> find_scales(Allocator& allocator, const ChannelEnergies& energies, bool powers_of_two);

/// Append to `numbers` what LayerScales::numbers begins with. `rounds_first`: as LayerScales::rounds_first().
void append_scales_header(Vector<float>& numbers, bool rounds_first);
/// Append one head's arrays in the order of ScaleArray. Without scales or offsets of a side, empty ones do nothing.
void append_head_scales(Vector<float>& numbers, std::span<const float> key_scales, std::span<const float> value_scales,
                        std::span<const float> value_offsets, const HeadShape& head);

/// Squared error of products with codes that spread it evenly over all channels, in proportion to all that is stored;
/// relative to the least that scales could reach without offsets. Empty `scales`: all 1.
double noise_of(const ChannelEnergies& energies, std::span<const float> scales);

/// Share of the energy of an offset that turns by `angle` a token, after the mean of a page has been subtracted.
double left_by_page_mean(double angle);

}  // namespace kvq
