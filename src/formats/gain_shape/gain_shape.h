#pragma once

#include "core/memory.h"
#include "formats/codec.h"
#include "formats/gain_shape/layout.h"

namespace kvq::gain_shape {

inline Layout layout(Side side, const PageFormat& format) { return layout(side, format.side(side), format.head_dim); }

size_t bytes(Side side, const PageFormat& format);
void encode(const SideToEncode& side);
void decode(const EncodedSide& encoded, int32_t begin, int32_t n, float* out);
bool valid(Side side, const PageFormat& format, const std::byte* data);

inline constexpr CodecKind kKindsOfCodec[] = {
    {"gs4", Kind::kGs4, 4},     {"gs3", Kind::kGs3, 3, 1},  {"gs2", Kind::kGs2, 2, 1}, {"gs1", Kind::kGs1, 1, 1},
    {"gt3", Kind::kGt3, 19, 1}, {"gt2", Kind::kGt2, 18, 1}, {"gt1", Kind::kGt1, 17, 1}};
inline constexpr Codec kCodec = {.number = 3,
                                 .name = "gain_shape",
                                 .kinds = kKindsOfCodec,
                                 .always_hadamard = true,
                                 .takes_page_mean = true,
                                 .alignment = 8,
                                 .page_alignment = 16,
                                 .bytes = bytes,
                                 .encode = encode,
                                 .decode = decode,
                                 .valid = valid};

}  // namespace kvq::gain_shape
