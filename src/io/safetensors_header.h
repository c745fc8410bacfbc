// The header of a safetensors file, for readers that keep tensors in containers of their own: the library's and the
// program's.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

namespace kvq::io {

struct ElementType {
  std::string_view name;
  uint32_t bits;
};

/// All that the format has.
inline constexpr auto kElementTypes = std::to_array<ElementType>(
    {{"F32", 32},    {"F16", 16},    {"BF16", 16},   {"U8", 8},   {"F64", 64}, {"F8_E4M3", 8}, {"F8_E5M2", 8},
     {"F8_E8M0", 8}, {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F4", 4},   {"I64", 64}, {"I32", 32},    {"I16", 16},
     {"I8", 8},      {"U64", 64},    {"U32", 32},    {"U16", 16}, {"BOOL", 8}, {"C64", 64}});

/// Takes the events of a parse, so that no document is ever built, and hands what they say to a Target, which has
///
///     Text, Shape                         containers; shape.append(size) is false where there is no room
///     text()                              an empty Text
///     kTakesUnknownFields                 whether a tensor may have fields that the format does not name
///     add_metadata(key, value)
///     find_type(name) -> const ElementType*   nullptr: the target takes no such elements
///     kTypesText                          what it takes, for messages
///     add_tensor(name, type, shape, data)
///     quoted(text) -> object with c_str()     for messages
///     refuse(message)                     throws
template <class Target>
class SafetensorsHeader {
 public:
  /// Refuses what contradicts the format or itself, but for names that occur twice and data that tensors share or leave
  /// out: check_coverage().
  static void read(std::span<const std::byte> bytes, Target& target) {
    static_assert(std::endian::native == std::endian::little, "tensors are read as they lie in the file");
    const std::string_view header = header_of(bytes, target);
    SafetensorsHeader reader(target, bytes.subspan(kLengthBytes + header.size()));
    nlohmann::json::sax_parse(header.begin(), header.end(), &reader);
  }

  /// Sort pointers to all tensors of a file by their place; together they cover the data exactly, no byte twice.
  template <class Pointers>
  static void check_coverage(std::span<const std::byte> bytes, Pointers& tensors, const Target& target) {
    const auto data = bytes.subspan(kLengthBytes + header_of(bytes, target).size());
    std::sort(tensors.begin(), tensors.end(), [](const auto* a, const auto* b) {
      return a->data.data() != b->data.data() ? a->data.data() < b->data.data() : a->data.size() < b->data.size();
    });
    const auto place = [&data](const std::byte* at) { return static_cast<size_t>(at - data.data()); };
    const std::byte* expected = data.data();
    for (const auto* tensor : tensors) {
      const std::byte* begin = tensor->data.data();
      if (begin != expected) {
        fail(target, "tensor '%s': data_offsets begin at %zu, but the tensor before it ends at %zu: the file has %s",
             target.quoted(tensor->name).c_str(), place(begin), place(expected),
             begin < expected ? "an overlap" : "a hole");
      }
      expected += tensor->data.size();
    }
    if (expected == data.data() + data.size()) return;
    fail(target, "the tensors end at byte %zu of %zu bytes of data", place(expected), data.size());
  }

  bool start_object(size_t /*members*/) {
    if (skipped_ > 0) return nest();
    if (place_ == Place::kStart) {
      place_ = Place::kRoot;
    } else if (place_ == Place::kRoot && key_ == kMetadataName) {
      if (has_metadata_) fail(target_, "%s occurs twice", kMetadataName);
      has_metadata_ = true;
      place_ = Place::kMetadata;
    } else if (place_ == Place::kRoot) {
      name_ = key_;
      type_ = nullptr;
      shape_ = {};
      seen_ = 0;
      n_offsets_ = 0;
      place_ = Place::kTensor;
    } else if (is_skipping()) {
      return nest();
    } else {
      refuse("an object");
    }
    return true;
  }
  bool end_object() {
    if (skipped_ > 0) return unnest();
    if (place_ == Place::kTensor) add_tensor();
    place_ = place_ == Place::kRoot ? Place::kStart : Place::kRoot;
    return true;
  }
  bool start_array(size_t /*elements*/) {
    if (skipped_ > 0 || is_skipping()) return nest();
    if (place_ == Place::kTensor && field_ == kShape) {
      place_ = Place::kSizes;
    } else if (place_ == Place::kTensor && field_ == kOffsets) {
      place_ = Place::kRange;
    } else {
      refuse("a list");
    }
    return true;
  }
  bool end_array() {
    if (skipped_ > 0) return unnest();
    place_ = Place::kTensor;
    return true;
  }
  bool key(std::string& name) {
    if (skipped_ > 0) return true;
    if (place_ == Place::kTensor) {
      begin_field(name);
    } else {
      key_.assign(name.data(), name.size());
    }
    return true;
  }
  bool string(std::string& value) {
    if (place_ == Place::kMetadata) {
      target_.add_metadata(key_, value);
    } else if (place_ == Place::kTensor && field_ == kDtype) {
      type_ = target_.find_type(value);
      if (type_ == nullptr) {
        fail(target_, "tensor '%s': dtype is '%s', %s", target_.quoted(name_).c_str(), target_.quoted(value).c_str(),
             Target::kTypesText);
      }
    } else if (!is_skipping()) {
      refuse("a string");
    }
    return true;
  }
  bool number_unsigned(uint64_t value) {
    if (place_ == Place::kSizes) {
      if (value > INT64_MAX) {
        fail(target_, "tensor '%s': shape has a size of %llu, must be from 0 to 2^63 - 1",
             target_.quoted(name_).c_str(), static_cast<unsigned long long>(value));
      }
      if (!shape_.append(static_cast<int64_t>(value))) {
        fail(target_, "tensor '%s': shape has more than %zu sizes", target_.quoted(name_).c_str(),
             shape_.sizes().size());
      }
    } else if (place_ == Place::kRange && n_offsets_ < 2) {
      offsets_[n_offsets_++] = value;
    } else if (!is_skipping()) {
      refuse("a number");
    }
    return true;
  }
  bool number_integer(int64_t /*value*/) { return is_skipping() || refuse("a negative number"); }
  bool number_float(double /*value*/, const std::string& /*text*/) { return is_skipping() || refuse("a fraction"); }
  bool boolean(bool /*value*/) { return is_skipping() || refuse("a boolean"); }
  bool null() { return is_skipping() || refuse("null"); }
  bool binary(nlohmann::json::binary_t& /*value*/) { return refuse("binary data"); }
  bool parse_error(size_t position, const std::string& /*token*/, const nlohmann::json::exception& error) {
    fail(target_, "not valid JSON: byte %zu of the header: %.160s", position, error.what());
  }

 private:
  static constexpr size_t kLengthBytes = 8;
  static constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the reference implementation's limit
  static constexpr int kMostNested = 64;                    // within a field that is skipped
  static constexpr const char* kMetadataName = "__metadata__";
  enum class Place { kStart, kRoot, kMetadata, kTensor, kSizes, kRange };
  enum Field : unsigned { kDtype = 1, kShape = 2, kOffsets = 4, kUnknown = 8 };

  SafetensorsHeader(Target& target, std::span<const std::byte> data)
      : target_(target), data_(data), key_(target.text()), name_(target.text()) {}

  template <class... Values>
  [[noreturn]] static void fail(const Target& target, const char* format, Values... values) {
    std::array<char, 512> message{};
    std::snprintf(message.data(), message.size(), format, values...);
    target.refuse(message.data());
  }

  static std::string_view header_of(std::span<const std::byte> bytes, const Target& target) {
    if (bytes.size() < kLengthBytes) {
      fail(target, "size is %zu bytes, too short for the length of a header", bytes.size());
    }
    uint64_t length = 0;
    std::memcpy(&length, bytes.data(), kLengthBytes);
    if (length > kMaxHeaderBytes) {
      fail(target, "header length is %llu, the limit is %llu", static_cast<unsigned long long>(length),
           static_cast<unsigned long long>(kMaxHeaderBytes));
    }
    if (length > bytes.size() - kLengthBytes) {
      fail(target, "header length is %llu, but only %zu bytes follow", static_cast<unsigned long long>(length),
           bytes.size() - kLengthBytes);
    }
    const auto* text = reinterpret_cast<const char*>(bytes.data() + kLengthBytes);
    if (length == 0 || text[0] != '{') fail(target, "the header does not begin with %s", "'{'");
    return {text, static_cast<size_t>(length)};
  }

  [[noreturn]] bool refuse(const char* found) const {
    const bool in_tensor = place_ == Place::kTensor || place_ == Place::kSizes || place_ == Place::kRange;
    if (!in_tensor) fail(target_, "'%s' is or holds %s", target_.quoted(key_).c_str(), found);
    fail(target_, "tensor '%s': %s is or holds %s", target_.quoted(name_).c_str(), name_of(field_), found);
  }

  static const char* name_of(Field field) {
    return field == kDtype ? "dtype" : field == kShape ? "shape" : "data_offsets";
  }

  bool is_skipping() const { return skipped_ > 0 || (place_ == Place::kTensor && field_ == kUnknown); }
  bool nest() {
    if (++skipped_ > kMostNested) fail(target_, "the header is nested deeper than %d", kMostNested);
    return true;
  }
  bool unnest() {
    --skipped_;
    return true;
  }

  void begin_field(std::string_view name) {
    for (const Field field : {kDtype, kShape, kOffsets}) {
      if (name != name_of(field)) continue;
      if ((seen_ & field) != 0) {
        fail(target_, "tensor '%s': %s occurs twice", target_.quoted(name_).c_str(), name_of(field));
      }
      seen_ |= field;
      field_ = field;
      return;
    }
    field_ = kUnknown;
    if (Target::kTakesUnknownFields) return;
    fail(target_, "tensor '%s': unknown field '%s'", target_.quoted(name_).c_str(), target_.quoted(name).c_str());
  }

  void add_tensor() {
    const auto name = target_.quoted(name_);
    for (const Field field : {kDtype, kShape, kOffsets}) {
      if ((seen_ & field) == 0) fail(target_, "tensor '%s': %s is missing", name.c_str(), name_of(field));
    }
    if (n_offsets_ != 2) fail(target_, "tensor '%s': data_offsets are %zu, must be two", name.c_str(), n_offsets_);
    const auto [begin, end] = offsets_;
    if (begin > end || end > data_.size()) {
      fail(target_, "tensor '%s': data_offsets are [%llu, %llu], in %zu bytes of data", name.c_str(),
           static_cast<unsigned long long>(begin), static_cast<unsigned long long>(end), data_.size());
    }
    uint64_t bits = type_->bits;
    for (const int64_t size : shape_.sizes()) {
      if (__builtin_mul_overflow(bits, static_cast<uint64_t>(size), &bits) || bits > INT64_MAX) {
        fail(target_, "tensor '%s': shape overflows: more than 2^63 bits", name.c_str());
      }
    }
    if (bits % 8 != 0) fail(target_, "tensor '%s': shape does not fill whole bytes", name.c_str());
    if (bits / 8 != end - begin) {
      fail(target_, "tensor '%s': data_offsets span %llu bytes, shape and dtype need %llu bytes", name.c_str(),
           static_cast<unsigned long long>(end - begin), static_cast<unsigned long long>(bits / 8));
    }
    target_.add_tensor(name_, *type_, shape_,
                       data_.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)));
  }

  Target& target_;
  std::span<const std::byte> data_;

  Place place_ = Place::kStart;
  bool has_metadata_ = false;
  typename Target::Text key_;   // of the root or of the metadata
  typename Target::Text name_;  // of the tensor that is being read
  const ElementType* type_ = nullptr;
  typename Target::Shape shape_;
  Field field_ = kDtype;
  unsigned seen_ = 0;  // Fields
  std::array<uint64_t, 2> offsets_{};
  size_t n_offsets_ = 0;
  int skipped_ = 0;  // objects and lists that are open in a field that is skipped
};

}  // namespace kvq::io
