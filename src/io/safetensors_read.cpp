#include "core/error.h"
#include "core/tensor.h"
#include "core/text.h"
#include "io/safetensors.h"
#include "io/safetensors_header.h"

#include <algorithm>
#include <functional>

namespace kvq::io {
namespace {

constexpr std::array<kvq_dtype, 4> kDtypes = {KVQ_F32, KVQ_F16, KVQ_BF16, kU8};

/// Sort entries by a key, which each must have to itself.
void sort_by(auto& entries, const auto& key, const char* what) {
  std::ranges::sort(entries, {}, key);
  const auto twice = std::ranges::adjacent_find(entries, {}, key);
  if (twice == entries.end()) return;
  fail(KVQ_E_FORMAT, "safetensors: %s '%s' occurs twice", what, Quoted(std::invoke(key, *twice)).c_str());
}

/// The entry of this key, or null.
const auto* find_by(const auto& entries, std::string_view wanted, const auto& key) {
  const auto found = std::ranges::lower_bound(
      entries, wanted, {}, [&](const auto& each) { return std::string_view(std::invoke(key, each)); });
  return found != entries.end() && std::invoke(key, *found) == wanted ? &*found : nullptr;
}

}  // namespace

/// What a header says, in counted memory.
struct SafetensorsFile::Target {
  using Text = String;
  using Shape = TensorShape;
  static constexpr bool kTakesUnknownFields = false;
  static constexpr const char* kTypesText = "must be F32, F16, BF16 or U8";

  Text text() const { return String(allocator); }
  void add_metadata(std::string_view key, std::string_view value) {
    const StlAllocator<char> text(allocator);
    file.metadata_.push_back({String(key, text), String(value, text)});
  }
  static const ElementType* find_type(std::string_view name) {
    const auto* type = std::ranges::find(kElementTypes, name, &ElementType::name);
    return type != kElementTypes.end() && std::ranges::find(kDtypes, name, dtype_name) != kDtypes.end() ? type
                                                                                                        : nullptr;
  }
  void add_tensor(const String& name, const ElementType& type, const TensorShape& shape,
                  std::span<const std::byte> data) {
    TensorView& tensor = file.tensors_.emplace_back(allocator);
    tensor.name = name;
    tensor.dtype = *std::ranges::find(kDtypes, type.name, dtype_name);
    tensor.shape = shape;
    tensor.data = data;
  }
  static Quoted quoted(std::string_view text) { return Quoted(text); }
  [[noreturn]] static void refuse(const char* message) { fail(KVQ_E_FORMAT, "safetensors: %s", message); }

  Allocator& allocator;
  SafetensorsFile& file;
};

const char* dtype_name(kvq_dtype dtype) {
  if (dtype == kU8) return "U8";
  return dtype == KVQ_F32 ? "F32" : dtype == KVQ_F16 ? "F16" : "BF16";
}

void TensorView::read(std::span<float> out) const {
  if (!out.empty()) read_floats(data.data(), dtype, 0, out.size(), out.data());
}

SafetensorsFile::SafetensorsFile(Allocator& allocator, std::span<const std::byte> bytes)
    : tensors_(allocator), metadata_(allocator) {
  Target target{allocator, *this};
  SafetensorsHeader<Target>::read(bytes, target);
  sort_by(tensors_, &TensorView::name, "tensor");
  sort_by(metadata_, &MetadataEntry::key, "metadata");
  Vector<const TensorView*> in_order(allocator);
  in_order.reserve(tensors_.size());
  for (const TensorView& tensor : tensors_) in_order.push_back(&tensor);
  SafetensorsHeader<Target>::check_coverage(bytes, in_order, target);
}

const TensorView* SafetensorsFile::find(std::string_view name) const {
  return find_by(tensors_, name, &TensorView::name);
}

const String* SafetensorsFile::metadata(std::string_view key) const {
  const MetadataEntry* found = find_by(metadata_, key, &MetadataEntry::key);
  return found != nullptr ? &found->value : nullptr;
}

}  // namespace kvq::io
