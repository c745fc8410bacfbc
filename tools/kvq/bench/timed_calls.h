#pragma once

#include <map>
#include <numeric>

#include "bench/random_layer.h"
#include "bench/timing.h"
#include "kvq.hpp"
#include "options/model_options.h"
#include "options/spec.h"

namespace cli {

struct AppendShape {
  LayerShape layer{};
  int32_t length = 8192;  // tokens held before the first call
  int32_t tokens = 1;     // of one call
  kvq_dtype dtype = KVQ_F32;

  /// Decoding: calls of less than a page follow each other on one sequence. Each longer call, a prompt or a piece of
  /// one, gets a sequence of its own, so that none begins with more tokens than `length`.
  bool is_decoding() const { return tokens < KVQ_PAGE_SLOTS; }

  /// Calls after which the open page is as full as before, so that all the work a token causes is among them.
  int32_t cycle() const { return is_decoding() ? KVQ_PAGE_SLOTS / std::gcd(int32_t{KVQ_PAGE_SLOTS}, tokens) : 1; }
  uint64_t cycle_tokens() const { return static_cast<uint64_t>(cycle()) * static_cast<uint64_t>(tokens); }
};

/// Random keys and values for one cycle of calls.
class AppendInput {
 public:
  AppendInput(TimedDevice& device, const AppendShape& shape);

  const void* keys(int32_t call) const { return at(keys_, call); }
  const void* values(int32_t call) const { return at(values_, call); }
  /// Bytes of the keys and values of a call.
  uint64_t call_bytes() const { return 2 * stride_; }

 private:
  const void* at(const DeviceBuffer& buffer, int32_t call) const {
    return static_cast<const std::byte*>(buffer.get()) + static_cast<size_t>(call) * stride_;
  }

  DeviceBuffer keys_;  // [cycle, tokens, kv_heads, head_dim]
  DeviceBuffer values_;
  size_t stride_;
};

struct AppendTiming {
  Timing call;             // single calls
  double mean = 0.0;       // of the calls of a cycle; the median of all cycles
  double host_mean = 0.0;  // the same of the time until a call returns, which on a GPU is not when its work is done
};

/// Appending to one layer, ready to be timed. While decoding it serves as many sequences in turn as it takes that a
/// call finds its page in memory and not in the processor's own cache.
class TimedAppend {
 public:
  /// `context` computes on `device`. `input` must outlive this.
  TimedAppend(TimedDevice& device, kvq_context* context, const llama::CacheFormat& format, const AppendShape& shape,
              const AppendInput& input);

  /// The next call on each sequence.
  void run();
  /// Forget the calls so far.
  void clear();
  /// Times of the calls so far, which make whole cycles.
  AppendTiming timing() const;

  /// Bytes of tokens that a call reads and of pages that it writes, in the mean of a cycle.
  uint64_t bytes() const { return bytes_; }

 private:
  struct Cycle {
    double device = 0.0;  // microseconds so far
    double host = 0.0;
  };

  void append(kvq::Sequence& sequence, int32_t call);
  void time_append(kvq::Sequence& sequence, Cycle& cycle);
  void end_cycle();
  uint64_t bytes_written_in_cycle();

  TimedDevice* device_;
  AppendShape shape_;
  const AppendInput* input_;
  kvq::Cache cache_;
  kvq::Sequence start_;                   // holds `length` tokens
  std::vector<kvq::Sequence> sequences_;  // while decoding
  std::vector<Cycle> cycles_;             // those that the sequences are in
  int32_t next_ = 0;                      // call of the cycle
  std::vector<double> calls_;             // microseconds
  std::vector<double> cycle_means_;
  std::vector<double> host_cycle_means_;
  uint64_t bytes_ = 0;
};

struct AttentionShape {
  LayerShape layer{};
  int32_t length = 32768;
  int32_t batch = 1;
  int32_t queries = 1;               // of a sequence: its newest tokens'
  bool tree = false;                 // which are a random draft tree: a mask says what they see of each other
  uint64_t most_bytes = UINT64_MAX;  // of all caches that calls read in turn: those of a small model stay in caches
};

/// Random queries of calls, `[batch, queries, q_heads, head_dim]`: some to be used in turn, as long as they are small.
std::vector<DeviceBuffer> queries_in_turn(TimedDevice& device, const AttentionShape& shape);
/// Of a call.
size_t output_scalars(const AttentionShape& shape);

/// Appending the newest tokens of one layer and attending with their queries in one call, ready to be timed. Each call
/// extends new forks of sequences that hold all older tokens.
class TimedExtend {
 public:
  /// `context` computes on `device`.
  TimedExtend(TimedDevice& device, kvq_context* context, const Spec& format, const AttentionShape& shape);

  /// One call, in microseconds.
  double run();

  /// Bytes of the keys and values after a call, everything counted, and bits of a scalar.
  uint64_t bytes() const { return bytes_; }
  double bits() const { return bits_; }

 private:
  std::vector<kvq::Sequence> forks() const;
  void extend(std::span<kvq::Sequence> sequences);

  TimedDevice* device_;
  AttentionShape shape_;
  kvq::Cache cache_;
  bool reserves_;  // pages whose formats a router chooses cannot be
  std::vector<kvq::Sequence> start_;
  DeviceBuffer keys_;     // [batch, queries, kv_heads, head_dim]
  DeviceBuffer values_;   // [batch, queries, kv_heads, channels of values]
  DeviceBuffer queries_;  // [batch, queries, q_heads, head_dim]
  DeviceBuffer out_;
  uint64_t bytes_ = 0;
  double bits_ = 0.0;
};

/// Attention of one layer on random keys and values, ready to be timed. Holds as many equal caches as it takes that
/// successive calls read theirs from memory and not from the processor's own cache.
class TimedAttention {
 public:
  /// `context` computes on `device`.
  TimedAttention(TimedDevice& device, kvq_context* context, const Spec& format, const AttentionShape& shape);

  /// One call on the next of the caches with the next of the queries, in microseconds.
  double run();

  /// Bytes of the keys and values that one call reads, everything counted, and bits of a scalar.
  uint64_t bytes() const { return bytes_; }
  double bits() const { return bits_; }

 private:
  using SequenceBatch = std::vector<kvq::Sequence>;

  void fill_first(const AttentionShape& shape);
  void compress_first(const Spec& format, const AttentionShape& shape);
  void copy_first(uint64_t copies);

  TimedDevice* device_;
  kvq::Cache cache_;
  std::vector<SequenceBatch> batches_;  // equal ones, used in turn
  std::vector<DeviceBuffer> queries_;   // [batch, queries, q_heads, head_dim] each, used in turn
  DeviceBuffer out_;
  DeviceBuffer mask_;  // [batch, queries, words], or none
  bool has_mask_;
  int32_t n_queries_;  // of a sequence
  size_t runs_ = 0;
  uint64_t bytes_ = 0;
  double bits_ = 0.0;
};

struct LinearShape {
  int64_t out = 14336;
  int64_t in = 4096;
  int32_t batch = 1;
  std::vector<int64_t> also = {};    // outputs of further layers that are multiplied in the same call
  uint64_t most_bytes = UINT64_MAX;  // of all matrices that calls read in turn: a small model stays in caches
  kvq_dtype dtype = KVQ_F32;         // of inputs and outputs
  bool recorded = false;             // calls are recorded together, not timed one by one

  int64_t all_outputs() const;
};

/// Linear layers of random weights in one scheme, quickly made: codes repeat, which takes as long to multiply by.
class RandomMatrices {
 public:
  RandomMatrices(kvq_context* context, std::string scheme) : context_(context), scheme_(std::move(scheme)) {}

  /// In memory of its own, each time; the first one of a shape takes longer.
  kvq::Matrix load(int64_t out, int64_t in);

 private:
  const std::vector<std::byte>& file(int64_t out, int64_t in);

  kvq_context* context_;
  std::string scheme_;
  std::map<int64_t, std::vector<std::byte>> blocks_;                     // by columns
  std::map<std::pair<int64_t, int64_t>, std::vector<std::byte>> files_;  // by outputs and inputs
};

/// A linear layer of random weights, or several that share their inputs, ready to be timed. Holds as many equal ones as
/// it takes for every call to read its own from memory.
class TimedLinear {
 public:
  TimedLinear(TimedDevice& device, kvq_context* context, const Tuning& tuning, const std::string& scheme,
              const LinearShape& shape);
  TimedLinear(const TimedLinear&) = delete;
  TimedLinear& operator=(const TimedLinear&) = delete;

  /// Microseconds of one call; of recorded ones, in their mean.
  double run();
  /// Bytes that one call reads.
  uint64_t bytes() const { return bytes_; }
  double bits() const { return bits_; }

 private:
  using Layer = std::vector<kvq::Matrix>;  // those of one call

  void load(RandomMatrices& random, const LinearShape& shape);
  void multiply(const Layer& layer);
  void record(kvq_context* context);

  TimedDevice* device_;
  std::vector<Layer> layers_;
  DeviceBuffer x_;               // [batch, in]
  std::vector<DeviceBuffer> y_;  // [batch, out] of each matrix of a layer
  int32_t batch_;
  kvq_dtype dtype_;
  std::function<void()> recorded_;  // calls on all layers; none if each is timed
  size_t recorded_calls_ = 0;
  size_t runs_ = 0;
  uint64_t bytes_ = 0;
  double bits_ = 0.0;
};

/// Bytes of the device that timing `subjects` subjects of this shape may take, at most.
uint64_t timing_memory(const TimedDevice& device, const AppendShape& shape, size_t subjects);
uint64_t timing_memory(const TimedDevice& device, const AttentionShape& shape, size_t subjects);
uint64_t timing_memory(const TimedDevice& device, const LinearShape& shape, size_t subjects);

}  // namespace cli
