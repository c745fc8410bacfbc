#include "core/error.h"

#include <cstdarg>
#include <cstdio>

namespace kvq {

Error::Error(kvq_status status, int32_t backend_code, const char* message) noexcept
    : status_(status), backend_code_(backend_code) {
  std::snprintf(message_, sizeof(message_), "%s", message);
}

void fail(kvq_status status, const char* format, ...) {
  char message[sizeof(kvq_error::message)];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(message, sizeof(message), format, arguments);
  va_end(arguments);
  throw Error(status, 0, message);
}

}  // namespace kvq
