// What handles of everything trained have in common.
#pragma once

#include "api/boundary.h"
#include "api/handles.h"
#include "io/safetensors.h"

#include <cstddef>
#include <span>

namespace kvq::api {

/// Write a file to the caller's buffer, or only tell its size if there is none.
inline void hand_over(const io::SafetensorsWriter& file, void* buffer, size_t capacity, size_t& size) {
  size = file.size();
  if (buffer == nullptr) return;
  if (capacity < size) fail(KVQ_E_ARGUMENT, "capacity is %zu, the file needs %zu bytes", capacity, size);
  file.write({static_cast<std::byte*>(buffer), size});
}

/// A handle of what `read` finds in a file.
template <typename Handle, typename Data>
kvq_status load_trained(kvq_context* context, const void* buffer, size_t size, Handle** out, kvq_error* error,
                        Data (*read)(Allocator&, std::span<const std::byte>)) {
  if (out != nullptr) *out = nullptr;
  return guarded(error, [&] {
    require(context, "context");
    require(buffer, "buffer");
    require(out, "out");
    Allocator& allocator = context->allocator;
    auto data = std::allocate_shared<const Data>(StlAllocator<Data>(allocator),
                                                 read(allocator, {static_cast<const std::byte*>(buffer), size}));
    *out = make_owned<Handle>(allocator, allocator, std::move(data)).release();
  });
}

/// `write`: makes the file.
template <typename Handle, typename Data>
kvq_status save_trained(const Handle* handle, const char* argument, void* buffer, size_t capacity, size_t* size,
                        kvq_error* error, io::SafetensorsWriter (*write)(Allocator&, const Data&)) {
  return guarded(error, [&] {
    require(handle, argument);
    require(size, "size");
    hand_over(write(handle->allocator, *handle->shared), buffer, capacity, *size);
  });
}

}  // namespace kvq::api
