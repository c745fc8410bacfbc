// Gain–shape pages around trained centres: the codes of the plain kinds for what is left of a vector after the nearest
// centre of its head.
#pragma once

#include "formats/codec.h"

namespace kvq::centred {

size_t bytes(Side side, const PageFormat& format);
void encode(const SideToEncode& side);
void decode(const EncodedSide& encoded, int32_t begin, int32_t n, float* out);
bool valid(Side side, const PageFormat& format, const std::byte* data);
void check(const Trained& centres, const CacheShape& cache, const PageFormat& format);
std::shared_ptr<const Resident> make_resident(Allocator& allocator, Parallel& parallel,
                                              std::shared_ptr<const Trained> centres);
Owned<LayerContext> make_context(Allocator& allocator, const Resident& resident, int32_t layer,
                                 const PageFormat& format, const OptionValues& options, const PositionTurns& turns);

inline constexpr CodecKind kKindsOfCodec[] = {
    {"gs4+centres", Kind::kGs4Centres, 4},     {"gs3+centres", Kind::kGs3Centres, 3, 1},
    {"gs2+centres", Kind::kGs2Centres, 2, 1},  {"gs1+centres", Kind::kGs1Centres, 1, 1},
    {"gt3+centres", Kind::kGt3Centres, 19, 1}, {"gt2+centres", Kind::kGt2Centres, 18, 1},
    {"gt1+centres", Kind::kGt1Centres, 17, 1}};
inline constexpr Codec kCodec = {.number = 4,
                                 .name = "centred",
                                 .kinds = kKindsOfCodec,
                                 .always_hadamard = true,
                                 .alignment = 8,
                                 .page_alignment = 16,
                                 .bytes = bytes,
                                 .encode = encode,
                                 .decode = decode,
                                 .valid = valid,
                                 .trained_as = "centres",
                                 .check = check,
                                 .make_resident = make_resident,
                                 .make_context = make_context,
                                 .one_context = true};

}  // namespace kvq::centred
