#include "bench/linear_timing.h"

#include <algorithm>
#include <numeric>

#include "bench/random_layer.h"
#include "llama/safetensors.h"

namespace cli {
namespace {

constexpr const char* kName = "w";
constexpr uint64_t kMostMatrices = 256;
constexpr size_t kLeastRecorded = 32;  // calls, so that what surrounds them hardly counts
constexpr uint64_t kWeightSeed = 1;
constexpr uint64_t kLinearInputSeed = 2;

// Size of the block that a matrix repeats: codes of 16 rows lie together, and those of so many columns are whole tiles,
// with odd quarters of a bit, too.
constexpr int64_t kBlockRows = 16;
constexpr int64_t kBlockColumns = 256;

std::vector<std::byte> block_file(kvq_context* context, const std::string& scheme, int64_t columns) {
  auto options = kvq::initialised<qp_quantize_options>();
  options.scheme = scheme.c_str();
  const std::vector<float> weights = normal_numbers(static_cast<size_t>(kBlockRows * columns), kWeightSeed);
  return kvq::Matrix::quantize(context, options, weights, kBlockRows, columns).save(kName);
}

std::vector<std::byte> repeated(std::span<const std::byte> bytes, size_t size) {
  std::vector<std::byte> result(size);
  for (size_t begin = 0; begin < size; begin += bytes.size()) {
    const auto piece = bytes.first(std::min(bytes.size(), size - begin));
    std::ranges::copy(piece, result.begin() + static_cast<std::ptrdiff_t>(begin));
  }
  return result;
}

/// A file of a matrix whose codes are those of one block, again and again: to quantize them all would take minutes, and
/// to multiply by them takes as long.
std::vector<std::byte> matrix_file(std::span<const std::byte> block, int64_t columns, int64_t out, int64_t in) {
  llama::SafetensorsContent content = llama::read_safetensors(block, "a block");
  const std::string prefix = std::string(kName) + ".";
  content.metadata[prefix + "out"] = std::to_string(out);
  content.metadata[prefix + "in"] = std::to_string(in);
  const auto shape_of = [&](const llama::TensorView& tensor) -> std::vector<int64_t> {
    if (tensor.name == prefix + "scales") return {out};
    if (tensor.name == prefix + "signs") return {in / 8};
    return {(out + kBlockRows - 1) / kBlockRows, tensor.shape.back() * in / columns};
  };
  std::vector<std::vector<std::byte>> tensors;
  for (llama::TensorView& tensor : content.tensors) {
    const size_t element = tensor.data.size() / static_cast<size_t>(tensor.elements());
    tensor.shape = shape_of(tensor);
    tensor.data = tensors.emplace_back(repeated(tensor.data, element * static_cast<size_t>(tensor.elements())));
  }
  std::vector<std::byte> file;
  llama::write_safetensors(
      content, [&file](std::span<const std::byte> bytes) { file.insert(file.end(), bytes.begin(), bytes.end()); });
  return file;
}

}  // namespace

int64_t LinearShape::all_outputs() const { return std::accumulate(also.begin(), also.end(), out); }

const std::vector<std::byte>& RandomMatrices::file(int64_t out, int64_t in) {
  std::vector<std::byte>& file = files_[{out, in}];
  if (!file.empty()) return file;
  const int64_t columns = std::gcd(in, kBlockColumns);
  std::vector<std::byte>& block = blocks_[columns];
  if (block.empty()) block = block_file(context_, scheme_, columns);
  file = matrix_file(block, columns, out, in);
  return file;
}

kvq::Matrix RandomMatrices::load(int64_t out, int64_t in) { return kvq::Matrix::load(context_, file(out, in), kName); }

TimedLinear::TimedLinear(TimedDevice& device, kvq_context* context, const Tuning& tuning, const std::string& scheme,
                         const LinearShape& shape)
    : device_(&device),
      x_(random_scalars(device, static_cast<size_t>(shape.batch * shape.in), kLinearInputSeed, shape.dtype)),
      batch_(shape.batch),
      dtype_(shape.dtype) {
  RandomMatrices random(context, scheme);
  load(random, shape);
  for (const kvq::Matrix& matrix : layers_.front()) {
    const qp_matrix_info info = matrix.describe();
    bytes_ += info.bytes;
    bits_ = info.bits;
    const size_t outputs = static_cast<size_t>(shape.batch * info.rows);
    y_.push_back(device.upload(std::vector<std::byte>(outputs * bytes_of(shape.dtype))));
  }
  tuning.measure(kvq::pointers(layers_.front()), batch_);
  multiply(layers_.front());  // a matrix may make work space when it first sees a batch of this size
  const uint64_t wanted = std::min(device.bytes_to_rotate(shape.recorded), shape.most_bytes);
  while (layers_.size() * bytes_ < wanted && layers_.size() < kMostMatrices) {
    load(random, shape);
    multiply(layers_.back());
  }
  if (shape.recorded) record(context);
}

void TimedLinear::load(RandomMatrices& random, const LinearShape& shape) {
  Layer& layer = layers_.emplace_back();
  layer.push_back(random.load(shape.out, shape.in));
  for (const int64_t out : shape.also) layer.push_back(random.load(out, shape.in));
}

void TimedLinear::multiply(const Layer& layer) {
  std::vector<void*> outputs;
  for (const DeviceBuffer& y : y_) outputs.push_back(y.get());
  kvq::Matrix::linear_shared(kvq::pointers(layer), x_.get(), batch_, outputs, dtype_);
}

void TimedLinear::record(kvq_context* context) {
  recorded_calls_ = std::max(layers_.size(), kLeastRecorded);
  recorded_ = device_->record(context, [this] {
    for (size_t call = 0; call < recorded_calls_; ++call) multiply(layers_[call % layers_.size()]);
  });
}

double TimedLinear::run() {
  if (recorded_) return device_->time(recorded_) / static_cast<double>(recorded_calls_);
  const Layer& layer = layers_[runs_++ % layers_.size()];
  const auto call = [&] { multiply(layer); };
  if (device_->forgets_instructions()) call();
  return device_->time(call);
}

uint64_t timing_memory(const TimedDevice& device, const LinearShape& shape, size_t subjects) {
  const auto outputs = static_cast<uint64_t>(shape.all_outputs());
  const uint64_t fp16 = outputs * static_cast<uint64_t>(shape.in) * 2;
  const uint64_t rows = static_cast<uint64_t>(shape.batch) * (static_cast<uint64_t>(shape.in) + outputs);
  return subjects * (fp16 + device.bytes_to_rotate(shape.recorded) + rows * bytes_of(shape.dtype)) + 2 * fp16;
}

}  // namespace cli
