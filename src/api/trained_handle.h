// What handles of everything trained have in common.
#pragma once

#include "api/boundary.h"
#include "api/handles.h"
#include "io/safetensors.h"

#include <cstddef>
#include <span>

namespace kvq::api {

/// The same for a file.
inline void hand_over(const io::SafetensorsWriter& file, void* buffer, size_t capacity, size_t& size) {
  hand_over(file.size(), buffer, capacity, size, [&](std::span<std::byte> bytes) { file.write(bytes); });
}

/// A handle of what `read` finds in a file.
template <typename Handle, typename Data>
kvq_status load_trained(kvq_context* context, const void* buffer, size_t size, Handle** result, kvq_error* error,
                        Data (*read)(Allocator&, std::span<const std::byte>)) {
  if (result != nullptr) *result = nullptr;
  return guarded(error, [&] {
    require(context, "context");
    require(buffer, "buffer");
    require(result, "result");
    Allocator& allocator = context->allocator;
    auto data = std::allocate_shared<const Data>(StlAllocator<Data>(allocator),
                                                 read(allocator, {static_cast<const std::byte*>(buffer), size}));
    *result = make_owned<Handle>(allocator, *context, std::move(data)).release();
  });
}

/// `write`: makes the file.
template <typename Handle, typename Data>
kvq_status save_trained(const Handle* handle, const char* argument, void* buffer, size_t capacity, size_t* size,
                        kvq_error* error, io::SafetensorsWriter (*write)(Allocator&, const Data&)) {
  return guarded(error, [&] {
    require(handle, argument);
    require(size, "size");
    hand_over(write(handle->context->allocator, *handle->shared), buffer, capacity, *size);
  });
}

}  // namespace kvq::api
