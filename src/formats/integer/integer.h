// Meaning of the fields of an integer side.
//
// Asymmetric codes, KIVI's grouping: x̂ = code · scale + minimum. Keys share a scale per channel over the 32 tokens of
// the page (`[head_dim]`), values per token over `group` channels (`[groups][32]`).
#pragma once

#include "core/memory.h"
#include "formats/codec.h"
#include "formats/page_fields.h"

namespace kvq::integer {

inline SideLayout layout(Side side, const PageFormat& format) {
  return side_layout(side, format.side(side), format.head.of(side));
}

size_t bytes(Side side, const PageFormat& format);
void encode(const SideToEncode& side);
void decode(const EncodedSide& encoded, int32_t begin, int32_t n, float* out);
bool valid(Side side, const PageFormat& format, const std::byte* data);

inline constexpr NamedCode kCodes[] = {{"int8", CodeType::integer(8), 8},
                                       {"int4", CodeType::integer(4), 4},
                                       {"int3", CodeType::integer(3), 3},
                                       {"int2", CodeType::integer(2), 2}};
inline constexpr Codec kCodec = {.number = 1,
                                 .name = "int",
                                 .codes = kCodes,
                                 .takes_hadamard = true,
                                 .takes_groups = true,
                                 .bytes = bytes,
                                 .encode = encode,
                                 .decode = decode,
                                 .valid = valid};

}  // namespace kvq::integer
