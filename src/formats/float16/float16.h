#pragma once

#include "core/float16.h"
#include "formats/codec.h"
#include "formats/float16/layout.h"

namespace kvq::float16 {

/// Zero slots [begin, end) of a plane.
void clear_slots(Side side, int32_t head_dim, int32_t begin, int32_t end, std::byte* plane);

/// Write the channels of a slot to a plane. Decoded numbers may be larger than any that was stored: gains overshoot
/// along the axes of a Hadamard rotation.
void write_slot(Side side, int32_t head_dim, int32_t slot, const float* channels, std::byte* plane) noexcept;

/// Move slots of pages in FP16 to the front, in order: slots[i], counted from the first page, to slot first + i, which
/// is not behind it.
void compact(const PageFormat& format, std::span<std::byte* const> pages, std::span<const int32_t> slots,
             int32_t first) noexcept;

/// Read one token of a side that holds a single page: [head_dim].
void read_row(const SideToEncode& side, int32_t slot, float* row);

size_t bytes(Side side, const PageFormat& format);
void encode(const SideToEncode& side);
void decode(const EncodedSide& encoded, int32_t begin, int32_t n, float* out);
bool valid(Side side, const PageFormat& format, const std::byte* data);

inline constexpr NamedCode kCodes[] = {{"fp16", CodeType::float16(), 16}};
inline constexpr Codec kCodec = {
    .number = 0, .name = "fp16", .codes = kCodes, .bytes = bytes, .encode = encode, .decode = decode, .valid = valid};

}  // namespace kvq::float16
