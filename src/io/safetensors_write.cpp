#include "core/error.h"
#include "core/tensor.h"
#include "io/safetensors.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

namespace kvq::io {
namespace {

constexpr size_t kAlignment = 8;  // of the data, and so of every tensor, wide elements coming first

}  // namespace

SafetensorsWriter::SafetensorsWriter(Allocator& allocator)
    : text_(allocator),
      metadata_(StlAllocator<std::pair<String, String>>(allocator)),
      tensors_(StlAllocator<Tensor>(allocator)),
      header_(text_) {}

void SafetensorsWriter::add_metadata(std::string_view key, std::string_view value) {
  metadata_.emplace_back(String(key, text_), String(value, text_));
}

void SafetensorsWriter::add_tensor(std::string_view name, kvq_dtype dtype, const TensorShape& shape,
                                   std::span<const float> values) {
  tensors_.push_back({.name = String(name, text_), .dtype = dtype, .shape = shape, .values = values, .raw = {}});
}

void SafetensorsWriter::add_raw(std::string_view name, kvq_dtype dtype, const TensorShape& shape,
                                std::span<const std::byte> data) {
  tensors_.push_back({.name = String(name, text_), .dtype = dtype, .shape = shape, .values = {}, .raw = data});
}

void SafetensorsWriter::finish() {
  std::sort(tensors_.begin(), tensors_.end(), [](const Tensor& a, const Tensor& b) {
    const size_t a_bytes = element_bytes(a.dtype);
    const size_t b_bytes = element_bytes(b.dtype);
    return a_bytes != b_bytes ? a_bytes > b_bytes : a.name < b.name;
  });
  nlohmann::json document = nlohmann::json::object();
  for (const auto& [key, value] : metadata_) document["__metadata__"][std::string(key)] = std::string_view(value);
  size_t end = 0;
  for (const Tensor& tensor : tensors_) {
    const size_t begin = end;
    end += tensor.bytes();
    nlohmann::json shape = nlohmann::json::array();
    for (const int64_t size : tensor.shape.sizes()) shape.push_back(size);
    document[std::string(tensor.name)] = {
        {"dtype", dtype_name(tensor.dtype)}, {"shape", std::move(shape)}, {"data_offsets", {begin, end}}};
  }
  try {
    header_ = document.dump();
  } catch (const nlohmann::json::exception& error) {
    fail(KVQ_E_FORMAT, "safetensors: %.160s", error.what());
  }
  header_.append((kAlignment - header_.size() % kAlignment) % kAlignment, ' ');
  size_ = sizeof(uint64_t) + header_.size() + end;
}

void SafetensorsWriter::write(std::span<std::byte> out) const {
  const uint64_t length = header_.size();
  std::memcpy(out.data(), &length, sizeof(length));
  std::memcpy(out.data() + sizeof(length), header_.data(), header_.size());
  std::byte* at = out.data() + sizeof(length) + header_.size();
  for (const Tensor& tensor : tensors_) {
    constexpr size_t kStretch = size_t{1} << 30U;
    for (size_t begin = 0; begin < tensor.values.size(); begin += kStretch) {
      const size_t n = std::min(kStretch, tensor.values.size() - begin);
      write_floats(tensor.values.data() + begin, static_cast<int32_t>(n), at, tensor.dtype, begin);
    }
    std::copy(tensor.raw.begin(), tensor.raw.end(), at);
    at += tensor.bytes();
  }
}

}  // namespace kvq::io
