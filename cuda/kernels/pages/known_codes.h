// Code types that kernels encode and attend to, beside CommVQ; contexts refuse others.
#pragma once

#include "formats/side_format.h"

namespace kvq::cuda {

// In the order in which attention compiles their loops and tests a page's code.
inline constexpr CodeType kPlainCodes[] = {CodeType::integer(4), CodeType::integer(2), CodeType::integer(8),
                                           CodeType::integer(3), CodeType::float16()};
inline constexpr CodeType kGainCodes[] = {
    CodeType::gain_scalar(2), CodeType::gain_scalar(4),  CodeType::gain_scalar(1), CodeType::gain_trellis(2),
    CodeType::gain_scalar(3), CodeType::gain_trellis(3), CodeType::gain_trellis(1)};

}  // namespace kvq::cuda
