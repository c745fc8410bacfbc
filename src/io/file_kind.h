// What a file holds.
#pragma once

#include "core/memory.h"
#include "kvq.h"

#include <cstddef>
#include <span>

namespace kvq::io {

/// KVQ_FILE_UNKNOWN for whatever the readers of this room would not begin to read.
kvq_file_kind file_kind(Allocator& allocator, std::span<const std::byte> bytes);

}  // namespace kvq::io
