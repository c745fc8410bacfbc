// Damaged files, and the errors of reading them.
#pragma once

#include "core/error.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

namespace kvq_test {

using Bytes = std::vector<std::byte>;

// The file with `old` replaced by a text of the same length.
inline Bytes with(Bytes bytes, const std::string& old, const std::string& text) {
  REQUIRE(old.size() == text.size());
  const auto* begin = reinterpret_cast<const std::byte*>(old.data());
  const auto found = std::search(bytes.begin(), bytes.end(), begin, begin + old.size());
  REQUIRE(found != bytes.end());
  std::memcpy(&*found, text.data(), text.size());
  return bytes;
}

// The message that `read(bytes)` throws.
template <typename Read>
kvq_status status_of(const Read& read, const Bytes& bytes, std::string* message = nullptr) {
  try {
    read(bytes);
    return KVQ_OK;
  } catch (const kvq::Error& error) {
    if (message != nullptr) *message = error.what();
    return error.status();
  }
}

// Truncates a file at every byte and flips bits of every byte. `read` checks its result and throws KVQ_E_INTERNAL if it
// cannot be used.
template <typename Read>
void check_damaged(const Read& read, const Bytes& bytes) {
  for (size_t size = 0; size < bytes.size(); ++size) {
    REQUIRE(status_of(read, {bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size)}) == KVQ_E_FORMAT);
  }
  int refused = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    for (const int flip : {0x01, 0x02, 0x10, 0x80, 0xFF}) {
      Bytes damaged = bytes;
      damaged[i] ^= static_cast<std::byte>(flip);
      std::string message;
      const kvq_status status = status_of(read, damaged, &message);
      if (status == KVQ_OK) continue;
      const bool told = status == KVQ_E_FORMAT || status == KVQ_E_MISMATCH;
      CHECK_MESSAGE(told, message);
      ++refused;
    }
  }
  CHECK(refused > 1000);
}

// Wrong fields of a file, each with the reason for refusing it.
template <typename Read>
class WrongFields {
 public:
  WrongFields(Read read, Bytes bytes) : read_(read), bytes_(std::move(bytes)) {}

  void operator()(const std::string& old, const std::string& text, const char* reason,
                  kvq_status expected = KVQ_E_FORMAT) const {
    CAPTURE(text);
    std::string message;
    CHECK(status_of(read_, with(bytes_, old, text), &message) == expected);
    CHECK_MESSAGE(message.find(reason) != std::string::npos, message);
  }

 private:
  Read read_;
  Bytes bytes_;
};

}  // namespace kvq_test
