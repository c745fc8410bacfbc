#pragma once

#include <algorithm>
#include <cmath>
#include <optional>

#include "config.h"
#include "device.h"
#include "kvq.hpp"
#include "threads.h"
#include "weights.h"

namespace llama {

/// How a cache stores pages. All may be null, and are only needed while a cache is made.
struct CacheFormat {
  CacheFormat(const kvq_policy* of_pages = nullptr, const kvq_codebook* of_codes = nullptr,
              const kvq_router* that_chooses = nullptr, const kvq_centres* around = nullptr)
      : policy(of_pages), codebook(of_codes), router(that_chooses), centres(around) {}

  const kvq_policy* policy;
  const kvq_codebook* codebook;
  const kvq_router* router;
  const kvq_centres* centres;
  double kept_share = 0.0;  // of a prompt's tokens, when it is compressed; 0: as many as the policy says
};

/// Tokens that stay of each KV head, on average, where `share` of a prompt is kept: at least the window, which always
/// stays.
inline int32_t budget_of_share(double share, int32_t prompt, int32_t window) {
  return std::max(static_cast<int32_t>(std::lround(share * prompt)), window);
}

inline kvq::Cache make_cache(kvq_context* context, kvq_cache_options options, const CacheFormat& format) {
  options.codebook = format.codebook;
  options.router = format.router;
  options.centres = format.centres;
  return kvq::Cache(context, options, format.policy);
}

/// A text, token by token.
using Tokens = std::span<const int32_t>;

/// A file to take all weights from instead of a model's directory: one whose linear layers are packed.
struct WeightsFile {
  std::filesystem::path path;
  kvq_context* context;  // of the model's device, on a CPU preferably on the model's threads; must outlive the model
};

/// The weights of a Llama, Mistral, Qwen2, Qwen3, Gemma 2 or Gemma 3 checkpoint, as its files have them or packed.
class Model {
 public:
  /// \param device  where to compute; nullptr: on `threads` threads of the CPU.
  Model(const std::filesystem::path& directory, int32_t threads, std::unique_ptr<Device> device = nullptr);
  /// On threads that others use too.
  /// \param weights  an Error if it is of another model than the checkpoint in `directory`, if there is one.
  Model(const std::filesystem::path& directory, std::shared_ptr<ThreadPool> threads, std::unique_ptr<Device> device,
        const std::optional<WeightsFile>& weights = {});

  const ModelConfig& config() const { return config_; }
  const Weights& weights() const { return weights_; }
  const Linear& linear(const LinearLayer& layer) { return weights_.at(layer); }
  /// Put other numbers in the place of a linear layer's weights, `[out, in]`, to see what that changes.
  /// \returns the layer as it was before.
  Linear exchange(const LinearLayer& layer, Linear other);
  Device& device() { return *device_; }
  /// For the context's `parallel_for` hook, so that the attention runs on the same threads.
  ThreadPool& threads() { return *threads_; }

 private:
  ModelConfig config_;
  std::shared_ptr<ThreadPool> threads_;
  std::unique_ptr<Device> device_;
  Weights weights_;
};

/// A cache of the model's shape.
///
/// \param context  of the model's device, with its default stream.
/// \param format   Only needed during the call.
kvq::Cache make_model_cache(Model& model, const kvq::Context& context, const CacheFormat& format);

/// What a cache of so many layers like this is made with.
inline kvq_cache_options cache_options(int32_t n_layers, int32_t q_heads, int32_t kv_heads, int32_t head_dim) {
  auto options = kvq::initialised<kvq_cache_options>();
  options.n_layers = n_layers;
  options.q_heads = q_heads;
  options.kv_heads = kv_heads;
  options.head_dim = head_dim;
  return options;
}
/// What a cache of the model's shape is made with. Refers to the model's config.
class ModelCacheOptions {
 public:
  /// `frees_hidden`: layers with a window, where these have shapes of their own, keep no more than it.
  explicit ModelCacheOptions(const Model& model, bool frees_hidden = false);
  ModelCacheOptions(const ModelCacheOptions&) = delete;
  ModelCacheOptions& operator=(const ModelCacheOptions&) = delete;

  /// Lives as long as this.
  const kvq_cache_options& options() const { return options_; }

 private:
  kvq_cache_options options_;
  std::vector<kvq_layer_shape> shapes_;  // of layers with RoPE of their own
};

/// What one layer's attention took and gave, in the memory of the model's device: `n` tokens, before RoPE.
struct ObservedAttention {
  int32_t n;
  const float* q;         // [n, q_heads, head_dim]
  const float* k;         // [n, kv_heads, head_dim]
  const float* v;         // [n, kv_heads, head_dim]
  const float* attended;  // [n, q_heads, head_dim]
};

/// One conversation: a sequence of the library's cache and the activations of the tokens in flight. The model and the
/// context must outlive it. Sessions of one model are used one at a time.
class Session {
 public:
  /// As make_model_cache().
  Session(Model& model, const kvq::Context& context, const CacheFormat& format);

  /// Run tokens through the model and append their keys and values to the cache.
  ///
  /// \param all_logits  whether the result is `[tokens, vocabulary]`, for every token, or `[vocabulary]`, for the last.
  /// \returns logits, valid until the next call. After an error only clear() is allowed.
  std::span<const float> forward(Tokens tokens, bool all_logits);
  /// The same from layer `first_layer` on, which reads `x`, `[tokens, hidden]` in host memory. What the layers before
  /// it hold stays as it is, so successive calls of a session begin with the same layer.
  std::span<const float> forward_from(int32_t first_layer, std::span<const float> x, bool all_logits);

  /// A session that continues from here; cached pages are shared.
  Session fork() const;
  /// Forget all but the first `length` tokens; the library refuses cuts inside a compressed page.
  void truncate(int32_t length);
  /// Evict tokens as the policy says, down to `budget` tokens of a KV head on average; 0: what the format says.
  void compress(int32_t budget = 0);
  /// Keep what the cache holds, and what follows until clear(), in the formats of another policy.
  void recode(const kvq_policy* policy) { sequence_.recode(policy); }
  /// Start over with an empty sequence.
  void clear();

  /// Sees every layer of every forward() once its attention is computed.
  using Observer = std::function<void(int32_t layer, const ObservedAttention& attention)>;
  /// From now on; an empty one ends it. What it sees lies in the memory of the model's device.
  void observe(Observer observer) { observer_ = std::move(observer); }
  /// Sees the inputs `x`, `[tokens, in]`, of every linear layer of every forward(), but the last one's.
  using InputObserver = std::function<void(int32_t layer, LinearInput which, std::span<const float> x)>;
  void observe_inputs(InputObserver observer) { input_observer_ = std::move(observer); }
  /// Sees what each layer of every forward() reads, `[tokens, hidden]`.
  using HiddenObserver = std::function<void(int32_t layer, std::span<const float> x)>;
  void observe_hidden(HiddenObserver observer) { hidden_observer_ = std::move(observer); }

  /// Append `n` tokens to one layer and attend with their queries, as forward() does with its own: to see what a cache
  /// makes of given numbers. Shapes as in ObservedAttention, in the device's memory; length() counts no such tokens.
  void attend(int32_t layer, int32_t n, const float* q, const float* k, const float* v, float* out);

  int32_t length() const { return length_; }
  kvq_usage usage() const { return sequence_.usage(); }

 private:
  Session(Model& model, std::shared_ptr<const kvq::Cache> cache, double kept_share, kvq::Sequence sequence,
          int32_t length);
  void embed(Tokens tokens);
  std::span<const float> run_layers(int32_t first_layer, int32_t n, int32_t first_logits);
  void attention_block(const LayerWeights& layer, int32_t index, int32_t n);
  void mlp_block(const LayerWeights& layer, int32_t index, int32_t n);
  void add_output(const Linear& linear, std::span<const float> in, const Array& norm, std::span<float> x);
  void observe_input(int32_t layer, LinearInput which, std::span<const float> x);
  void reserve(int32_t rows, int32_t logit_rows);

  Model* model_;
  std::shared_ptr<const kvq::Cache> cache_;  // shared by forks
  double kept_share_;                        // as in CacheFormat
  kvq::Sequence sequence_;                   // destroyed before the cache
  int32_t length_ = 0;
  Observer observer_;
  InputObserver input_observer_;
  HiddenObserver hidden_observer_;

  // Activations, `[rows, width]`, for the largest call so far.
  Array x_, normed_, q_, k_, v_, attended_, gate_, up_, logits_;
  Array host_logits_;
};

}  // namespace llama
