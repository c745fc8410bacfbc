#include "core/error.h"
#include "core/tensor.h"
#include "core/text.h"
#include "io/safetensors.h"
#include "io/safetensors_header.h"

#include <algorithm>

namespace kvq::io {
namespace {

constexpr std::array<kvq_dtype, 4> kDtypes = {KVQ_F32, KVQ_F16, KVQ_BF16, kU8};

kvq_dtype dtype_of(const ElementType& type) {
  return *std::find_if(kDtypes.begin(), kDtypes.end(), [&](kvq_dtype each) { return type.name == dtype_name(each); });
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
    for (const ElementType& type : kElementTypes) {
      const auto is_type = [&type](kvq_dtype each) { return type.name == dtype_name(each); };
      if (type.name == name && std::any_of(kDtypes.begin(), kDtypes.end(), is_type)) return &type;
    }
    return nullptr;
  }
  void add_tensor(const String& name, const ElementType& type, const TensorShape& shape,
                  std::span<const std::byte> data) {
    TensorView& tensor = file.tensors_.emplace_back(allocator);
    tensor.name = name;
    tensor.dtype = dtype_of(type);
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
  constexpr size_t kChunk = size_t{1} << 30U;
  for (size_t begin = 0; begin < out.size(); begin += kChunk) {
    const size_t n = std::min(kChunk, out.size() - begin);
    read_floats(data.data(), dtype, begin, static_cast<int32_t>(n), out.data() + begin);
  }
}

SafetensorsFile::SafetensorsFile(Allocator& allocator, std::span<const std::byte> bytes)
    : tensors_(allocator), metadata_(allocator) {
  Target target{allocator, *this};
  SafetensorsHeader<Target>::read(bytes, target);
  std::sort(tensors_.begin(), tensors_.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  for (size_t i = 1; i < tensors_.size(); ++i) {
    if (tensors_[i - 1].name != tensors_[i].name) continue;
    fail(KVQ_E_FORMAT, "safetensors: tensor '%s' occurs twice", Quoted(tensors_[i].name).c_str());
  }
  std::sort(metadata_.begin(), metadata_.end(), [](const auto& a, const auto& b) { return a.key < b.key; });
  for (size_t i = 1; i < metadata_.size(); ++i) {
    if (metadata_[i - 1].key != metadata_[i].key) continue;
    fail(KVQ_E_FORMAT, "safetensors: metadata '%s' occurs twice", Quoted(metadata_[i].key).c_str());
  }
  Vector<const TensorView*> in_order(allocator);
  in_order.reserve(tensors_.size());
  for (const TensorView& tensor : tensors_) in_order.push_back(&tensor);
  SafetensorsHeader<Target>::check_coverage(bytes, in_order, target);
}

const TensorView* SafetensorsFile::find(std::string_view name) const {
  const auto found = std::lower_bound(tensors_.begin(), tensors_.end(), name,
                                      [](const TensorView& each, std::string_view key) { return each.name < key; });
  return found != tensors_.end() && found->name == name ? &*found : nullptr;
}

const String* SafetensorsFile::metadata(std::string_view key) const {
  const auto found = std::lower_bound(metadata_.begin(), metadata_.end(), key,
                                      [](const MetadataEntry& each, std::string_view k) { return each.key < k; });
  return found != metadata_.end() && found->key == key ? &found->value : nullptr;
}

}  // namespace kvq::io
