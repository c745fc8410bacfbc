#include "linear/measured_kernels.h"

#include "core/error.h"
#include "core/text.h"
#include "weights/scheme.h"

#include <charconv>
#include <cstddef>
#include <optional>

namespace kvq::cuda {
namespace {

constexpr std::string_view kTitle = "kvq tuning 1";
constexpr std::string_view kColumns = "device\tscheme\toutputs\tinputs\trows\tway";
constexpr size_t kFields = 6;
using Fields = std::array<std::string_view, kFields>;

/// Removes and returns the text before the first `separator`, or all; removes the separator, too.
std::string_view take(std::string_view& text, char separator) {
  const size_t end = text.find(separator);
  const std::string_view taken = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return taken;
}

std::optional<Fields> fields_of(std::string_view line) {
  Fields fields;
  for (std::string_view& field : fields) {
    field = take(line, '\t');
    if (field.empty()) return std::nullopt;
  }
  if (!line.empty()) return std::nullopt;
  return fields;
}

/// A positive integer.
std::optional<int32_t> number_of(std::string_view text) {
  int32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 1) return std::nullopt;
  return number;
}

std::optional<LinearShape> shape_of(const Fields& fields) {
  const std::optional<weights::Scheme> scheme = weights::parse_scheme(fields[1]);
  const std::optional<int32_t> in = number_of(fields[3]);
  const std::optional<int32_t> rows = number_of(fields[4]);
  if (!scheme || !in || !rows || fields[2].back() == '+') return std::nullopt;
  LinearShape shape;
  shape.scheme = weights::index_of(*scheme);
  shape.in = *in;
  shape.rows = *rows;
  std::string_view outs = fields[2];
  for (size_t i = 0; !outs.empty(); ++i) {
    const std::optional<int32_t> out = number_of(take(outs, '+'));
    if (!out || i == LinearShape::kMostMatrices) return std::nullopt;
    shape.outs[i] = *out;
  }
  return shape;
}

std::string text_of(const LinearShape& shape) {
  std::string outs;
  for (const int32_t out : shape.outs) {
    if (out > 0) outs += (outs.empty() ? "" : "+") + std::to_string(out);
  }
  const auto scheme = weights::scheme_name(weights::kSchemes[static_cast<size_t>(shape.scheme)]);
  return std::string(scheme.data()) + '\t' + outs + '\t' + std::to_string(shape.in) + '\t' + std::to_string(shape.rows);
}

constexpr std::string_view kFusedName = "own";
constexpr std::string_view kFewRowsName = "few";
constexpr std::string_view kTilesName = "tiles";

std::string text_of(const LinearKernel& kernel) {
  if (kernel == kFusedInputs) return std::string(kFusedName);
  if (kernel == kFewRows) return std::string(kFewRowsName);
  return std::string(kTilesName) + ' ' + std::to_string(kernel.tile_rows) + ' ' + std::to_string(kernel.cluster);
}

std::optional<LinearKernel> kernel_of(std::string_view text) {
  if (text == kFusedName) return kFusedInputs;
  if (text == kFewRowsName) return kFewRows;
  if (take(text, ' ') != kTilesName) return std::nullopt;
  const std::optional<int32_t> tile_rows = number_of(take(text, ' '));
  const std::optional<int32_t> cluster = number_of(text);
  if (!tile_rows || !cluster) return std::nullopt;
  return LinearKernel{false, *tile_rows, *cluster};
}

}  // namespace

const LinearKernel* MeasuredKernels::find(const LinearShape& shape) const {
  const auto found = kernels_.find(shape);
  return found == kernels_.end() ? nullptr : &found->second;
}

std::string MeasuredKernels::text() const {
  std::string text = std::string(kTitle) + '\n' + std::string(kColumns) + '\n';
  for (const auto& [shape, kernel] : kernels_) {
    text.append(device_).append("\t").append(text_of(shape)).append("\t").append(text_of(kernel)).append("\n");
  }
  for (const auto& [key, kernel] : others_) text.append(key).append("\t").append(kernel).append("\n");
  return text;
}

void MeasuredKernels::load(std::string_view text) {
  if (const std::string_view title = take(text, '\n'); title != kTitle) {
    fail(title.starts_with("kvq tuning ") ? KVQ_E_MISMATCH : KVQ_E_FORMAT,
         "line 1 of the tuning is \"%s\", must be \"%s\"", Quoted(title).c_str(), std::string(kTitle).c_str());
  }
  MeasuredKernels loaded = *this;
  take(text, '\n');  // names of columns
  for (int32_t number = 3; !text.empty(); ++number) {
    const std::string_view line = take(text, '\n');
    const std::optional<Fields> fields = fields_of(line);
    const std::optional<LinearShape> shape = fields ? shape_of(*fields) : std::nullopt;
    const std::optional<LinearKernel> kernel = fields ? kernel_of(fields->back()) : std::nullopt;
    if (!shape || !kernel) {
      fail(KVQ_E_FORMAT,
           "line %d of the tuning is \"%s\", must be a device, a scheme, outputs (4096+1024), inputs, rows and a way "
           "(own, few, or tiles and two numbers), with tabs between them",
           number, Quoted(line).c_str());
    }
    if (fields->front() == device_) {
      loaded.put(*shape, *kernel);
    } else {
      loaded.others_[std::string(line.substr(0, line.size() - fields->back().size() - 1))] = fields->back();
    }
  }
  *this = std::move(loaded);
}

}  // namespace kvq::cuda
