#include "safetensors.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "core/float16.h"
#include "error.h"
#include "io/safetensors_header.h"
#include "json_document.h"

namespace llama {

namespace {

constexpr const char* kMetadata = "__metadata__";

struct Target {
  struct Shape : std::vector<int64_t> {
    bool append(int64_t size) {
      push_back(size);
      return true;
    }
    std::span<const int64_t> sizes() const { return *this; }
  };
  using Text = std::string;
  static constexpr bool kTakesUnknownFields = true;
  static constexpr const char* kTypesText = "which is not a dtype of the format";

  static std::string text() { return {}; }
  void add_metadata(const std::string& key, const std::string& value) {
    if (!content.metadata.emplace(key, value).second) refuse(("metadata " + in_quotes(key) + " occurs twice").c_str());
  }
  static const kvq::io::ElementType* find_type(std::string_view name) {
    const auto found = std::ranges::find(kvq::io::kElementTypes, name, &kvq::io::ElementType::name);
    return found != kvq::io::kElementTypes.end() ? &*found : nullptr;
  }
  void add_tensor(const std::string& name, const kvq::io::ElementType& type, const Shape& shape,
                  std::span<const std::byte> data) {
    content.tensors.push_back({name, type.name, shape, data});
  }
  /// As in_quotes(), without the quotes.
  static std::string quoted(std::string_view text) {
    const std::string in = in_quotes(text);
    return in.substr(1, in.size() - 2);
  }
  [[noreturn]] void refuse(const char* message) const { throw Error(source + ": " + message); }

  SafetensorsContent& content;
  const std::string& source;
};

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

int64_t dtype_bits(std::string_view dtype) { return Target::find_type(dtype)->bits; }

int64_t TensorView::elements() const {
  int64_t count = 1;
  for (int64_t size : shape) count *= size;
  return count;
}

kvq_dtype float_dtype(const TensorView& tensor) {
  if (tensor.dtype == "F32") return KVQ_F32;
  if (tensor.dtype == "F16") return KVQ_F16;
  if (tensor.dtype == "BF16") return KVQ_BF16;
  throw Error("tensor " + in_quotes(tensor.name) + ": dtype is " + std::string(tensor.dtype) +
              ", expected F32, F16 or BF16");
}

std::vector<float> to_float(const TensorView& tensor) {
  const kvq_dtype dtype = float_dtype(tensor);
  if (dtype == KVQ_F16) return widen_all<uint16_t>(tensor.data, kvq::from_float16);
  if (dtype == KVQ_BF16) return widen_all<uint16_t>(tensor.data, kvq::from_bfloat16);
  return widen_all<float>(tensor.data, [](float value) { return value; });
}

SafetensorsContent read_safetensors(std::span<const std::byte> bytes, const std::string& source) {
  using Header = kvq::io::SafetensorsHeader<Target>;
  SafetensorsContent content;
  Target target{content, source};
  Header::read(bytes, target);
  std::ranges::sort(content.tensors, {}, &TensorView::name);
  const auto twice = std::ranges::adjacent_find(content.tensors, {}, &TensorView::name);
  if (twice != content.tensors.end()) target.refuse(("tensor " + in_quotes(twice->name) + " occurs twice").c_str());
  std::vector<const TensorView*> in_order;
  for (const TensorView& tensor : content.tensors) in_order.push_back(&tensor);
  Header::check_coverage(bytes, in_order, target);
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
    document[tensor->name] = {{"dtype", tensor->dtype}, {"shape", tensor->shape}, {"data_offsets", {begin, end}}};
  }
  std::string header = document.dump();
  header.append((kAlignment - header.size() % kAlignment) % kAlignment, ' ');
  const uint64_t length = header.size();
  write(std::as_bytes(std::span(&length, 1)));
  write(std::as_bytes(std::span(header)));
  for (const TensorView* tensor : tensors) write(tensor->data);
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : file_(path), content_(read_safetensors(file_.bytes(), path.string())) {}

const TensorView* SafetensorsFile::find(std::string_view name) const {
  const std::vector<TensorView>& all = tensors();
  const auto found = std::ranges::lower_bound(all, name, {}, &TensorView::name);
  return found != all.end() && found->name == name ? &*found : nullptr;
}

}  // namespace llama
