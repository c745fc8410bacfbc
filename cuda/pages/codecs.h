// What this backend knows of page formats.
#pragma once

#include "formats/page_format.h"
#include "kernels/pages/records.h"

namespace kvq::cuda {

/// Whether kernels encode and attend to pages of this format.
bool knows(const PageFormat& format);

/// A page's format as kernels know it. It is one that they know.
FormatCode format_code(const PageFormat& format);

/// Whether a side has codes of a codebook, which only kernels of their own write and read.
bool has_codes(const PageFormat& format);
/// The same page with halves where such codes are.
FormatCode without_codes(const PageFormat& format);
/// Where the values of a page with such codes begin, on the device as on the host.
inline int32_t coded_values_at(const PageFormat& format) { return static_cast<int32_t>(format.offset(Side::kValues)); }

/// Copy a page from the order of bytes that its format defines to the one on the device (kernels/pages/records.h).
void to_device_order(const PageFormat& format, const std::byte* host, std::byte* device);
/// And back.
void to_host_order(const PageFormat& format, const std::byte* device, std::byte* host);

}  // namespace kvq::cuda
