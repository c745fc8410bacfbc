#include "model.h"

#include <array>

#include "cpu_device.h"
#include "error.h"

namespace llama {
namespace {

const char* name_of(kvq_device device) { return device == KVQ_DEVICE_CPU ? "CPU" : "GPU"; }

// A context would take the address of a tensor elsewhere for one in its own memory.
void check_device(const Device& device, const kvq_context* context) {
  auto info = kvq::initialised<kvq_context_info>();
  kvq::checked(kvq_context_describe, context, &info);
  if (info.device == device.kind()) return;
  throw Error(std::string("the model is on the ") + name_of(device.kind()) + ", the context on the " +
              name_of(info.device));
}

Weights load(const std::filesystem::path& directory, const std::optional<WeightsFile>& file, const ModelConfig& config,
             Device& device) {
  if (!file) return load_weights(std::make_shared<const Checkpoint>(directory), config, device, nullptr);
  check_device(device, file->context);
  const auto checkpoint = std::make_shared<const Checkpoint>(file->path);
  if (Checkpoint::is_in(directory) && Checkpoint(directory).fingerprint() != checkpoint->fingerprint()) {
    throw Error(file->path.string() + " was not made from the model in " + directory.string());
  }
  return load_weights(checkpoint, config, device, file->context);
}

std::span<float> rows_of(const Array& buffer, int32_t n, int64_t width) {
  return buffer.first(static_cast<size_t>(n * width));
}

}  // namespace

ModelCacheOptions::ModelCacheOptions(const Model& model, bool frees_hidden) {
  const ModelConfig& config = model.config();
  options_ = cache_options(config.n_layers, config.q_heads, config.kv_heads, config.head_dim);
  options_.rope = KVQ_ROPE_HALF;
  options_.inv_freq = config.inv_freq.data();
  options_.scale = config.attention_scale;
  options_.model_id = model.weights().fingerprint;
  // Trained objects are for layers that are alike: those of a model with one RoPE keep what windows hide.
  for (int32_t layer = 0; layer < config.n_layers && !config.window_inv_freq.empty(); ++layer) {
    if (!config.is_windowed(layer)) continue;
    auto shape = kvq::initialised<kvq_layer_shape>();
    shape.first_layer = layer;
    shape.inv_freq = config.window_inv_freq.data();
    if (frees_hidden) shape.sliding_window = config.window_of(layer);
    shapes_.push_back(shape);
  }
  options_.shapes = shapes_.data();
  options_.n_shapes = static_cast<int32_t>(shapes_.size());
}

kvq::Cache make_model_cache(Model& model, const kvq::Context& context, const CacheFormat& format) {
  check_device(model.device(), context);
  kvq_policy_info policy{};
  policy.struct_size = sizeof policy;
  if (format.policy != nullptr) kvq::checked(kvq_policy_describe, format.policy, &policy);
  return make_cache(context, ModelCacheOptions(model, policy.eviction_budget == 0).options(), format);
}

Model::Model(const std::filesystem::path& directory, int32_t threads, std::unique_ptr<Device> device)
    : Model(directory, std::make_shared<ThreadPool>(threads), std::move(device)) {}

Model::Model(const std::filesystem::path& directory, std::shared_ptr<ThreadPool> threads,
             std::unique_ptr<Device> device, const std::optional<WeightsFile>& weights)
    : config_(load_config(directory)),
      threads_(std::move(threads)),
      device_(device != nullptr ? std::move(device) : make_cpu_device(*threads_)),
      weights_(load(directory, weights, config_, *device_)) {}

Linear Model::exchange(const LinearLayer& layer, Linear other) {
  return std::exchange(weights_.at(layer), std::move(other));
}

Session::Session(Model& model, const kvq::Context& context, const CacheFormat& format)
    : model_(&model),
      cache_(std::make_shared<const kvq::Cache>(make_model_cache(model, context, format))),
      kept_share_(format.kept_share),
      sequence_(*cache_) {}

Session::Session(Model& model, std::shared_ptr<const kvq::Cache> cache, double kept_share, kvq::Sequence sequence,
                 int32_t length)
    : model_(&model),
      cache_(std::move(cache)),
      kept_share_(kept_share),
      sequence_(std::move(sequence)),
      length_(length) {}

Session Session::fork() const { return Session(*model_, cache_, kept_share_, sequence_.fork(), length_); }

void Session::truncate(int32_t length) {
  sequence_.truncate(length);
  length_ = length;
}

void Session::compress(int32_t budget) {
  auto options = kvq::initialised<kvq_compress_options>();
  options.budget = budget;
  if (budget == 0 && kept_share_ > 0.0) {
    options.budget = budget_of_share(kept_share_, length_, cache_->describe().eviction_window);
  }
  sequence_.compress(options);
}

void Session::clear() {
  sequence_ = kvq::Sequence(*cache_);
  length_ = 0;
}

void Session::observe_input(int32_t layer, LinearInput which, std::span<const float> x) {
  if (input_observer_) input_observer_(layer, which, x);
}

std::span<const float> Session::forward(Tokens tokens, bool all_logits) {
  if (tokens.empty()) throw Error("there are no tokens to run");
  const auto n = static_cast<int32_t>(tokens.size());
  const int32_t first_logits = all_logits ? 0 : n - 1;
  reserve(n, n - first_logits);
  embed(tokens);
  return run_layers(0, n, first_logits);
}

std::span<const float> Session::forward_from(int32_t first_layer, std::span<const float> x, bool all_logits) {
  const auto n = static_cast<int32_t>(static_cast<int64_t>(x.size()) / model_->config().hidden_size);
  if (n == 0) throw Error("there are no tokens to run");
  const int32_t first_logits = all_logits ? 0 : n - 1;
  x_ = model_->device().upload({x.begin(), x.end()});
  reserve(n, n - first_logits);
  return run_layers(first_layer, n, first_logits);
}

/// Run `n` tokens whose inputs of the first layer are in x_.
std::span<const float> Session::run_layers(int32_t first_layer, int32_t n, int32_t first_logits) {
  const ModelConfig& config = model_->config();
  const Weights& weights = model_->weights();
  Device& device = model_->device();
  for (int32_t i = first_layer; i < config.n_layers; ++i) {
    if (hidden_observer_) hidden_observer_(i, rows_of(x_, n, config.hidden_size));
    attention_block(weights.layers[static_cast<size_t>(i)], i, n);
    mlp_block(weights.layers[static_cast<size_t>(i)], i, n);
  }
  length_ += n;

  const std::span<const float> x =
      rows_of(x_, n, config.hidden_size).subspan(static_cast<size_t>(int64_t{first_logits} * config.hidden_size));
  const std::span<float> normed = rows_of(normed_, n - first_logits, config.hidden_size);
  const std::span<float> logits = rows_of(logits_, n - first_logits, config.vocab_size);
  device.rms_norm(x, weights.final_norm, config.rms_norm_eps, normed);
  device.apply(weights.output, normed, logits);
  if (config.logit_softcap > 0.0f) device.softcap(config.logit_softcap, logits);
  return device.read(logits, host_logits_);
}

void Session::reserve(int32_t rows, int32_t logit_rows) {
  const ModelConfig& config = model_->config();
  const auto grow = [this](Array& buffer, int32_t n, int64_t width) {
    const auto size = static_cast<size_t>(n * width);
    if (buffer.size >= size) return;
    buffer = {};  // there may not be room for both
    buffer = model_->device().allocate(size);
  };
  const int64_t q_width = int64_t{config.q_heads} * config.head_dim;
  const int64_t kv_width = int64_t{config.kv_heads} * config.head_dim;
  grow(x_, rows, config.hidden_size);
  grow(normed_, rows, config.hidden_size);
  grow(q_, rows, q_width);
  grow(k_, rows, kv_width);
  grow(v_, rows, kv_width);
  grow(attended_, rows, q_width);
  grow(gate_, rows, config.intermediate_size);
  grow(up_, rows, config.intermediate_size);
  grow(logits_, logit_rows, config.vocab_size);
}

void Session::embed(Tokens tokens) {
  const Matrix& embedding = model_->weights().embedding;
  for (const int32_t token : tokens) {
    if (token < 0 || token >= embedding.rows) {
      throw Error("token " + std::to_string(token) + " is outside the model's vocabulary of " +
                  std::to_string(embedding.rows));
    }
  }
  const std::span<float> x = rows_of(x_, static_cast<int32_t>(tokens.size()), embedding.columns);
  model_->device().embed(embedding, tokens, model_->config().embedding_scale, x);
}

void Session::attention_block(const LayerWeights& layer, int32_t index, int32_t n) {
  const ModelConfig& config = model_->config();
  Device& device = model_->device();
  const std::span<float> x = rows_of(x_, n, config.hidden_size);
  const std::span<float> normed = rows_of(normed_, n, config.hidden_size);
  const std::span<float> q = rows_of(q_, n, layer.q.weight.rows);
  const std::span<float> k = rows_of(k_, n, layer.k.weight.rows);
  const std::span<float> v = rows_of(v_, n, layer.v.weight.rows);

  device.rms_norm(x, layer.input_norm, config.rms_norm_eps, normed);
  observe_input(index, LinearInput::kAttention, normed);
  device.apply_shared(std::array{Product{&layer.q, q}, Product{&layer.k, k}, Product{&layer.v, v}}, normed);
  if (config.qk_norm) {
    device.rms_norm(q, layer.q_norm, config.rms_norm_eps, q);
    device.rms_norm(k, layer.k_norm, config.rms_norm_eps, k);
  }

  attend(index, n, q.data(), k.data(), v.data(), attended_.data.get());
  if (observer_) observer_(index, {n, q.data(), k.data(), v.data(), attended_.data.get()});
  const std::span<const float> attended = rows_of(attended_, n, layer.q.weight.rows);
  observe_input(index, LinearInput::kOutput, attended);
  add_output(layer.o, attended, layer.attention_output_norm, x);
}

/// x += norm(in·Wᵀ + b), without a norm if that is empty.
void Session::add_output(const Linear& linear, std::span<const float> in, const Array& norm, std::span<float> x) {
  Device& device = model_->device();
  if (norm.empty()) return device.apply_and_add(linear, in, x);
  const std::span<float> out = normed_.first(x.size());
  device.apply(linear, in, out);
  device.rms_norm(out, norm, model_->config().rms_norm_eps, out);
  device.add(out, x);
}

void Session::attend(int32_t layer, int32_t n, const float* q, const float* k, const float* v, float* out) {
  kvq_sequence* sequence = sequence_;
  auto batch = kvq::initialised<kvq_extend_batch>();
  batch.n_sequences = 1;
  batch.sequences = &sequence;
  batch.token_counts = &n;
  batch.k = k;
  batch.v = v;
  batch.q = q;
  batch.output = out;
  batch.sliding_window = model_->config().window_of(layer);
  batch.logit_softcap = model_->config().attention_softcap;
  cache_->extend(layer, batch);
}

void Session::mlp_block(const LayerWeights& layer, int32_t index, int32_t n) {
  const ModelConfig& config = model_->config();
  Device& device = model_->device();
  const std::span<float> x = rows_of(x_, n, config.hidden_size);
  const std::span<float> normed = rows_of(normed_, n, config.hidden_size);
  const std::span<float> gate = rows_of(gate_, n, config.intermediate_size);
  const std::span<float> up = rows_of(up_, n, config.intermediate_size);

  device.rms_norm(x, layer.mlp_norm, config.rms_norm_eps, normed);
  observe_input(index, LinearInput::kMlp, normed);
  device.apply_shared(std::array{Product{&layer.gate, gate}, Product{&layer.up, up}}, normed);
  device.gate(config.activation, n, gate, up);
  observe_input(index, LinearInput::kDown, gate);
  add_output(layer.down, gate, layer.mlp_output_norm, x);
}

}  // namespace llama
