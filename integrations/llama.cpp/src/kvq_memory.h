#pragma once

#include "kvq_cache.h"
#include "kvq_device.h"

#include "llama-batch.h"
#include "llama-memory.h"

#include <deque>
#include <string>
#include <vector>

namespace llama_kvq {

/// A sequence of llama.cpp: tokens at successive positions.
struct Sequence {
  Pages pages;  // NULL: no token
  llama_pos first = 0;
  int32_t length = 0;
  int32_t newest = 0;     // tokens of the newest ubatch
  int32_t inherited = 0;  // tokens that a fork shares with where it comes from
  uint64_t content = 0;   // equal numbers and lengths: equal tokens
  bool broken = false;    // a call without a result could not be carried out

  llama_pos end() const { return first + length; }
};

/// Tokens of a ubatch in the order that kvq takes them: sequence by sequence.
struct Rows {
  struct Part {
    llama_seq_id sequence;
    int32_t tokens;
    std::vector<llama_seq_id> followers;  // hold the same tokens
  };
  std::vector<Part> parts;
  std::vector<int32_t> token;      // of the ubatch, for each row
  std::vector<int32_t> positions;  // of each row
  bool in_order = true;            // row i is token i
};

/// llama.cpp's memory interface on a kvq cache, with a kvq sequence for each of llama.cpp's.
///
/// A ubatch is a step of kvq (::kvq_step_begin): all layers take it or none. The step ends with the next call that
/// needs it to, so that until then any number of the ubatch's tokens can be removed, whatever the format.
class Memory : public llama_memory_i {
 public:
  Memory(const llama_model& model, const llama_memory_params& params, const llama_cparams& cparams,
         const std::string& policy, const LayerChoice& choice);
  ~Memory() override;

  llama_memory_context_ptr init_batch(llama_batch_allocr& allocator, uint32_t n_ubatch, bool embd_all) override;
  llama_memory_context_ptr init_full() override;
  llama_memory_context_ptr init_update(llama_context* context, bool optimize) override;

  bool get_can_shift() const override { return false; }
  void clear(bool data) override;
  bool seq_rm(llama_seq_id id, llama_pos begin, llama_pos end) override;
  void seq_cp(llama_seq_id source, llama_seq_id target, llama_pos begin, llama_pos end) override;
  void seq_keep(llama_seq_id id) override;
  void seq_add(llama_seq_id id, llama_pos begin, llama_pos end, llama_pos shift) override;
  void seq_div(llama_seq_id id, llama_pos begin, llama_pos end, int divisor) override;
  llama_pos seq_pos_min(llama_seq_id id) const override;
  llama_pos seq_pos_max(llama_seq_id id) const override;
  std::map<ggml_backend_buffer_type_t, size_t> memory_breakdown() const override;
  void state_write(llama_io_write_i& io, llama_seq_id id, llama_state_seq_flags flags) const override;
  void state_read(llama_io_read_i& io, llama_seq_id id, llama_state_seq_flags flags) override;

  /// Begins the step of a ubatch.
  bool begin(const llama_ubatch& ubatch);
  /// A batch is done: ends a step whose originals take more than they are worth.
  void finish_batch();

  /// Layer of the graph that is built.
  Layer& layer(int32_t index);
  /// Before a graph's threads start.
  void prepare_graph();
  /// Whether the cache is on a GPU: then the tensors of graph nodes are, too.
  bool on_gpu() const { return place_.gpu != nullptr; }
  /// Before a node on a GPU; false: it fails.
  bool enter_stream(int device, void* stream);
  /// After a batch: llama.cpp's streams end before its memory does, so that calls go on on the default one.
  void leave_stream();
  /// Says why the step cannot go on.
  void fail(const std::string& what);
  /// The graph node of a layer; `inputs` are queries, keys, values and sinks, NULL if there are none. False: there is
  /// no result.
  bool attend(Layer& layer, const ggml_tensor* const (&inputs)[4], ggml_tensor* output);
  Threads& threads() { return threads_; }
  /// False, with a log, if a layer's call has failed since the step began.
  bool computed() const;

  size_t bytes() const;

 private:
  bool fits(const std::vector<llama_ubatch>& ubatches) const;
  bool arrange(const llama_ubatch& ubatch, Rows& rows) const;
  bool place(const llama_ubatch& ubatch, uint32_t token, Rows& rows) const;
  void end_step();
  bool end_step_at(llama_seq_id id, llama_pos end);
  void follow(const Rows::Part& part);
  void drop(llama_seq_id id);
  bool in_step(llama_seq_id id) const;
  bool remove(llama_seq_id id, llama_pos begin, llama_pos end);
  void cannot(llama_seq_id id, const char* what);
  bool truncate(Sequence& sequence, int32_t length);
  /// On a GPU a call may report that numbers of an earlier one were not finite, and do nothing else: it is made again.
  template <class Call>
  kvq_status without_reports(const Call& call) const {
    auto status = call();
    for (size_t i = 0; i < 2 * layers_.size() && on_gpu() && status == KVQ_E_ARGUMENT; ++i) status = call();
    return status;
  }
  kvq_status extend(Layer& layer, const ggml_tensor* const (&inputs)[4], ggml_tensor* output);

  const llama_cparams& cparams_;
  Place place_;
  void* stream_ = nullptr;  // of the graph that is computed on a GPU
  Threads threads_;         // outlives the context, which uses it
  Error error_;
  Context context_;
  Cache cache_;
  std::deque<Layer> layers_;
  std::vector<Sequence> sequences_;
  bool frees_windows_ = false;
  int32_t recent_tokens_ = 0;  // that windows keep for rollbacks, besides the newest ubatch
  uint64_t contents_ = 0;

  Rows rows_;  // of the step
  bool stepping_ = false;
  std::string failure_;  // of the step
  std::vector<kvq_sequence*> step_sequences_;
  std::vector<int32_t> step_counts_;
  std::vector<float> buffer_;  // rows in kvq's order where the ubatch has another
};

/// What llama.cpp asks while it processes a batch.
class MemoryContext : public llama_memory_context_i {
 public:
  MemoryContext(Memory& memory, llama_memory_status status) : memory_(memory), status_(status) {}
  MemoryContext(Memory& memory, std::vector<llama_ubatch> ubatches)
      : memory_(memory), status_(LLAMA_MEMORY_STATUS_SUCCESS), ubatches_(std::move(ubatches)) {}
  ~MemoryContext() override;

  bool next() override { return ++current_ < ubatches_.size(); }
  bool apply() override { return ubatches_.empty() || memory_.begin(ubatches_[current_]); }
  const llama_ubatch& get_ubatch() const override { return ubatches_[current_]; }
  llama_memory_status get_status() const override { return status_; }

  Memory& memory() const { return memory_; }

 private:
  Memory& memory_;
  llama_memory_status status_;
  std::vector<llama_ubatch> ubatches_;
  size_t current_ = 0;
};

}  // namespace llama_kvq
