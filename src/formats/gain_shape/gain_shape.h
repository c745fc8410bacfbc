#pragma once

#include "core/memory.h"
#include "formats/codec.h"
#include "formats/gain_shape/layout.h"

namespace kvq::gain_shape {

/// `format` has the trained centres if the side needs them.
SideLayout layout(Side side, const PageFormat& format);

size_t bytes(Side side, const PageFormat& format);
void encode(const SideToEncode& side);
void decode(const EncodedSide& encoded, int32_t begin, int32_t n, float* out);
bool valid(Side side, const PageFormat& format, const std::byte* data);
void check(const Trained& centres, const CacheShape& cache, const PageFormat& format);
std::shared_ptr<const Resident> make_resident(Allocator& allocator, Parallel& parallel,
                                              std::shared_ptr<const Trained> centres);
Owned<LayerContext> make_context(Allocator& allocator, const Resident& resident, int32_t layer,
                                 const PageFormat& format, const OptionValues& options, const RotationTable& rotations);

inline constexpr NamedCode kCodes[] = {
    {"gs4", CodeType::gain_scalar(4), 4},      {"gs3", CodeType::gain_scalar(3), 3, 1},
    {"gs2", CodeType::gain_scalar(2), 2, 1},   {"gs1", CodeType::gain_scalar(1), 1, 1},
    {"gt3", CodeType::gain_trellis(3), 19, 1}, {"gt2", CodeType::gain_trellis(2), 18, 1},
    {"gt1", CodeType::gain_trellis(1), 17, 1}};
inline constexpr Codec kCodec = {.number = 3,
                                 .name = "gain_shape",
                                 .codes = kCodes,
                                 .always_hadamard = true,
                                 .takes_centres = true,
                                 .trained_number = 4,
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

}  // namespace kvq::gain_shape
