#pragma once

#include "core/error.h"
#include "io/safetensors.h"

#include <cstddef>

namespace kvq::api {

/// Write a file to the caller's buffer, or only tell its size if there is none.
inline void hand_over(const io::SafetensorsWriter& file, void* buffer, size_t capacity, size_t& size) {
  size = file.size();
  if (buffer == nullptr) return;
  if (capacity < size) fail(KVQ_E_ARGUMENT, "capacity is %zu, the file needs %zu bytes", capacity, size);
  file.write({static_cast<std::byte*>(buffer), size});
}

}  // namespace kvq::api
