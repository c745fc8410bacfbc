// What this backend knows of page formats.
#pragma once

#include "formats/page_format.h"
#include "kernels/device_page.h"

namespace kvq::cuda {

/// Whether kernels encode and attend to pages of this format.
bool knows(const PageFormat& format);

/// A page's format as kernels know it. It is one that they know.
FormatCode format_code(const PageFormat& format);

/// Copy a page from the order of bytes that its format defines to the one on the device (kernels/device_page.h).
void to_device_order(const PageFormat& format, const std::byte* host, std::byte* device);
/// And back.
void to_host_order(const PageFormat& format, const std::byte* device, std::byte* host);

}  // namespace kvq::cuda
