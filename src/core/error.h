#pragma once

#include "kvq.h"

#include <exception>

namespace kvq {

/// A failure inside the library. Contains its text, so that throwing allocates nothing for it, and becomes a kvq_status
/// at the C boundary (api/boundary.h).
class Error : public std::exception {
 public:
  Error(kvq_status status, int32_t backend_code, const char* message) noexcept;

  kvq_status status() const noexcept { return status_; }
  int32_t backend_code() const noexcept { return backend_code_; }
  const char* what() const noexcept override { return message_; }

 private:
  kvq_status status_;
  int32_t backend_code_;
  char message_[sizeof(kvq_error::message)];
};

/// Messages take what C99's printf takes, which GCC calls by another name where the system's own differs.
#if defined(__MINGW32__)
#define KVQ_PRINTF gnu_printf
#else
#define KVQ_PRINTF printf
#endif

/// Throw an Error with a printf-style message that names the argument and its value.
[[noreturn]] void fail(kvq_status status, const char* format, ...) __attribute__((format(KVQ_PRINTF, 2, 3)));

}  // namespace kvq
