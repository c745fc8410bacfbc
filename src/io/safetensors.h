// Container of all trained data: named tensors behind a JSON header.
#pragma once

#include "core/memory.h"
#include "core/tensor.h"
#include "core/tensor_shape.h"
#include "kvq.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

namespace kvq::io {

/// Bytes as elements of tensors, which kvq.h does not name.
inline constexpr kvq_dtype kU8 = 0x55;
constexpr size_t element_bytes(kvq_dtype dtype) { return dtype == kU8 ? 1 : dtype_bytes(dtype); }

/// The spelling of a header: "F32", "F16", "BF16" or "U8".
const char* dtype_name(kvq_dtype dtype);

/// One tensor inside a file: row-major, little-endian, of any alignment.
struct TensorView {
  explicit TensorView(Allocator& allocator) : name(allocator) {}

  String name;
  kvq_dtype dtype = KVQ_F32;
  TensorShape shape;
  std::span<const std::byte> data;

  /// Read floats, widened from a floating-point type; `out` has shape.elements() numbers.
  void read(std::span<float> out) const;
};

/// A file in memory whose header has been checked in full: names are unique, every tensor lies inside the data and is
/// as long as its shape and dtype say, and together they cover the data exactly. Refers to the bytes it was given.
class SafetensorsFile {
 public:
  /// Throws KVQ_E_FORMAT. Needs memory in proportion to the header.
  SafetensorsFile(Allocator& allocator, std::span<const std::byte> bytes);

  /// In ascending order of name.
  std::span<const TensorView> tensors() const { return tensors_; }
  /// nullptr if there is no such tensor.
  const TensorView* find(std::string_view name) const;
  /// nullptr if there is no such entry.
  const String* metadata(std::string_view key) const;

 private:
  struct MetadataEntry {
    String key;
    String value;
  };
  struct Target;

  Vector<TensorView> tensors_;
  Vector<MetadataEntry> metadata_;  // ascending keys
};

/// Writes what a SafetensorsFile reads. The same content gives the same bytes, whatever the order of the calls.
class SafetensorsWriter {
 public:
  explicit SafetensorsWriter(Allocator& allocator);

  /// `value` must be UTF-8.
  void add_metadata(std::string_view key, std::string_view value);
  /// A tensor of `values`, which are rounded to `dtype` when the file is written; they must live until then.
  void add_tensor(std::string_view name, kvq_dtype dtype, const TensorShape& shape, std::span<const float> values);
  /// A tensor written as it is in memory, where it must stay until then.
  void add_raw(std::string_view name, kvq_dtype dtype, const TensorShape& shape, std::span<const std::byte> data);

  /// After this nothing can be added. Throws KVQ_E_FORMAT if a text is not UTF-8.
  void finish();
  size_t size() const { return size_; }
  /// `out` has size() bytes.
  void write(std::span<std::byte> out) const;

 private:
  struct Tensor {
    String name;
    kvq_dtype dtype;
    TensorShape shape;
    std::span<const float> values;
    std::span<const std::byte> raw;  // instead of values
    size_t begin = 0;                // in the data of the file

    size_t bytes() const { return raw.size() + values.size() * element_bytes(dtype); }
  };

  void write_header();
  void begin_entry(std::string_view name);
  void add_entry(const Tensor& tensor);

  StlAllocator<char> text_;
  Vector<std::pair<String, String>> metadata_;
  Vector<Tensor> tensors_;
  String header_;
  size_t size_ = 0;
};

}  // namespace kvq::io
