#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "kvq.h"
#include "mapped_file.h"

namespace llama {

int64_t dtype_bits(std::string_view dtype);

/// One tensor inside a mapped file: row-major, little-endian, of any alignment.
struct TensorView {
  std::string name;
  std::string_view dtype;  ///< as headers spell it, for example "BF16"; F32, F16 and BF16 can be computed with
  std::vector<int64_t> shape;
  std::span<const std::byte> data;  ///< lives as long as the bytes or the SafetensorsFile it came from

  int64_t elements() const;
};

/// Throws Error unless the dtype is F32, F16 or BF16.
kvq_dtype float_dtype(const TensorView& tensor);

/// Widen to float; of the dtypes of float_dtype().
std::vector<float> to_float(const TensorView& tensor);

/// What a safetensors file holds.
struct SafetensorsContent {
  std::vector<TensorView> tensors;  ///< in ascending order of name
  std::map<std::string, std::string> metadata;
};

/// Check the header in full: every view lies inside `bytes`. Errors name `source`.
SafetensorsContent read_safetensors(std::span<const std::byte> bytes, const std::string& source);

/// Write a file, piece by piece.
void write_safetensors(const SafetensorsContent& content, const std::function<void(std::span<const std::byte>)>& write);

/// A memory-mapped safetensors file whose header has been checked in full: every view lies inside the file.
/// The file must not be truncated by anyone while it is open.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);
  const TensorView* find(std::string_view name) const;
  const std::vector<TensorView>& tensors() const { return content_.tensors; }
  const std::map<std::string, std::string>& metadata() const { return content_.metadata; }
  std::span<const std::byte> bytes() const { return file_.bytes(); }
  /// As MappedFile::forget().
  void forget() const { file_.forget(); }

 private:
  MappedFile file_;
  SafetensorsContent content_;
};

}  // namespace llama
