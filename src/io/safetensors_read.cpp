#include "core/error.h"
#include "core/tensor.h"
#include "core/text.h"
#include "io/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>

namespace kvq::io {
namespace {

static_assert(std::endian::native == std::endian::little, "tensors are read as they lie in the file");

constexpr size_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the reference implementation's limit

std::string_view header_of(std::span<const std::byte> bytes) {
  if (bytes.size() < kLengthBytes) {
    fail(KVQ_E_FORMAT, "safetensors: size is %zu bytes, too short for the length of a header", bytes.size());
  }
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), kLengthBytes);
  const uint64_t most = std::min<uint64_t>(bytes.size() - kLengthBytes, kMaxHeaderBytes);
  if (length > most) {
    fail(KVQ_E_FORMAT, "safetensors: header length is %llu, but at most %llu bytes can follow",
         static_cast<unsigned long long>(length), static_cast<unsigned long long>(most));
  }
  const auto* text = reinterpret_cast<const char*>(bytes.data() + kLengthBytes);
  if (length == 0 || text[0] != '{') fail(KVQ_E_FORMAT, "safetensors: the header does not begin with '{'");
  return {text, static_cast<size_t>(length)};
}

kvq_dtype read_dtype(std::string_view spelling, const Quoted& tensor) {
  for (const kvq_dtype known : {kvq_dtype{KVQ_F32}, kvq_dtype{KVQ_F16}, kvq_dtype{KVQ_BF16}, kU8}) {
    if (spelling == dtype_name(known)) return known;
  }
  fail(KVQ_E_FORMAT, "safetensors: tensor '%s': dtype is '%s', must be F32, F16, BF16 or U8", tensor.c_str(),
       Quoted(spelling).c_str());
}

}  // namespace

/// Takes a parser's events, so that no document is built and nesting is bounded.
class SafetensorsFile::HeaderReader {
 public:
  HeaderReader(Allocator& allocator, SafetensorsFile& file, std::span<const std::byte> data)
      : allocator_(allocator), file_(file), data_(data), tensor_(allocator), key_(allocator) {}

  bool start_object(size_t /*members*/) {
    if (place_ == Place::kStart) {
      place_ = Place::kRoot;
    } else if (place_ == Place::kRoot && key_ == kMetadataName) {
      if (has_metadata_) fail(KVQ_E_FORMAT, "safetensors: %s occurs twice", kMetadataName);
      has_metadata_ = true;
      place_ = Place::kMetadata;
    } else if (place_ == Place::kRoot) {
      tensor_.name = key_;
      tensor_.shape = {};
      seen_ = 0;
      n_offsets_ = 0;
      place_ = Place::kTensor;
    } else {
      refuse("an object");
    }
    return true;
  }
  bool end_object() {
    if (place_ == Place::kTensor) add_tensor();
    place_ = place_ == Place::kRoot ? Place::kStart : Place::kRoot;
    return true;
  }
  bool start_array(size_t /*elements*/) {
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
    place_ = Place::kTensor;
    return true;
  }
  bool key(std::string& name) {
    if (place_ == Place::kTensor) {
      begin_field(name);
    } else {
      key_.assign(name.data(), name.size());
    }
    return true;
  }
  bool string(std::string& value) {
    if (place_ == Place::kMetadata) {
      const StlAllocator<char> text(allocator_);
      file_.metadata_.push_back({String(key_, text), String(value.data(), value.size(), text)});
    } else if (place_ == Place::kTensor && field_ == kDtype) {
      tensor_.dtype = read_dtype(value, Quoted(tensor_.name));
    } else {
      refuse("a string");
    }
    return true;
  }
  bool number_unsigned(uint64_t value) {
    if (place_ == Place::kSizes) {
      if (value > INT64_MAX || !tensor_.shape.append(static_cast<int64_t>(value))) {
        fail(KVQ_E_FORMAT, "safetensors: tensor '%s': shape has a size of %llu, or more than %zu of them",
             Quoted(tensor_.name).c_str(), static_cast<unsigned long long>(value), TensorShape::kMaxRank);
      }
    } else if (place_ == Place::kRange && n_offsets_ < 2) {
      offsets_[n_offsets_++] = value;
    } else {
      refuse("a number");
    }
    return true;
  }
  bool number_integer(int64_t /*value*/) { return refuse("a negative number"); }
  bool number_float(double /*value*/, const std::string& /*text*/) { return refuse("a fraction"); }
  bool boolean(bool /*value*/) { return refuse("a boolean"); }
  bool null() { return refuse("null"); }
  bool binary(nlohmann::json::binary_t& /*value*/) { return refuse("binary data"); }
  bool parse_error(size_t position, const std::string& /*token*/, const nlohmann::json::exception& error) {
    fail(KVQ_E_FORMAT, "safetensors: byte %zu of the header: %.160s", position, error.what());
  }

 private:
  enum class Place { kStart, kRoot, kMetadata, kTensor, kSizes, kRange };
  enum Field : unsigned { kDtype = 1, kShape = 2, kOffsets = 4, kAllFields = 7 };
  static constexpr const char* kMetadataName = "__metadata__";

  [[noreturn]] bool refuse(const char* found) const {
    const bool in_tensor = place_ == Place::kTensor || place_ == Place::kSizes || place_ == Place::kRange;
    if (!in_tensor) fail(KVQ_E_FORMAT, "safetensors: '%s' is or holds %s", Quoted(key_).c_str(), found);
    fail(KVQ_E_FORMAT, "safetensors: tensor '%s': %s is or holds %s", Quoted(tensor_.name).c_str(), name_of(field_),
         found);
  }

  static const char* name_of(Field field) {
    return field == kDtype ? "dtype" : field == kShape ? "shape" : "data_offsets";
  }

  void begin_field(std::string_view name) {
    for (const Field field : {kDtype, kShape, kOffsets}) {
      if (name != name_of(field)) continue;
      if ((seen_ & field) != 0) {
        fail(KVQ_E_FORMAT, "safetensors: tensor '%s': %s occurs twice", Quoted(tensor_.name).c_str(), name_of(field));
      }
      seen_ |= field;
      field_ = field;
      return;
    }
    fail(KVQ_E_FORMAT, "safetensors: tensor '%s': unknown field '%s'", Quoted(tensor_.name).c_str(),
         Quoted(name).c_str());
  }

  void add_tensor() {
    const Quoted name(tensor_.name);
    for (const Field field : {kDtype, kShape, kOffsets}) {
      if ((seen_ & field) != 0) continue;
      fail(KVQ_E_FORMAT, "safetensors: tensor '%s': %s is missing", name.c_str(), name_of(field));
    }
    const auto [begin, end] = offsets_;
    if (n_offsets_ != 2 || begin > end || end > data_.size()) {
      fail(KVQ_E_FORMAT, "safetensors: tensor '%s': data_offsets are [%llu, %llu], in %zu bytes of data", name.c_str(),
           static_cast<unsigned long long>(begin), static_cast<unsigned long long>(end), data_.size());
    }
    uint64_t bytes = element_bytes(tensor_.dtype);
    for (const int64_t size : tensor_.shape.sizes()) {
      if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(size), &bytes) || bytes > INT64_MAX) {
        fail(KVQ_E_FORMAT, "safetensors: tensor '%s': shape overflows", name.c_str());
      }
    }
    if (bytes != end - begin) {
      fail(KVQ_E_FORMAT, "safetensors: tensor '%s': data_offsets span %llu bytes, shape and dtype need %llu",
           name.c_str(), static_cast<unsigned long long>(end - begin), static_cast<unsigned long long>(bytes));
    }
    tensor_.data = data_.subspan(static_cast<size_t>(begin), static_cast<size_t>(bytes));
    file_.tensors_.push_back(tensor_);
  }

  Allocator& allocator_;
  SafetensorsFile& file_;
  std::span<const std::byte> data_;

  Place place_ = Place::kStart;
  bool has_metadata_ = false;
  TensorView tensor_;  // being read
  String key_;         // of the root or of the metadata
  Field field_ = kDtype;
  unsigned seen_ = 0;  // Fields
  std::array<uint64_t, 2> offsets_{};
  size_t n_offsets_ = 0;
};

const char* dtype_name(kvq_dtype dtype) {
  if (dtype == kU8) return "U8";
  return dtype == KVQ_F32 ? "F32" : dtype == KVQ_F16 ? "F16" : "BF16";
}

void TensorView::read(std::span<float> out) const {
  constexpr size_t kStretch = size_t{1} << 30U;
  for (size_t begin = 0; begin < out.size(); begin += kStretch) {
    const size_t n = std::min(kStretch, out.size() - begin);
    read_floats(data.data(), dtype, begin, static_cast<int32_t>(n), out.data() + begin);
  }
}

SafetensorsFile::SafetensorsFile(Allocator& allocator, std::span<const std::byte> bytes)
    : tensors_(allocator), metadata_(allocator) {
  const std::string_view header = header_of(bytes);
  const auto data = bytes.subspan(kLengthBytes + header.size());
  HeaderReader reader(allocator, *this, data);
  nlohmann::json::sax_parse(header.begin(), header.end(), &reader);

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
  check_coverage(data);
}

void SafetensorsFile::check_coverage(std::span<const std::byte> data) const {
  Vector<const TensorView*> in_order(tensors_.get_allocator());
  in_order.reserve(tensors_.size());
  for (const TensorView& tensor : tensors_) in_order.push_back(&tensor);
  std::sort(in_order.begin(), in_order.end(), [](const TensorView* a, const TensorView* b) {
    return a->data.data() != b->data.data() ? a->data.data() < b->data.data() : a->data.size() < b->data.size();
  });
  const std::byte* expected = data.data();
  for (const TensorView* tensor : in_order) {
    if (tensor->data.data() != expected) {
      fail(KVQ_E_FORMAT, "safetensors: tensor '%s': data_offsets begin at %zu, but the tensor before it ends at %zu",
           Quoted(tensor->name).c_str(), static_cast<size_t>(tensor->data.data() - data.data()),
           static_cast<size_t>(expected - data.data()));
    }
    expected += tensor->data.size();
  }
  if (expected != data.data() + data.size()) {
    fail(KVQ_E_FORMAT, "safetensors: the tensors end at byte %zu of %zu bytes of data",
         static_cast<size_t>(expected - data.data()), data.size());
  }
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
