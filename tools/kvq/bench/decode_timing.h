#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/linear_timing.h"
#include "bench/random_layer.h"
#include "llama/config.h"
#include "llama/linear_layers.h"
#include "options/spec.h"

namespace cli {

/// A step of decoding: linear layers and attention of every decoder layer, without what an engine computes between
/// them.
struct DecodeShape {
  llama::ModelConfig model;  // its sizes
  int32_t length = 0;        // tokens in the cache of each sequence; 0: linear layers alone
  int32_t batch = 1;         // sequences, of each of which a token is decoded
  kvq_dtype dtype = KVQ_F32;

  LayerShape attention() const { return {model.q_heads, model.kv_heads, model.head_dim}; }
  /// Of a step.
  size_t query_scalars() const { return scalars(model.q_heads); }
  size_t key_scalars() const { return scalars(model.kv_heads); }
  /// Steps after which the open pages are as full as before, so that all the work a token causes is among them.
  int32_t cycle() const { return length > 0 ? KVQ_PAGE_SLOTS : 1; }

 private:
  size_t scalars(int32_t heads) const {
    return static_cast<size_t>(batch) * static_cast<size_t>(heads) * static_cast<size_t>(model.head_dim);
  }
};

/// The linear layers of a model, of random weights in one scheme, each in memory of its own.
class DecoderWeights {
 public:
  DecoderWeights(kvq_context* context, const std::string& scheme, const llama::ModelConfig& model);

  /// Those that read the same inputs.
  std::vector<const qp_matrix*> matrices(int32_t layer, llama::LinearInput input) const;
  uint64_t bytes() const { return bytes_; }

 private:
  struct Packed {
    llama::LinearInput input;
    kvq::Matrix matrix;
  };

  std::vector<std::vector<Packed>> layers_;
  uint64_t bytes_ = 0;
};

/// Steps of decoding, ready to be timed. Every call reads random numbers, not those that the one before it wrote.
class TimedDecode {
 public:
  /// \param format  of the cache; not used if there is none.
  TimedDecode(TimedDevice& device, kvq_context* context, const Tuning& tuning,
              std::shared_ptr<const DecoderWeights> weights, const Spec& format, const DecodeShape& shape);
  TimedDecode(const TimedDecode&) = delete;
  TimedDecode& operator=(const TimedDecode&) = delete;

  /// Microseconds of the next step, by which every sequence grows by a token.
  double run() { return device_->time(step_); }
  uint64_t weight_bytes() const { return weights_->bytes(); }
  /// Of the keys and values that the first step reads, everything counted.
  uint64_t cache_bytes() const { return cache_bytes_; }

 private:
  void make_cache(kvq_context* context, const Spec& format);
  void issue_step();
  void multiply(int32_t layer, llama::LinearInput input);
  void attend(int32_t layer);

  TimedDevice* device_;
  std::shared_ptr<const DecoderWeights> weights_;
  DecodeShape shape_;
  DeviceBuffer x_;               // [batch, in] of the widest inputs
  std::vector<DeviceBuffer> y_;  // [batch, out] of the widest outputs, of as many as share inputs
  DeviceBuffer q_, k_, v_, attended_;
  kvq::Cache cache_ = nullptr;
  std::vector<kvq::Sequence> sequences_;
  uint64_t cache_bytes_ = 0;
  std::function<void()> step_;
};

/// Bytes that weights in `schemes` and so many caches may take, at most.
uint64_t timing_memory(const DecodeShape& shape, const std::vector<std::string>& schemes, size_t caches);

}  // namespace cli
