#include "bench/decode_timing.h"

#include <algorithm>

#include "bench/timing.h"

namespace cli {
namespace {

constexpr uint64_t kDecodeInputSeed = 20;
constexpr uint64_t kDecodeQuerySeed = 21;
constexpr uint64_t kDecodeKeySeed = 22;
constexpr uint64_t kDecodeValueSeed = 23;
constexpr size_t kMostShared = 3;  // q, k and v

// Steps that a sequence has room for: all that are timed, in whole cycles, and those before.
constexpr int32_t kMostSteps = static_cast<int32_t>(kMaxRepetitions) + 3 * KVQ_PAGE_SLOTS;

size_t widest(const llama::ModelConfig& model, int64_t llama::LinearLayer::*side) {
  int64_t most = 0;
  for (const llama::LinearLayer& layer : llama::linear_layers(model, 0)) most = std::max(most, layer.*side);
  return static_cast<size_t>(most);
}

}  // namespace

DecoderWeights::DecoderWeights(kvq_context* context, const std::string& scheme, const llama::ModelConfig& model) {
  RandomMatrices random(context, scheme);
  for (int32_t i = 0; i < model.n_layers; ++i) {
    std::vector<Packed>& layer = layers_.emplace_back();
    for (const llama::LinearLayer& each : llama::linear_layers(model, i)) {
      layer.push_back({each.input, random.load(each.out, each.in)});
      bytes_ += layer.back().matrix.describe().bytes;
    }
  }
}

std::vector<const qp_matrix*> DecoderWeights::matrices(int32_t layer, llama::LinearInput input) const {
  std::vector<const qp_matrix*> shared;
  for (const Packed& each : layers_[static_cast<size_t>(layer)]) {
    if (each.input == input) shared.push_back(each.matrix);
  }
  return shared;
}

TimedDecode::TimedDecode(TimedDevice& device, kvq_context* context, const Tuning& tuning,
                         std::shared_ptr<const DecoderWeights> weights, const Spec& format, const DecodeShape& shape)
    : device_(&device),
      weights_(std::move(weights)),
      shape_(shape),
      x_(random_scalars(device, static_cast<size_t>(shape.batch) * widest(shape.model, &llama::LinearLayer::in),
                        kDecodeInputSeed, shape.dtype)),
      q_(random_scalars(device, shape.query_scalars(), kDecodeQuerySeed, shape.dtype)),
      k_(random_scalars(device, shape.key_scalars(), kDecodeKeySeed, shape.dtype)),
      v_(random_scalars(device, shape.key_scalars(), kDecodeValueSeed, shape.dtype)),
      attended_(random_scalars(device, shape.query_scalars(), kDecodeQuerySeed, shape.dtype)) {
  const size_t outputs = static_cast<size_t>(shape.batch) * widest(shape.model, &llama::LinearLayer::out);
  for (size_t i = 0; i < kMostShared; ++i) {
    y_.push_back(device.upload(std::vector<std::byte>(outputs * bytes_of(shape.dtype))));
  }
  if (shape.length > 0) make_cache(context, format);
  using enum llama::LinearInput;  // of which layers have the same shapes
  for (const llama::LinearInput input : {kAttention, kOutput, kMlp, kDown}) {
    tuning.measure(weights_->matrices(0, input), shape.batch);
  }
  issue_step();  // makes work space
  for (kvq::Sequence& sequence : sequences_) {
    if (device.records()) sequence.reserve(kMostSteps);
  }
  step_ = device.record(context, [this] { issue_step(); });
}

void TimedDecode::make_cache(kvq_context* context, const Spec& format) {
  const int32_t n_layers = shape_.model.n_layers;
  cache_ = cache_of_layers(context, format, shape_.attention(), n_layers);
  for (int32_t i = 0; i < shape_.batch; ++i) sequences_.emplace_back(cache_);
  append_random(*device_, sequences_, shape_.attention(), shape_.length, n_layers);
  for (const kvq::Sequence& sequence : sequences_) {
    const kvq_usage usage = sequence.usage();
    cache_bytes_ += usage.sealed_bytes + usage.fp16_bytes + usage.metadata_bytes;
  }
}

void TimedDecode::issue_step() {
  using enum llama::LinearInput;
  for (int32_t layer = 0; layer < shape_.model.n_layers; ++layer) {
    multiply(layer, kAttention);
    if (!sequences_.empty()) attend(layer);
    for (const llama::LinearInput input : {kOutput, kMlp, kDown}) multiply(layer, input);
  }
}

void TimedDecode::multiply(int32_t layer, llama::LinearInput input) {
  const std::vector<const qp_matrix*> matrices = weights_->matrices(layer, input);
  std::vector<void*> outputs;
  for (size_t i = 0; i < matrices.size(); ++i) outputs.push_back(y_[i].get());
  kvq::Matrix::linear_shared(matrices, x_.get(), shape_.batch, outputs, shape_.dtype);
}

void TimedDecode::attend(int32_t layer) {
  const std::vector<kvq_sequence*> sequences = kvq::pointers(sequences_);
  auto tokens = kvq::initialised<kvq_append_batch>();
  tokens.n_sequences = shape_.batch;
  tokens.sequences = sequences.data();
  tokens.k = k_.get();
  tokens.v = v_.get();
  tokens.dtype = shape_.dtype;
  cache_.append(layer, tokens);
  auto queries = kvq::initialised<kvq_attend_batch>();
  queries.n_sequences = shape_.batch;
  queries.sequences = sequences.data();
  queries.q = q_.get();
  queries.q_dtype = shape_.dtype;
  queries.output = attended_.get();
  queries.output_dtype = shape_.dtype;
  cache_.attend(layer, queries);
}

uint64_t timing_memory(const DecodeShape& shape, const std::vector<std::string>& schemes, size_t caches) {
  const auto layers = static_cast<uint64_t>(shape.model.n_layers);
  uint64_t bytes = 0;
  for (const std::string& scheme : schemes) {
    for (const llama::LinearLayer& each : llama::linear_layers(shape.model, 0)) {
      bytes += layers * kvq::Matrix::predict_bytes(scheme, each.out, each.in, 0);
    }
  }
  if (shape.length == 0) return bytes;
  const uint64_t tokens = static_cast<uint64_t>(shape.batch) * static_cast<uint64_t>(shape.length + kMostSteps);
  return bytes + caches * layers * tokens * shape.attention().fp16_token_bytes();
}

}  // namespace cli
