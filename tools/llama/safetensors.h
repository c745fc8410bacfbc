#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvq.h"
#include "mapped_file.h"

namespace llama {

/// Element types of the safetensors format. Any of them may stand in a header; the first three can be computed with.
enum class DType {
  kF32,
  kF16,
  kBF16,
  kF64,
  kF8E4M3,
  kF8E5M2,
  kF8E8M0,
  kF6E2M3,
  kF6E3M2,
  kF4,
  kI64,
  kI32,
  kI16,
  kI8,
  kU64,
  kU32,
  kU16,
  kU8,
  kBool,
  kC64
};

/// The spelling of a safetensors header, for example "BF16".
std::string_view dtype_name(DType dtype);
/// Of one element.
int64_t dtype_bits(DType dtype);

/// One tensor inside a mapped file: row-major, little-endian, of any alignment.
struct TensorView {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::span<const std::byte> data;  ///< lives as long as the bytes or the SafetensorsFile it came from, moved or not

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

  /// nullptr if there is no such tensor.
  const TensorView* find(std::string_view name) const;
  /// In ascending order of name.
  const std::vector<TensorView>& tensors() const { return content_.tensors; }
  const std::map<std::string, std::string>& metadata() const { return content_.metadata; }
  /// The whole file.
  std::span<const std::byte> bytes() const { return file_.bytes(); }
  /// As MappedFile::forget().
  void forget() const { file_.forget(); }

 private:
  MappedFile file_;
  SafetensorsContent content_;
};

}  // namespace llama
