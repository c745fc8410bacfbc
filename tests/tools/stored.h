// Numbers as a checkpoint holds them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "llama/device.h"
#include "llama/safetensors.h"

inline constexpr kvq_dtype kDTypes[] = {KVQ_F32, KVQ_F16, KVQ_BF16};

inline std::string_view file_dtype(kvq_dtype dtype) {
  if (dtype == KVQ_F32) return "F32";
  return dtype == KVQ_F16 ? "F16" : "BF16";
}

/// Numbers at an odd address.
class Stored {
 public:
  Stored(kvq_dtype dtype, const std::vector<uint8_t>& bytes)
      : dtype_(dtype), bytes_(std::make_shared<std::vector<std::byte>>(bytes.size() + 1)) {
    std::ranges::copy(std::as_bytes(std::span(bytes)), bytes_->begin() + 1);
  }

  /// Random ones, of magnitudes from 1/4 to 1.
  static Stored random(kvq_dtype dtype, size_t n, uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<uint8_t> bytes;
    for (size_t i = 0; i < n; ++i) {
      const auto bits = static_cast<uint32_t>(random());
      const uint32_t sign = bits & 0x80000000U;
      uint32_t number = sign | 0x3E800000U | (bits & 0x00FFFFFFU);
      if (dtype == KVQ_F16) number = sign >> 16 | 0x3400U | (bits & 0x7FFU);
      if (dtype == KVQ_BF16) number >>= 16;
      for (int64_t byte = 0; byte < llama::bytes_of(dtype); ++byte) {
        bytes.push_back(static_cast<uint8_t>(number >> (8 * byte)));
      }
    }
    return {dtype, bytes};
  }

  const std::byte* data() const { return bytes_->data() + 1; }
  llama::StoredNumbers numbers() const { return {{bytes_, data()}, dtype_}; }
  /// As the reader of files has them, which is tested on its own.
  std::vector<float> floats() const {
    return llama::to_float({"w", file_dtype(dtype_), {}, std::span(*bytes_).subspan(1)});
  }

 private:
  kvq_dtype dtype_;
  std::shared_ptr<std::vector<std::byte>> bytes_;
};
