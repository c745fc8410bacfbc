#include "core/error.h"
#include "core/tensor.h"
#include "core/text.h"
#include "io/metadata_fields.h"
#include "io/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace kvq::io {
namespace {

constexpr size_t kAlignment = 8;  // of the data, and so of every tensor, since wide elements come first

void append_string(std::string_view text, String& json) {
  constexpr char kDigits[] = "0123456789abcdef";
  constexpr std::string_view kEscaped = "\"\\\b\f\n\r\t";
  constexpr std::string_view kLetters = "\"\\bfnrt";
  if (!is_utf8(text)) fail(KVQ_E_FORMAT, "safetensors: '%s' is not UTF-8", Quoted(text).c_str());
  json += '"';
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    if (const size_t i = kEscaped.find(c); i != std::string_view::npos) {
      json += '\\';
      json += kLetters[i];
    } else if (byte < 0x20) {
      json += "\\u00";
      json += kDigits[byte >> 4U];
      json += kDigits[byte & 15U];
    } else {
      json += c;
    }
  }
  json += '"';
}

void append_list(const auto& numbers, String& json) {
  char separator = '[';
  for (const auto number : numbers) {
    json += std::exchange(separator, ',');
    json += std::string_view(NumberText(number));
  }
  json += separator == '[' ? "[]" : "]";
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(Allocator& allocator)
    : text_(allocator), metadata_(allocator), tensors_(allocator), header_(text_) {}

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
  size_t end = 0;
  for (Tensor& tensor : tensors_) {
    tensor.begin = end;
    end += tensor.bytes();
  }
  write_header();
  header_.append((kAlignment - header_.size() % kAlignment) % kAlignment, ' ');
  size_ = sizeof(uint64_t) + header_.size() + end;
}

/// Write everything in ascending order of names.
void SafetensorsWriter::write_header() {
  constexpr std::string_view kMetadata = "__metadata__";
  std::sort(metadata_.begin(), metadata_.end());
  Vector<const Tensor*> by_name(text_);
  for (const Tensor& tensor : tensors_) by_name.push_back(&tensor);
  const auto name_of = [](const Tensor* each) { return std::string_view(each->name); };
  std::ranges::sort(by_name, {}, name_of);
  const auto after = std::ranges::upper_bound(by_name, kMetadata, {}, name_of);

  header_ = "{";
  std::for_each(by_name.begin(), after, [this](const Tensor* each) { add_entry(*each); });
  if (!metadata_.empty()) {
    begin_entry(kMetadata);
    char separator = '{';
    for (const auto& [key, value] : metadata_) {
      header_ += std::exchange(separator, ',');
      append_string(key, header_);
      header_ += ':';
      append_string(value, header_);
    }
    header_ += '}';
  }
  std::for_each(after, by_name.end(), [this](const Tensor* each) { add_entry(*each); });
  header_ += '}';
}

void SafetensorsWriter::begin_entry(std::string_view name) {
  if (header_.size() > 1) header_ += ',';
  append_string(name, header_);
  header_ += ':';
}

void SafetensorsWriter::add_entry(const Tensor& tensor) {
  begin_entry(tensor.name);
  const std::array<size_t, 2> range = {tensor.begin, tensor.begin + tensor.bytes()};
  header_ += "{\"data_offsets\":";
  append_list(range, header_);
  header_ += ",\"dtype\":";
  append_string(dtype_name(tensor.dtype), header_);
  header_ += ",\"shape\":";
  append_list(tensor.shape.sizes(), header_);
  header_ += '}';
}

void SafetensorsWriter::write(std::span<std::byte> out) const {
  const uint64_t length = header_.size();
  std::memcpy(out.data(), &length, sizeof(length));
  std::memcpy(out.data() + sizeof(length), header_.data(), header_.size());
  std::byte* at = out.data() + sizeof(length) + header_.size();
  for (const Tensor& tensor : tensors_) {
    if (!tensor.values.empty()) write_floats(tensor.values.data(), tensor.values.size(), at, tensor.dtype, 0);
    std::copy(tensor.raw.begin(), tensor.raw.end(), at);
    at += tensor.bytes();
  }
}

}  // namespace kvq::io
