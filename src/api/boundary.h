#pragma once

#include "core/error.h"
#include "core/memory.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <new>
#include <span>
#include <string_view>

namespace kvq::api {

/// Fill the caller's error, up to the size that the caller was built with.
void report(kvq_error* error, kvq_status status, int32_t backend_code, const char* message) noexcept;

/// Translate the current exception into a status. Call inside a catch block.
kvq_status translate(kvq_error* error) noexcept;

/// Run the body of a public function; catches everything.
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

/// The same for a function that makes an object: `make` returns it as an Owned.
template <typename Handle, typename Make>
kvq_status created(Handle** result, kvq_error* error, const Make& make) noexcept {
  if (result != nullptr) *result = nullptr;
  return guarded(error, [&] { *result = make().release(); });
}

inline void require(const void* pointer, const char* argument) {
  if (pointer == nullptr) fail(KVQ_E_ARGUMENT, "%s is NULL", argument);
}

/// An entry of a list.
inline void require_entry(const void* pointer, const char* list, int32_t index) {
  if (pointer == nullptr) fail(KVQ_E_ARGUMENT, "%s[%d] is NULL", list, index);
}

inline void require_range(int64_t value, int64_t low, int64_t high, const char* argument) {
  if (value >= low && value <= high) return;
  if (low == high)
    fail(KVQ_E_ARGUMENT, "%s is %lld, must be %lld", argument, static_cast<long long>(value),
         static_cast<long long>(low));
  fail(KVQ_E_ARGUMENT, "%s is %lld, must be in [%lld, %lld]", argument, static_cast<long long>(value),
       static_cast<long long>(low), static_cast<long long>(high));
}

/// Throws KVQ_E_ARGUMENT unless every KV head has as many query heads.
inline void require_query_heads(int32_t q_heads, int32_t kv_heads, const char* argument) {
  require_range(q_heads, 1, 65536, argument);
  if (q_heads % kv_heads == 0) return;
  fail(KVQ_E_ARGUMENT, "%s is %d, must be a multiple of kv_heads, %d", argument, q_heads, kv_heads);
}

inline void require_within(double value, double low, double high, const char* argument) {
  if (value >= low && value <= high) return;
  fail(KVQ_E_ARGUMENT, "%s is %g, must be in [%g, %g]", argument, value, low, high);
}

/// A cost; `most`: infinity, if allowed. `index`: of an entry of a list.
inline void require_amount(double value, const char* argument, double most = std::numeric_limits<double>::max(),
                           int64_t index = -1) {
  if (value >= 0.0 && value <= most) return;
  char entry[24] = "";
  if (index >= 0) std::snprintf(entry, sizeof(entry), "[%lld]", static_cast<long long>(index));
  fail(KVQ_E_ARGUMENT, "%s%s is %g, must be %s and not negative", argument, entry, value,
       std::isinf(most) ? "a number" : "finite");
}

/// Refuse an object made in another context.
void require_context(const kvq_context& context, const auto& object, const char* argument) {
  if (&*object.context != &context) fail(KVQ_E_ARGUMENT, "%s belongs to another context", argument);
}

/// Write to the caller's buffer, or only return the size without one.
template <typename Write>
void hand_over(size_t needed, void* buffer, size_t capacity, size_t& size, const Write& write) {
  size = needed;
  if (buffer == nullptr) return;
  if (capacity < needed) fail(KVQ_E_BUFFER_SIZE, "capacity is %zu, must be at least %zu bytes", capacity, needed);
  write(std::span<std::byte>{static_cast<std::byte*>(buffer), needed});
}

/// The same for a text.
inline void hand_over(std::string_view text, void* buffer, size_t capacity, size_t& size) {
  hand_over(text.size(), buffer, capacity, size,
            [text](std::span<std::byte> bytes) { std::memcpy(bytes.data(), text.data(), text.size()); });
}

// Structs of callers built with another header. A struct grows only at its end, so both sides know the shorter one's
// bytes.

/// Bytes of a struct in the first release that declared it. A grown struct needs a specialization.
template <typename T>
inline constexpr size_t kFirstSize = sizeof(T);

/// Upper bound of structs in later releases; a larger size is uninitialized memory.
inline constexpr size_t kMostStructBytes = 4096;

/// Size that the caller gives its struct.
template <typename T>
size_t require_struct(const T* given, size_t least, const char* argument) {
  require(given, argument);
  uint32_t size = 0;
  std::memcpy(&size, given, sizeof(size));
  if (size >= least && size <= kMostStructBytes) return size;
  fail(KVQ_E_ARGUMENT, "%s->struct_size is %u, must be in [%zu, %zu]: set it to the size of the caller's struct",
       argument, size, least, kMostStructBytes);
}

/// The body of an init function: write no more than the caller's struct has room for.
template <typename T>
void init_struct(T* target, size_t size, T defaults) noexcept {
  if (target == nullptr || size < sizeof(uint32_t)) return;
  defaults.struct_size = static_cast<uint32_t>(std::min<size_t>(size, UINT32_MAX));
  std::memcpy(target, &defaults, std::min(size, sizeof(T)));
  if (size > sizeof(T)) std::memset(reinterpret_cast<std::byte*>(target) + sizeof(T), 0, size - sizeof(T));
}

/// Read the caller's options: fields that an older caller lacks keep their defaults, fields that a newer one sets and
/// this library does not know are refused.
template <typename T>
T read_struct(const T* given, T defaults, const char* argument) {
  const size_t size = require_struct(given, kFirstSize<T>, argument);
  const auto* bytes = reinterpret_cast<const std::byte*>(given);
  for (size_t i = sizeof(T); i < size; ++i) {
    if (bytes[i] == std::byte{0}) continue;
    fail(KVQ_E_UNSUPPORTED,
         "%s has %zu bytes, of which this library knows %zu, but byte %zu is not 0: it is too old for "
         "this option",
         argument, size, sizeof(T), i);
  }
  std::memcpy(&defaults, given, std::min(size, sizeof(T)));
  defaults.struct_size = sizeof(T);  // it may be passed on
  return defaults;
}

/// Read options that may be NULL.
template <typename T>
T read_optional_struct(const T* given, const T& defaults, const char* argument) {
  return given != nullptr ? read_struct(given, defaults, argument) : defaults;
}

/// The body of a describe function: write as much of `found` as the caller's struct has room for; its size stays.
template <typename T>
void write_struct(T* target, T found, const char* argument) {
  const size_t size = require_struct(target, sizeof(uint32_t), argument);
  init_struct(target, size, found);
}

/// A describe function; `describe` returns what there is to know of an object.
template <typename Handle, typename Info, typename Describe>
kvq_status described(const Handle* handle, const char* argument, Info* info, kvq_error* error,
                     const Describe& describe) noexcept {
  return guarded(error, [&] {
    require(handle, argument);
    write_struct(info, describe(*handle), "info");
  });
}

}  // namespace kvq::api
