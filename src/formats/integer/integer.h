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
    {"int8", Kind::kInt8, 8}, {"int4", Kind::kInt4, 4}, {"int3", Kind::kInt3, 3}, {"int2", Kind::kInt2, 2}};
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
