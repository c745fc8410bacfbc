// Metadata of our safetensors files: fields in text.
#pragma once

#include "core/memory.h"
#include "core/number_text.h"
#include "io/safetensors.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace kvq::io {

inline constexpr int kHexadecimal = 16;

/// A number as the shortest text that reads back as the same number.
class NumberText {
 public:
  template <typename Number, typename... Format>
  explicit NumberText(Number value, Format... format) {
    size_ = kvq::write_number(text_, value, format...);
  }
  operator std::string_view() const { return {text_.data(), size_}; }

 private:
  std::array<char, 40> text_{};
  size_t size_ = 0;
};

/// Numbers separated by spaces.
String list_text(Allocator& allocator, std::span<const double> values);

/// Metadata of a file, read field by field. Throws KVQ_E_FORMAT.
class MetadataFields {
 public:
  /// `content`: name of the file in messages.
  MetadataFields(const SafetensorsFile& file, const char* content) : file_(file), content_(content) {}

  /// Check the metadata `type` and `version`; throws KVQ_E_MISMATCH for another version.
  void check_type(std::string_view type, int32_t version) const;

  bool has(const char* key) const { return file_.metadata(key) != nullptr; }
  std::string_view text(const char* key) const;
  /// Text of at most `most` bytes, without NUL.
  std::string_view note(const char* key, size_t most) const;
  template <typename Number, typename... Format>
  Number number(const char* key, Format... format) const {
    const std::string_view spelling = text(key);
    Number value{};
    if (!parse_number(spelling, value, format...)) refuse(key, "a number");
    return value;
  }
  /// A number that is finite and not negative.
  double amount(const char* key) const;
  /// Such numbers separated by spaces, values.size() of them; `expected`: for the message.
  void amounts(const char* key, std::span<double> values, const char* expected) const;
  template <size_t n>
  int32_t choice(const char* key, const std::array<const char*, n>& names, const char* expected) const {
    const std::string_view spelling = text(key);
    for (size_t i = 0; i < n; ++i) {
      if (!spelling.empty() && spelling == names[i]) return static_cast<int32_t>(i);
    }
    refuse(key, expected);
  }
  [[noreturn]] void refuse(const char* key, const char* expected) const;

  /// Read the tensor `name`, which must have this type and shape.
  void read_tensor(const char* name, kvq_dtype dtype, const TensorShape& shape, Vector<float>& numbers) const;
  /// Check that the file has `expected` tensors.
  void check_tensor_count(size_t expected) const;

 private:
  const SafetensorsFile& file_;
  const char* content_;
};

/// Throws KVQ_E_ARGUMENT naming `argument` unless the text may be a note: UTF-8, of at most `most` bytes.
void check_note(std::string_view note, size_t most, const char* argument);

}  // namespace kvq::io
