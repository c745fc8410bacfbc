#pragma once

#include "core/error.h"
#include "core/memory.h"

#include <cstdint>
#include <cstring>
#include <new>

namespace kvq::api {

/// Fill the caller's error, with a message that is readable whatever the caller's texts are; respects the size the
/// caller was built with.
void report(kvq_error* error, kvq_status status, int32_t backend_code, const char* message) noexcept;

/// Turn whatever is being handled into a status. Call inside a catch block.
kvq_status translate(kvq_error* error) noexcept;

/// Run the body of a public function: nothing thrown inside leaves it.
template <typename Body>
kvq_status guarded(kvq_error* error, const Body& body) noexcept {
  try {
    body();
    report(error, KVQ_OK, 0, "");
    return KVQ_OK;
  } catch (...) {
    return translate(error);
  }
}

inline void require(const void* pointer, const char* argument) {
  if (pointer == nullptr) fail(KVQ_E_ARGUMENT, "%s is NULL", argument);
}

/// Version 1 knows one size of each struct; later versions will accept the smaller, older ones too.
template <typename T>
void require_struct(const T* options, const char* argument) {
  require(options, argument);
  uint32_t size = 0;
  std::memcpy(&size, options, sizeof(size));
  if (size == sizeof(T)) return;
  fail(KVQ_E_ARGUMENT, "%s->struct_size is %u, this library knows %zu: call the struct's init function", argument, size,
       sizeof(T));
}

inline void require_range(int64_t value, int64_t low, int64_t high, const char* argument) {
  if (value >= low && value <= high) return;
  if (low == high)
    fail(KVQ_E_ARGUMENT, "%s is %lld, must be %lld", argument, static_cast<long long>(value),
         static_cast<long long>(low));
  fail(KVQ_E_ARGUMENT, "%s is %lld, must be in [%lld, %lld]", argument, static_cast<long long>(value),
       static_cast<long long>(low), static_cast<long long>(high));
}

}  // namespace kvq::api
