// Safetensors files built by hand.
#pragma once

#include "support/float_formats.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace kvq_test {

// As in metadata, without leading zeros.
inline std::string hexadecimal(uint64_t number) {
  std::string text;
  do {
    text.insert(text.begin(), "0123456789abcdef"[number % 16]);
    number /= 16;
  } while (number != 0);
  return text;
}

class SafetensorsText {
 public:
  void add_metadata(const std::string& name, const std::string& value) {
    metadata_ += (metadata_.empty() ? "\"" : ",\"") + name + "\":\"" + value + "\"";
  }

  void add_tensor(const std::string& name, const std::vector<int32_t>& shape, const std::vector<float>& numbers,
                  bool halves) {
    const size_t begin = data_.size();
    data_.resize(begin + numbers.size() * (halves ? 2 : 4));
    for (size_t i = 0; i < numbers.size(); ++i) {
      const uint16_t half = encode_bits(numbers[i], kHalf);
      if (halves) std::memcpy(data_.data() + begin + 2 * i, &half, 2);
      if (!halves) std::memcpy(data_.data() + begin + 4 * i, &numbers[i], 4);
    }
    std::string lengths;
    for (const int32_t length : shape) lengths += (lengths.empty() ? "" : ",") + std::to_string(length);
    tensors_ += ",\"" + name + "\":{\"dtype\":\"" + (halves ? "F16" : "F32") + "\",\"shape\":[" + lengths +
                "],\"data_offsets\":[" + std::to_string(begin) + "," + std::to_string(data_.size()) + "]}";
  }

  std::vector<std::byte> file() const {
    const std::string header = "{\"__metadata__\":{" + metadata_ + "}" + tensors_ + "}";
    const uint64_t length = header.size();
    std::vector<std::byte> bytes(sizeof(length) + header.size());
    std::memcpy(bytes.data(), &length, sizeof(length));
    std::memcpy(bytes.data() + sizeof(length), header.data(), header.size());
    bytes.insert(bytes.end(), data_.begin(), data_.end());
    return bytes;
  }

 private:
  std::string metadata_;
  std::string tensors_;
  std::vector<std::byte> data_;
};

}  // namespace kvq_test
