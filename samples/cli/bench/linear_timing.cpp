#include "bench/linear_timing.h"

#include <algorithm>
#include <numeric>

#include "bench/random_layer.h"
#include "llama/safetensors.h"

namespace cli {
namespace {

constexpr const char* kName = "w";
constexpr int64_t kPanelRows = 16;  // codes of a matrix are those of its panels of so many rows
constexpr uint64_t kMostMatrices = 256;
constexpr uint64_t kWeightSeed = 1;
constexpr uint64_t kInputSeed = 2;

/// Stretches a tensor along its first dimension from `old_rows` of the matrix to `rows` by repeating it.
class Repeated {
 public:
  Repeated(const llama::TensorView& tensor, int64_t old_rows, int64_t rows) : tensor_(tensor) {
    tensor_.shape.front() = tensor.shape.front() * rows / old_rows;
    bytes_.resize(tensor.data.size() / static_cast<size_t>(old_rows) * static_cast<size_t>(rows));
    for (size_t begin = 0; begin < bytes_.size(); begin += tensor.data.size()) {
      const auto piece = tensor.data.first(std::min(tensor.data.size(), bytes_.size() - begin));
      std::ranges::copy(piece, bytes_.begin() + static_cast<std::ptrdiff_t>(begin));
    }
    tensor_.data = bytes_;
  }

  const llama::TensorView& tensor() const { return tensor_; }

 private:
  llama::TensorView tensor_;
  std::vector<std::byte> bytes_;
};

std::vector<std::byte> panel_file(kvq_context* context, const std::string& scheme, int64_t in) {
  auto options = kvq::initialised<qp_quantize_options>();
  options.scheme = scheme.c_str();
  const std::vector<float> weights = normal_numbers(static_cast<size_t>(kPanelRows * in), kWeightSeed);
  return kvq::Matrix::quantize(context, options, weights, kPanelRows, in).save(kName);
}

/// A file of a matrix whose rows are those of one panel, again and again: to quantize them all would take minutes, and
/// to multiply by them takes as long.
std::vector<std::byte> matrix_file(std::span<const std::byte> panel, int64_t out) {
  llama::SafetensorsContent content = llama::read_safetensors(panel, "a panel");
  content.metadata[std::string(kName) + ".out"] = std::to_string(out);
  std::vector<Repeated> repeated;
  repeated.reserve(content.tensors.size());
  for (llama::TensorView& tensor : content.tensors) {
    const bool codes = tensor.name.ends_with(".codes");
    if (!codes && !tensor.name.ends_with(".scales")) continue;
    const int64_t rows = codes ? (out + kPanelRows - 1) / kPanelRows * kPanelRows : out;
    tensor = repeated.emplace_back(tensor, kPanelRows, rows).tensor();
  }
  std::vector<std::byte> file;
  llama::write_safetensors(
      content, [&file](std::span<const std::byte> bytes) { file.insert(file.end(), bytes.begin(), bytes.end()); });
  return file;
}

}  // namespace

int64_t LinearShape::all_outputs() const { return std::accumulate(also.begin(), also.end(), out); }

kvq::Matrix random_linear(kvq_context* context, const std::string& scheme, int64_t out, int64_t in) {
  return kvq::Matrix::load(context, matrix_file(panel_file(context, scheme, in), out), kName);
}

TimedLinear::TimedLinear(TimedDevice& device, kvq_context* context, const std::string& scheme, const LinearShape& shape)
    : device_(&device),
      x_(random_scalars(device, static_cast<size_t>(shape.batch * shape.in), kInputSeed)),
      batch_(shape.batch) {
  const std::vector<std::byte> panel = panel_file(context, scheme, shape.in);
  std::vector<std::vector<std::byte>> files = {matrix_file(panel, shape.out)};
  for (const int64_t out : shape.also) files.push_back(matrix_file(panel, out));
  load(context, files);
  for (const kvq::Matrix& matrix : layers_.front()) {
    const qp_matrix_info info = matrix.describe();
    bytes_ += info.bytes;
    bits_ = info.bits;
    y_.push_back(device.upload(std::vector<std::byte>(static_cast<size_t>(shape.batch * info.rows) * sizeof(float))));
  }
  run();  // a matrix may make work space when it first sees a batch of this size
  const uint64_t wanted = std::min(device.bytes_to_rotate(), shape.most_bytes);
  while (layers_.size() * bytes_ < wanted && layers_.size() < kMostMatrices) {
    load(context, files);
    run();
  }
}

void TimedLinear::load(kvq_context* context, std::span<const std::vector<std::byte>> files) {
  std::vector<kvq::Matrix>& matrices = layers_.emplace_back();
  for (const std::vector<std::byte>& file : files) matrices.push_back(kvq::Matrix::load(context, file, kName));
}

double TimedLinear::run() {
  const std::vector<kvq::Matrix>& layer = layers_[runs_++ % layers_.size()];
  std::vector<const qp_matrix*> matrices;
  std::vector<void*> outputs;
  for (size_t i = 0; i < layer.size(); ++i) {
    matrices.push_back(layer[i]);
    outputs.push_back(y_[i].get());
  }
  return device_->time([&] { kvq::Matrix::linear_shared(matrices, x_.get(), batch_, outputs, KVQ_F32); });
}

uint64_t timing_memory(const TimedDevice& device, const LinearShape& shape, size_t subjects) {
  const auto outputs = static_cast<uint64_t>(shape.all_outputs());
  const uint64_t fp16 = outputs * static_cast<uint64_t>(shape.in) * 2;
  const uint64_t rows = static_cast<uint64_t>(shape.batch) * (static_cast<uint64_t>(shape.in) + outputs);
  return subjects * (fp16 + device.bytes_to_rotate() + rows * sizeof(float)) + 2 * fp16;
}

}  // namespace cli
