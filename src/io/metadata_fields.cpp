#include "io/metadata_fields.h"

#include "core/error.h"
#include "core/text.h"

#include <cmath>

namespace kvq::io {

String list_text(Allocator& allocator, std::span<const double> values) {
  String text(allocator);
  for (const double value : values) {
    if (!text.empty()) text += ' ';
    text += std::string_view(NumberText(value));
  }
  return text;
}

void MetadataFields::check_type(std::string_view type, int32_t version) const {
  const String* found = file_.metadata("type");
  if (found == nullptr || *found != type) {
    fail(KVQ_E_FORMAT, "%s: metadata type is not '%.*s'", content_, static_cast<int>(type.size()), type.data());
  }
  const auto written = number<int32_t>("version");
  if (written == version) return;
  fail(KVQ_E_MISMATCH, "%s: the file has version %d, this library reads version %d", content_, written, version);
}

std::string_view MetadataFields::text(const char* key) const {
  const String* value = file_.metadata(key);
  if (value == nullptr) fail(KVQ_E_FORMAT, "%s: metadata %s is missing", content_, key);
  return *value;
}

std::string_view MetadataFields::note(const char* key, size_t most) const {
  const std::string_view found = text(key);
  if (found.size() > most || found.find('\0') != std::string_view::npos) refuse(key, "a shorter text without NUL");
  return found;
}

double MetadataFields::amount(const char* key) const {
  const auto value = number<double>(key);
  if (!std::isfinite(value) || value < 0.0) refuse(key, "finite and not negative");
  return value;
}

void MetadataFields::amounts(const char* key, std::span<double> values, const char* expected) const {
  std::string_view rest = text(key);
  for (double& value : values) {
    const bool last = &value == &values.back();
    const size_t end = last ? rest.size() : rest.find(' ');
    if (end == std::string_view::npos || !parse_number(rest.substr(0, end), value)) refuse(key, expected);
    if (!std::isfinite(value) || value < 0.0) refuse(key, expected);
    rest.remove_prefix(last ? end : end + 1);
  }
  if (!rest.empty()) refuse(key, expected);
}

void MetadataFields::refuse(const char* key, const char* expected) const {
  fail(KVQ_E_FORMAT, "%s: metadata %s is '%s', expected %s", content_, key, Quoted(text(key)).c_str(), expected);
}

void MetadataFields::read_tensor(const char* name, kvq_dtype dtype, const TensorShape& shape,
                                 Vector<float>& numbers) const {
  const TensorView* tensor = file_.find(name);
  if (tensor == nullptr) fail(KVQ_E_FORMAT, "%s: tensor %s is missing", content_, name);
  if (tensor->dtype != dtype) {
    fail(KVQ_E_FORMAT, "%s: tensor %s: dtype is %s, must be %s", content_, name, dtype_name(tensor->dtype),
         dtype_name(dtype));
  }
  if (!(tensor->shape == shape)) {
    fail(KVQ_E_FORMAT, "%s: tensor %s: shape is not the one that the metadata demand: %zu numbers, not %zu", content_,
         name, tensor->shape.elements(), shape.elements());
  }
  numbers.resize(shape.elements());
  tensor->read(numbers);
}

void MetadataFields::check_tensor_count(size_t expected) const {
  if (file_.tensors().size() == expected) return;
  fail(KVQ_E_FORMAT, "%s: the file has %zu tensors, its metadata describe %zu", content_, file_.tensors().size(),
       expected);
}

void check_note(std::string_view note, size_t most, const char* argument) {
  if (note.size() > most) {
    fail(KVQ_E_ARGUMENT, "%s is %zu bytes long, at most %zu are kept", argument, note.size(), most);
  }
  if (!is_utf8(note)) fail(KVQ_E_ARGUMENT, "%s is not UTF-8: '%s'", argument, Quoted(note).c_str());
}

}  // namespace kvq::io
