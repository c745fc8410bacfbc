#include "bench/linear_timing.h"

#include <algorithm>

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

/// A file of a matrix whose rows are those of one panel, again and again: to quantize them all would take minutes, and
/// to multiply by them takes as long.
std::vector<std::byte> matrix_file(kvq_context* context, const std::string& scheme, const LinearShape& shape) {
  auto options = kvq::initialised<qp_quantize_options>();
  options.scheme = scheme.c_str();
  const std::vector<float> weights = normal_numbers(static_cast<size_t>(kPanelRows * shape.in), kWeightSeed);
  const kvq::Matrix panel = kvq::Matrix::quantize(context, options, weights, kPanelRows, shape.in);
  const std::vector<std::byte> small = panel.save(kName);

  llama::SafetensorsContent content = llama::read_safetensors(small, scheme);
  content.metadata[std::string(kName) + ".out"] = std::to_string(shape.out);
  std::vector<Repeated> repeated;
  repeated.reserve(content.tensors.size());
  for (llama::TensorView& tensor : content.tensors) {
    const bool codes = tensor.name.ends_with(".codes");
    if (!codes && !tensor.name.ends_with(".scales")) continue;
    const int64_t rows = codes ? (shape.out + kPanelRows - 1) / kPanelRows * kPanelRows : shape.out;
    tensor = repeated.emplace_back(tensor, kPanelRows, rows).tensor();
  }
  std::vector<std::byte> file;
  llama::write_safetensors(
      content, [&file](std::span<const std::byte> bytes) { file.insert(file.end(), bytes.begin(), bytes.end()); });
  return file;
}

}  // namespace

TimedLinear::TimedLinear(TimedDevice& device, kvq_context* context, const std::string& scheme, const LinearShape& shape)
    : device_(&device),
      x_(random_scalars(device, static_cast<size_t>(shape.batch * shape.in), kInputSeed)),
      y_(device.upload(std::vector<std::byte>(static_cast<size_t>(shape.batch * shape.out) * sizeof(float)))),
      batch_(shape.batch) {
  const std::vector<std::byte> file = matrix_file(context, scheme, shape);
  do {
    matrices_.push_back(kvq::Matrix::load(context, file, kName));
    const qp_matrix_info info = matrices_.front().describe();
    bytes_ = info.bytes;
    bits_ = info.bits;
    run();  // a matrix may make work space when it first sees a batch of this size
  } while (matrices_.size() * bytes_ < device.bytes_to_rotate() && matrices_.size() < kMostMatrices);
}

double TimedLinear::run() {
  const kvq::Matrix& matrix = matrices_[runs_++ % matrices_.size()];
  return device_->time([&] { matrix.linear(x_.get(), batch_, y_.get(), KVQ_F32); });
}

uint64_t timing_memory(const TimedDevice& device, const LinearShape& shape, size_t subjects) {
  const uint64_t fp16 = static_cast<uint64_t>(shape.out) * static_cast<uint64_t>(shape.in) * 2;
  const uint64_t rows = static_cast<uint64_t>(shape.batch) * static_cast<uint64_t>(shape.in + shape.out);
  return subjects * (fp16 + device.bytes_to_rotate() + rows * sizeof(float)) + 2 * fp16;
}

}  // namespace cli
