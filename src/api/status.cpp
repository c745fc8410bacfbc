#include "api/boundary.h"
#include "core/text.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <stdexcept>

namespace kvq::api {

void report(kvq_error* error, kvq_status status, int32_t backend_code, const char* message) noexcept {
  constexpr size_t kTextOffset = offsetof(kvq_error, message);
  if (error == nullptr || error->struct_size <= kTextOffset) return;
  error->code = status;
  error->backend_code = backend_code;
  const size_t room = std::min<size_t>(error->struct_size - kTextOffset, sizeof(error->message));
  write_readable(message, std::span(error->message).first(room));
}

kvq_status translate(kvq_error* error) noexcept {
  try {
    throw;
  } catch (const Error& failure) {
    report(error, failure.status(), failure.backend_code(), failure.what());
    return failure.status();
  } catch (const std::length_error&) {
    report(error, KVQ_E_LIMIT, 0, "a list would be longer than addresses of this system allow");
    return KVQ_E_LIMIT;
  } catch (const std::bad_alloc&) {
    report(error, KVQ_E_MEMORY, 0, "the C++ runtime is out of memory");
    return KVQ_E_MEMORY;
  } catch (const std::exception& failure) {
    report(error, KVQ_E_INTERNAL, 0, failure.what());
    return KVQ_E_INTERNAL;
  } catch (...) {
    report(error, KVQ_E_INTERNAL, 0, "an exception of unknown type");
    return KVQ_E_INTERNAL;
  }
}

}  // namespace kvq::api

void kvq_error_init(kvq_error* error, size_t size) { kvq::api::init_struct(error, size, kvq_error{}); }

const char* kvq_status_name(kvq_status status) {
  constexpr auto kNames = std::to_array<const char*>(
      {"KVQ_OK", "KVQ_E_ARGUMENT", "KVQ_E_MEMORY", "KVQ_E_LIMIT", "KVQ_E_STATE", "KVQ_E_FORMAT", "KVQ_E_MISMATCH",
       "KVQ_E_UNSUPPORTED", "KVQ_E_BACKEND", "KVQ_E_INTERNAL", "KVQ_E_CANCELLED", "KVQ_E_BUFFER_SIZE"});  // by −status
  static_assert(kNames.size() == 1 - KVQ_E_BUFFER_SIZE);
  return status <= 0 && status >= KVQ_E_BUFFER_SIZE ? kNames[static_cast<size_t>(-status)] : "unknown status";
}

int32_t kvq_api_version(void) { return KVQ_API_VERSION; }

const char* kvq_version_string(void) { return KVQ_VERSION_STRING; }
