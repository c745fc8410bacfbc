#pragma once

#include "formats/page_format.h"
#include "kernels/device_page.h"

namespace kvq::cuda {

/// A page's format as kernels know it.
FormatCode format_code(const PageFormat& format);

/// Copy a page from the order of bytes that its format defines to the one on the device, or back: it is the same
/// permutation (kernels/device_page.h).
void swap_order(const PageFormat& format, const std::byte* from, std::byte* to);

}  // namespace kvq::cuda
