// Integer pages one number at a time: the arithmetic and the bytes that every instruction set's encoder must repeat.
#pragma once

#include "formats/page_format.h"

void scalar_encode(kvq::Side side, const kvq::SideFormat& format, int32_t head_dim, const std::byte* float16,
                   std::byte* out);
