#include "io/matrix_file.h"

#include "core/checks.h"
#include "core/error.h"
#include "core/float16.h"
#include "core/text.h"
#include "io/metadata_fields.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

namespace kvq::io {
namespace {

/// "<name>.<field>".
class FieldKey {
 public:
  FieldKey(std::string_view name, const char* field) {
    std::snprintf(text_.data(), text_.size(), "%.*s.%s", static_cast<int>(name.size()), name.data(), field);
  }
  operator const char*() const { return text_.data(); }
  operator std::string_view() const { return text_.data(); }

 private:
  std::array<char, kMaxMatrixName + 24> text_{};
};

std::span<const std::byte> bytes_of(const auto& numbers) { return std::as_bytes(std::span(numbers)); }

TensorShape codes_shape(const weights::Scheme& scheme, int32_t out, int32_t in) {
  return {weights::panels_of(out), static_cast<int64_t>(weights::panel_bytes(scheme, in))};
}

/// Data of the tensor `name`; throws unless it has this type and shape.
std::span<const std::byte> read_raw(const SafetensorsFile& file, const FieldKey& name, kvq_dtype dtype,
                                    const TensorShape& shape) {
  const TensorView* tensor = file.find(name);
  if (tensor == nullptr) fail(KVQ_E_FORMAT, "weights: tensor '%s' is missing", Quoted(name).c_str());
  if (tensor->dtype != dtype || !(tensor->shape == shape)) {
    fail(KVQ_E_FORMAT, "weights: tensor '%s' has another type or shape than scheme, out and in tell",
         Quoted(name).c_str());
  }
  return tensor->data;
}

weights::Scheme read_scheme(const MetadataFields& fields, const FieldKey& key) {
  const std::optional<weights::Scheme> scheme = weights::parse_scheme(fields.text(key));
  if (!scheme.has_value()) fields.refuse(key, "the name of a scheme");
  return *scheme;
}

int32_t read_size(const MetadataFields& fields, const FieldKey& key, int32_t multiple, int32_t most) {
  const auto size = fields.number<int32_t>(key);
  if (size < multiple || size > most || size % multiple != 0) fields.refuse(key, "a size that a matrix can have");
  return size;
}

void read_scales(const SafetensorsFile& file, std::string_view name, weights::Matrix& matrix) {
  const FieldKey key(name, "scales");
  const auto data = read_raw(file, key, KVQ_F16, {matrix.out});
  std::memcpy(matrix.row_scales.data(), data.data(), data.size());
  const auto bad = std::find_if(matrix.row_scales.begin(), matrix.row_scales.end(),
                                [](uint16_t half) { return !is_finite_float16(half) || from_float16(half) < 0.0F; });
  if (bad == matrix.row_scales.end()) return;
  fail(KVQ_E_FORMAT, "weights: tensor '%s': number %td is %g, must be finite and not negative", Quoted(key).c_str(),
       bad - matrix.row_scales.begin(), static_cast<double>(from_float16(*bad)));
}

}  // namespace

void begin_matrix_file(SafetensorsWriter& file) {
  file.add_metadata("type", kMatrixType);
  file.add_metadata("version", NumberText(kMatrixFileVersion));
}

void add_matrix(SafetensorsWriter& file, std::string_view name, const weights::Matrix& matrix) {
  if (name.empty()) fail(KVQ_E_ARGUMENT, "a name is empty");
  check_note(name, kMaxMatrixName, "a name");
  file.add_metadata(FieldKey(name, "scheme"), weights::scheme_name(matrix.scheme).data());
  file.add_metadata(FieldKey(name, "out"), NumberText(matrix.out));
  file.add_metadata(FieldKey(name, "in"), NumberText(matrix.in));
  file.add_metadata(FieldKey(name, "error"), NumberText(matrix.error));
  file.add_metadata(FieldKey(name, "proxy_error"), NumberText(matrix.proxy_error));
  file.add_raw(FieldKey(name, "codes"), kU8, codes_shape(matrix.scheme, matrix.out, matrix.in),
               {matrix.codes.data(), matrix.code_bytes()});
  if (!matrix.row_scales.empty()) {
    file.add_metadata(FieldKey(name, "scale"), NumberText(matrix.scale));
    file.add_raw(FieldKey(name, "scales"), KVQ_F16, {matrix.out}, bytes_of(matrix.row_scales));
    file.add_raw(FieldKey(name, "signs"), kU8, {matrix.in / 8}, bytes_of(matrix.signs));
  }
  if (!matrix.bias.empty()) file.add_raw(FieldKey(name, "bias"), KVQ_F32, {matrix.out}, bytes_of(matrix.bias));
}

weights::Matrix read_matrix(Allocator& allocator, std::span<const std::byte> bytes, std::string_view name) {
  const SafetensorsFile file(allocator, bytes);
  const MetadataFields fields(file, "weights");
  fields.check_type(kMatrixType, kMatrixFileVersion);
  if (name.size() > kMaxMatrixName || !fields.has(FieldKey(name, "scheme"))) {
    fail(KVQ_E_ARGUMENT, "name is '%s', the file has no such matrix", Quoted(name).c_str());
  }
  const weights::Scheme scheme = read_scheme(fields, {name, "scheme"});
  const int32_t out = read_size(fields, {name, "out"}, 1, weights::kMostRows);
  const int32_t in = read_size(fields, {name, "in"}, weights::kInputMultiple, weights::kMostColumns);
  // Sizes come from the file: check that it has the codes before allocating memory for them.
  const auto codes = read_raw(file, {name, "codes"}, kU8, codes_shape(scheme, out, in));
  weights::Matrix matrix(allocator, scheme, out, in);
  std::copy(codes.begin(), codes.end(), matrix.codes.data());
  matrix.error = fields.amount(FieldKey(name, "error"));
  matrix.proxy_error = fields.amount(FieldKey(name, "proxy_error"));
  if (!matrix.row_scales.empty()) {
    matrix.scale = fields.number<float>(FieldKey(name, "scale"));
    if (!(matrix.scale > 0.0F && std::isfinite(matrix.scale))) {
      fields.refuse(FieldKey(name, "scale"), "finite and positive");
    }
    read_scales(file, name, matrix);
    const auto signs = read_raw(file, {name, "signs"}, kU8, {in / 8});
    std::memcpy(matrix.signs.data(), signs.data(), signs.size());
  }
  const FieldKey bias(name, "bias");
  if (file.find(bias) != nullptr) {
    const auto data = read_raw(file, bias, KVQ_F32, {out});
    matrix.bias.resize(static_cast<size_t>(out));
    std::memcpy(matrix.bias.data(), data.data(), data.size());
    if (!std::all_of(matrix.bias.begin(), matrix.bias.end(), [](float x) { return std::isfinite(x); })) {
      fail(KVQ_E_FORMAT, "weights: tensor '%s' has a number that is not finite", Quoted(bias).c_str());
    }
  }
  return matrix;
}

}  // namespace kvq::io
