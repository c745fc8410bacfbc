#pragma once

#include "core/memory.h"
#include "formats/codec.h"
#include "formats/integer/layout.h"

namespace kvq::integer {

inline Layout layout(Side side, const PageFormat& format) { return layout(side, format.side(side), format.head_dim); }

size_t bytes(Side side, const PageFormat& format);
void encode(const SideToEncode& side);
void decode(const EncodedSide& encoded, int32_t begin, int32_t n, float* out);
bool valid(Side side, const PageFormat& format, const std::byte* data);

inline constexpr CodecKind kKindsOfCodec[] = {
    {Kind::kInt8, "int8", 8}, {Kind::kInt4, "int4", 4}, {Kind::kInt3, "int3", 3}, {Kind::kInt2, "int2", 2}};
inline constexpr Codec kCodec = {.number = 1,
                                 .name = "int",
                                 .kinds = kKindsOfCodec,
                                 .takes_hadamard = true,
                                 .takes_groups = true,
                                 .bytes = bytes,
                                 .encode = encode,
                                 .decode = decode,
                                 .valid = valid};

}  // namespace kvq::integer
