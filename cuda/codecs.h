// What this backend knows of page formats.
#pragma once

#include "formats/page_format.h"
#include "kernels/device_page.h"

namespace kvq::cuda {

/// Whether kernels encode and attend to pages of this format.
bool knows(const PageFormat& format);

/// A page's format as kernels know it. It is one that they know.
FormatCode format_code(const PageFormat& format);

/// Copy a page from the order of bytes that its format defines to the one on the device, or back: it is the same
/// permutation (kernels/device_page.h).
void swap_order(const PageFormat& format, const std::byte* from, std::byte* to);

}  // namespace kvq::cuda
