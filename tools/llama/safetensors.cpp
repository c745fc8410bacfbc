#include "safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "error.h"
#include "json_document.h"

namespace llama {

namespace {

constexpr size_t kLengthBytes = 8;
constexpr const char* kMetadata = "__metadata__";
constexpr uint64_t kMaxHeaderBytes = 100'000'000;

struct DTypeInfo {
  DType dtype;
  std::string_view name;
  int64_t bits;
};

constexpr auto kDTypes = std::to_array<DTypeInfo>({
    {DType::kF32, "F32", 32},       {DType::kF16, "F16", 16},       {DType::kBF16, "BF16", 16},
    {DType::kF64, "F64", 64},       {DType::kF8E4M3, "F8_E4M3", 8}, {DType::kF8E5M2, "F8_E5M2", 8},
    {DType::kF8E8M0, "F8_E8M0", 8}, {DType::kF6E2M3, "F6_E2M3", 6}, {DType::kF6E3M2, "F6_E3M2", 6},
    {DType::kF4, "F4", 4},          {DType::kI64, "I64", 64},       {DType::kI32, "I32", 32},
    {DType::kI16, "I16", 16},       {DType::kI8, "I8", 8},          {DType::kU64, "U64", 64},
    {DType::kU32, "U32", 32},       {DType::kU16, "U16", 16},       {DType::kU8, "U8", 8},
    {DType::kBool, "BOOL", 8},      {DType::kC64, "C64", 64},
});

const DTypeInfo& info_of(DType dtype) { return *std::ranges::find(kDTypes, dtype, &DTypeInfo::dtype); }

struct Header {
  std::string_view json;
  std::span<const std::byte> data;
};

Header split_file(std::span<const std::byte> bytes, const std::string& source) {
  if (bytes.size() < kLengthBytes) {
    throw Error(source + ": " + std::to_string(bytes.size()) + " bytes, too short for a safetensors header length");
  }
  uint64_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) length |= std::to_integer<uint64_t>(bytes[i]) << (8 * i);
  const size_t rest = bytes.size() - kLengthBytes;
  if (length > kMaxHeaderBytes) {
    throw Error(source + ": header length is " + std::to_string(length) + ", the limit is " +
                std::to_string(kMaxHeaderBytes));
  }
  if (length > rest) {
    throw Error(source + ": header length is " + std::to_string(length) + ", but only " + std::to_string(rest) +
                " bytes follow");
  }
  const auto* text = reinterpret_cast<const char*>(bytes.data() + kLengthBytes);
  if (length == 0 || text[0] != '{') throw Error(source + ": the header does not begin with '{'");
  return {{text, length}, bytes.subspan(kLengthBytes + length)};
}

std::map<std::string, std::string> read_metadata(const JsonObject& object) {
  std::map<std::string, std::string> metadata;
  for (const auto& [key, value] : object.json().items()) {
    if (!value.is_string()) object.refuse(key.c_str(), "expected a string");
    metadata.emplace(key, value.get<std::string>());
  }
  return metadata;
}

std::vector<int64_t> read_shape(const JsonObject& entry) {
  const nlohmann::json& list = entry.at("shape");
  if (!list.is_array()) entry.refuse("shape", "expected a list of integers");
  std::vector<int64_t> shape;
  for (const nlohmann::json& item : list) {
    const std::optional<int64_t> size = as_integer(item);
    if (!size || *size < 0) entry.refuse("shape", "expected a list of integers from 0 to 2^63 - 1");
    shape.push_back(*size);
  }
  return shape;
}

/// Bytes of a dense tensor.
int64_t byte_size(const JsonObject& entry, const std::vector<int64_t>& shape, int64_t bits_per_element) {
  int64_t bits = bits_per_element;
  for (int64_t size : shape) {
    if (__builtin_mul_overflow(bits, size, &bits)) entry.refuse("shape", "which is more than 2^63 bits");
  }
  if (bits % 8 != 0) entry.refuse("shape", "which does not fill whole bytes");
  return bits / 8;
}

std::pair<int64_t, int64_t> read_offsets(const JsonObject& entry, size_t data_size) {
  const nlohmann::json& list = entry.at("data_offsets");
  if (!list.is_array() || list.size() != 2) entry.refuse("data_offsets", "expected two integers");
  const std::optional<int64_t> begin = as_integer(list[0]);
  const std::optional<int64_t> end = as_integer(list[1]);
  if (!begin || !end || *begin < 0 || *end < *begin) {
    entry.refuse("data_offsets", "expected two integers in ascending order");
  }
  if (std::cmp_greater(*end, data_size)) {
    entry.refuse("data_offsets", "past the end of the file's " + std::to_string(data_size) + " bytes of data");
  }
  return {*begin, *end};
}

TensorView read_tensor(const std::string& name, const JsonObject& entry, std::span<const std::byte> data) {
  const std::string spelling = entry.string("dtype");
  const auto* info =
      std::find_if(kDTypes.begin(), kDTypes.end(), [&](const DTypeInfo& known) { return known.name == spelling; });
  if (info == kDTypes.end()) entry.refuse("dtype", "which is not a dtype of the format");
  std::vector<int64_t> shape = read_shape(entry);
  const int64_t size = byte_size(entry, shape, info->bits);
  const auto [begin, end] = read_offsets(entry, data.size());
  if (end - begin != size) {
    entry.refuse("data_offsets", "but the shape and dtype need " + std::to_string(size) + " bytes");
  }
  return {name, info->dtype, std::move(shape), data.subspan(static_cast<size_t>(begin), static_cast<size_t>(size))};
}

/// The format demands that the tensors cover the data exactly: no byte twice, none unused.
void check_coverage(const std::vector<TensorView>& tensors, std::span<const std::byte> data,
                    const std::string& source) {
  std::vector<std::pair<std::span<const std::byte>, const std::string*>> ranges;
  ranges.reserve(tensors.size());
  for (const TensorView& tensor : tensors) ranges.emplace_back(tensor.data, &tensor.name);
  std::sort(ranges.begin(), ranges.end(), [](const auto& a, const auto& b) {
    return a.first.data() != b.first.data() ? a.first.data() < b.first.data() : a.first.size() < b.first.size();
  });
  const std::byte* expected = data.data();
  for (const auto& [range, name] : ranges) {
    if (range.data() != expected) {
      throw Error(source + ": tensor " + in_quotes(*name) + " begins at byte " +
                  std::to_string(range.data() - data.data()) + " of the data, but the tensor before it ends at byte " +
                  std::to_string(expected - data.data()) + ": the file has " +
                  (range.data() < expected ? "an overlap" : "a hole"));
    }
    expected = range.data() + range.size();
  }
  if (expected != data.data() + data.size()) {
    throw Error(source + ": the tensors end at byte " + std::to_string(expected - data.data()) + " of " +
                std::to_string(data.size()) + " bytes of data");
  }
}

float float_from_bf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

float float_from_f16(uint16_t bits) {
  const uint32_t sign = uint32_t{bits & 0x8000u} << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t fraction = bits & 0x3ffu;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;  // zero or subnormal
    return sign != 0 ? -magnitude : magnitude;
  }
  const uint32_t widened = exponent == 0x1f ? 0xffu : exponent + 112u;
  return std::bit_cast<float>(sign | widened << 23 | fraction << 13);
}

/// Elements are copied out because a header of odd length leaves the data unaligned.
template <typename Stored, typename Widen>
std::vector<float> widen_all(std::span<const std::byte> data, Widen widen) {
  std::vector<float> out(data.size() / sizeof(Stored));
  for (size_t i = 0; i < out.size(); ++i) {
    Stored stored;
    std::memcpy(&stored, data.data() + i * sizeof(Stored), sizeof(Stored));
    out[i] = widen(stored);
  }
  return out;
}

}  // namespace

std::string_view dtype_name(DType dtype) { return info_of(dtype).name; }

int64_t dtype_bits(DType dtype) { return info_of(dtype).bits; }

int64_t TensorView::elements() const {
  int64_t count = 1;
  for (int64_t size : shape) count *= size;
  return count;
}

kvq_dtype float_dtype(const TensorView& tensor) {
  switch (tensor.dtype) {
    case DType::kF32:
      return KVQ_F32;
    case DType::kF16:
      return KVQ_F16;
    case DType::kBF16:
      return KVQ_BF16;
    default:
      throw Error("tensor " + in_quotes(tensor.name) + ": dtype is " + std::string(dtype_name(tensor.dtype)) +
                  ", expected F32, F16 or BF16");
  }
}

std::vector<float> to_float(const TensorView& tensor) {
  const kvq_dtype dtype = float_dtype(tensor);
  if (dtype == KVQ_F16) return widen_all<uint16_t>(tensor.data, float_from_f16);
  if (dtype == KVQ_BF16) return widen_all<uint16_t>(tensor.data, float_from_bf16);
  return widen_all<float>(tensor.data, [](float value) { return value; });
}

SafetensorsContent read_safetensors(std::span<const std::byte> bytes, const std::string& source) {
  const Header header = split_file(bytes, source);
  const nlohmann::json document = parse_json(header.json, source);
  const JsonObject root(document, source);
  SafetensorsContent content;
  for (const auto& [name, value] : document.items()) {
    if (name == kMetadata) {
      content.metadata = read_metadata(root.object(kMetadata));
    } else {
      content.tensors.push_back(read_tensor(name, {value, source + ": tensor " + in_quotes(name)}, header.data));
    }
  }
  check_coverage(content.tensors, header.data, source);
  return content;
}

void write_safetensors(const SafetensorsContent& content,
                       const std::function<void(std::span<const std::byte>)>& write) {
  constexpr size_t kAlignment = 8;  // of the data, and so of every tensor, wide elements coming first
  std::vector<const TensorView*> tensors;
  for (const TensorView& tensor : content.tensors) tensors.push_back(&tensor);
  std::ranges::stable_sort(tensors, std::greater<>(), [](const TensorView* each) { return dtype_bits(each->dtype); });

  nlohmann::json document = nlohmann::json::object();
  if (!content.metadata.empty()) document[kMetadata] = content.metadata;
  size_t end = 0;
  for (const TensorView* tensor : tensors) {
    const size_t begin = end;
    end += tensor->data.size();
    document[tensor->name] = {
        {"dtype", dtype_name(tensor->dtype)}, {"shape", tensor->shape}, {"data_offsets", {begin, end}}};
  }
  std::string header = document.dump();
  header.append((kAlignment - header.size() % kAlignment) % kAlignment, ' ');
  std::array<std::byte, kLengthBytes> length;
  for (size_t i = 0; i < kLengthBytes; ++i) length[i] = static_cast<std::byte>(header.size() >> (8 * i));
  write(length);
  write(std::as_bytes(std::span(header)));
  for (const TensorView* tensor : tensors) write(tensor->data);
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : file_(path), content_(read_safetensors(file_.bytes(), path.string())) {}

const TensorView* SafetensorsFile::find(std::string_view name) const {
  const std::vector<TensorView>& all = tensors();
  const auto found = std::lower_bound(all.begin(), all.end(), name,
                                      [](const TensorView& tensor, std::string_view key) { return tensor.name < key; });
  return found != all.end() && found->name == name ? &*found : nullptr;
}

}  // namespace llama
