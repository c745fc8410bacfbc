#include "kvq_graph.h"

#include "kvq_device_nodes.h"
#include "kvq_memory.h"

#include "llama-context.h"
#include "llama-impl.h"

#include <cmath>
#include <cstring>
#include <stdexcept>

namespace llama_kvq {
namespace {

Memory* memory_of(const llama_memory_context_i* mctx) {
  const auto* own = dynamic_cast<const MemoryContext*>(mctx);
  return own ? &own->memory() : nullptr;
}

/// Beside the class of llama.cpp that graphs expect: says that the graph is one of kvq.
struct KvqInput {
  explicit KvqInput(Memory* memory) : memory(memory) {}
  virtual ~KvqInput() = default;
  Memory* memory;
};

template <class Base>
class Input : public Base, public KvqInput {
 public:
  Input(const llama_hparams& hparams, const llama_cparams& cparams, Memory* memory)
      : Base(hparams, cparams, nullptr), KvqInput(memory) {}
  void set_input(const llama_ubatch*) override { memory->prepare_graph(); }
  bool can_reuse(const llm_graph_params& params) override { return memory_of(params.mctx) == memory; }
};

enum { kQueries, kKeys, kValues, kSinks, kInputs };

/// Stores keys and values of a node's layer and attends; false: there is no result.
bool attend(Layer& layer, ggml_tensor* output) {
  const ggml_tensor* inputs[kInputs] = {};
  int n = 0;
  inputs[kQueries] = output->src[n++];
  if (layer.stores) {
    inputs[kKeys] = output->src[n++];
    inputs[kValues] = output->src[n++];
  }
  inputs[kSinks] = output->src[n];
  return layer.memory->attend(layer, inputs, output);
}

/// The node of a cache in host memory.
void compute(ggml_tensor* output, int thread, int, void* user) {
  auto& layer = *static_cast<Layer*>(user);
  if (thread != 0) return layer.memory->threads().help(layer.done);
  if (!attend(layer, output)) std::memset(output->data, 0, ggml_nbytes(output));
  layer.done.store(true, std::memory_order_release);
}

/// The node of a cache on a GPU: ggml's CUDA backend knows it by this function, which a CPU would call.
void refuse(ggml_tensor* output, int thread, int, void* user) {
  if (thread != 0) return;
  static_cast<Layer*>(user)->memory->fail("a node of a cache on a GPU was given to the CPU");
  std::memset(output->data, 0, ggml_nbytes(output));
}

bool compute_on_device(ggml_tensor* output, void* user, int device, void* stream) {
  auto& layer = *static_cast<Layer*>(user);
  return layer.memory->enter_stream(device, stream) && attend(layer, output);
}

bool has_shape(const ggml_tensor* tensor, int32_t channels, int32_t heads) {
  return tensor->type == GGML_TYPE_F32 && tensor->ne[0] == channels && tensor->ne[1] == heads && tensor->ne[3] == 1;
}

/// Rows of kvq's heads: contiguous channels, any strides else.
ggml_tensor* with_rows(ggml_context* ctx, ggml_tensor* tensor) {
  if (tensor->type != GGML_TYPE_F32) return ggml_cast(ctx, tensor, GGML_TYPE_F32);
  return tensor->nb[0] == sizeof(float) ? tensor : ggml_cont(ctx, tensor);
}

}  // namespace

llama_memory_i* create_memory(const llama_model& model, const llama_memory_params& params, const llama_cparams& cparams,
                              const std::function<bool(int32_t)>& filter,
                              const std::function<int32_t(int32_t)>& reuse) {
  const auto policy = chosen_policy();
  return policy.empty() ? nullptr : new Memory(model, params, cparams, policy, {filter, reuse});
}

llama_memory_i* checked_memory(llama_memory_i* memory) {
  if (!memory || chosen_policy().empty() || dynamic_cast<Memory*>(memory)) return memory;
  delete memory;
  throw std::runtime_error("kvq: this model's memory is not a plain KV cache (recurrent, hybrid or sparse attention)");
}

std::unique_ptr<llm_graph_input_attn_kv> attention_input(const llama_hparams& hparams, const llama_cparams& cparams,
                                                         const llama_memory_context_i* mctx) {
  auto* memory = memory_of(mctx);
  return memory ? std::make_unique<Input<llm_graph_input_attn_kv>>(hparams, cparams, memory) : nullptr;
}

std::unique_ptr<llm_graph_input_attn_kv_iswa> attention_input_iswa(const llama_hparams& hparams,
                                                                   const llama_cparams& cparams,
                                                                   const llama_memory_context_i* mctx) {
  auto* memory = memory_of(mctx);
  return memory ? std::make_unique<Input<llm_graph_input_attn_kv_iswa>>(hparams, cparams, memory) : nullptr;
}

ggml_tensor* attention(ggml_context* ctx, ggml_cgraph* graph, llm_graph_input_i* input, ggml_tensor* q, ggml_tensor* k,
                       ggml_tensor* v, ggml_tensor* bias, ggml_tensor* sinks, ggml_tensor* v_mla, float scale,
                       int layer_index) {
  const auto* own = dynamic_cast<const KvqInput*>(input);
  if (!own) return nullptr;
  auto& layer = own->memory->layer(layer_index);
  const auto& info = layer.info;
  if (bias || v_mla) throw std::runtime_error("kvq: biases of attention and latent attention are not supported");
  if (layer.stores != (k != nullptr) || layer.stores != (v != nullptr)) {
    throw std::runtime_error("kvq: layer " + std::to_string(layer_index) + " gives keys or values where none are kept");
  }
  const float factor = scale / info.scale;
  if (std::fabs(factor - 1) > 1e-6f) q = ggml_scale(ctx, q, factor);
  ggml_tensor* inputs[kInputs] = {with_rows(ctx, q)};
  int n = 1;
  if (layer.stores) {
    inputs[n++] = with_rows(ctx, k);
    inputs[n++] = with_rows(ctx, v);
    if (!has_shape(inputs[1], info.key_dim, info.kv_heads) || !has_shape(inputs[2], info.value_dim, info.kv_heads)) {
      throw std::runtime_error("kvq: layer " + std::to_string(layer_index) + " has other heads than the model says");
    }
  }
  if (!has_shape(inputs[0], info.key_dim, info.q_heads)) {
    throw std::runtime_error("kvq: layer " + std::to_string(layer_index) + " has other queries than the model says");
  }
  if (sinks) inputs[n++] = with_rows(ctx, sinks);
  auto* result = ggml_custom_4d(ctx, GGML_TYPE_F32, static_cast<int64_t>(info.value_dim) * info.q_heads, q->ne[2], 1, 1,
                                inputs, n, own->memory->on_gpu() ? refuse : compute, GGML_N_TASKS_MAX, &layer);
  ggml_build_forward_expand(graph, result);
  return result;
}

const DeviceNodes* device_nodes() {
  static const DeviceNodes nodes = {refuse, compute_on_device};
  return &nodes;
}

bool computed(const llama_memory_context_i* mctx, ggml_backend_sched_t sched) {
  auto* memory = memory_of(mctx);
  if (!memory || memory->computed()) return true;
  ggml_backend_sched_synchronize(sched);  // a GPU's reports on this batch are not left for the next one
  memory->leave_stream();
  return false;
}

// ------------------------------------------------------------------------------------------ nodes, while they compute

Layer& Memory::layer(int32_t index) {
  if (index < 0 || static_cast<size_t>(index) >= layers_.size()) {
    throw std::runtime_error("kvq: the graph has a layer " + std::to_string(index) + " that the model has not");
  }
  return layers_[static_cast<size_t>(index)];
}

void Memory::prepare_graph() {
  for (auto& layer : layers_) layer.done.store(false, std::memory_order_relaxed);
}

bool Memory::computed() const {
  if (!failure_.empty()) LLAMA_LOG_ERROR("kvq: %s\n", failure_.c_str());
  return failure_.empty();
}

void Memory::fail(const std::string& what) {
  if (failure_.empty()) failure_ = what;
}

bool Memory::attend(Layer& layer, const ggml_tensor* const (&inputs)[4], ggml_tensor* output) {
  if (!stepping_ || !failure_.empty()) return false;
  if (static_cast<size_t>(inputs[kQueries]->ne[2]) != rows_.token.size()) {
    fail("the graph has another number of tokens than the batch");
  } else if (extend(layer, inputs, output) != KVQ_OK) {
    fail("layer " + std::to_string(layer.index) + ": " + error_.message);
  }
  return failure_.empty();
}

/// Calls of a graph on a GPU are enqueued on its stream.
bool Memory::enter_stream(int device, void* stream) {
  if (device != place_.index) {
    fail("a node was given to another GPU than the cache is on");
    return false;
  }
  if (stream == stream_) return true;
  if (kvq_context_set_stream(context_.get(), stream, &error_) != KVQ_OK) {
    fail(error_.message);
    return false;
  }
  stream_ = stream;
  return true;
}

void Memory::leave_stream() {
  if (!stream_) return;
  stream_ = nullptr;
  without_reports([this] {
    const auto status = kvq_context_set_stream(context_.get(), nullptr, &error_);
    if (status != KVQ_OK && failure_.empty()) LLAMA_LOG_ERROR("kvq: %s\n", error_.message);
    if (status != KVQ_OK) fail(error_.message);
    return status;
  });
}

namespace {

/// Elements of a tensor of rows.
struct Tensor {
  float* data = nullptr;
  int64_t token_stride = 0;
  int64_t head_stride = 0;
};

Tensor view(const ggml_tensor* tensor) {
  if (!tensor) return {};
  return {static_cast<float*>(tensor->data), static_cast<int64_t>(tensor->nb[2] / sizeof(float)),
          static_cast<int64_t>(tensor->nb[1] / sizeof(float))};
}

/// Copies rows in kvq's order to `buffer`, which it advances.
Tensor gather(const ggml_tensor* tensor, const std::vector<int32_t>& tokens, float*& buffer) {
  const auto from = view(tensor);
  const auto channels = tensor->ne[0];
  const Tensor to = {buffer, channels * tensor->ne[1], channels};
  for (const auto token : tokens) {
    for (int64_t head = 0; head < tensor->ne[1]; ++head, buffer += channels) {
      std::memcpy(buffer, from.data + token * from.token_stride + head * from.head_stride, sizeof(float) * channels);
    }
  }
  return to;
}

/// What batches that append and those that do not have in common.
template <class Batch>
void set_queries(Batch& batch, const std::vector<kvq_sequence*>& sequences, const Tensor& queries) {
  batch.n_sequences = static_cast<int32_t>(sequences.size());
  batch.sequences = sequences.data();
  batch.q = queries.data;
  batch.q_token_stride = queries.token_stride;
  batch.q_head_stride = queries.head_stride;
}

}  // namespace

kvq_status Memory::extend(Layer& layer, const ggml_tensor* const (&inputs)[4], ggml_tensor* output) {
  Tensor tensors[kSinks] = {view(inputs[kQueries]), view(inputs[kKeys]), view(inputs[kValues])};
  const auto row = static_cast<size_t>(output->ne[0]);
  auto* result = static_cast<float*>(output->data);
  if (!rows_.in_order) {
    size_t size = row * rows_.token.size();
    for (int i = 0; i < kSinks; ++i) size += inputs[i] ? static_cast<size_t>(ggml_nelements(inputs[i])) : 0;
    try {
      buffer_.resize(std::max(buffer_.size(), size));
    } catch (const std::exception& e) {
      std::snprintf(error_.message, sizeof(error_.message), "%s", e.what());
      return KVQ_E_MEMORY;
    }
    result = buffer_.data();
    float* next = result + row * rows_.token.size();
    for (int i = 0; i < kSinks; ++i) {
      if (inputs[i]) tensors[i] = gather(inputs[i], rows_.token, next);
    }
  }
  const auto* sinks = inputs[kSinks] ? static_cast<const float*>(inputs[kSinks]->data) : nullptr;
  kvq_status status = KVQ_OK;
  if (layer.stores) {
    kvq_extend_batch batch;
    kvq_extend_batch_init(&batch, sizeof(batch));
    set_queries(batch, step_sequences_, tensors[kQueries]);
    batch.token_counts = step_counts_.data();
    batch.positions = rows_.positions.data();
    batch.k = tensors[kKeys].data;
    batch.k_token_stride = tensors[kKeys].token_stride;
    batch.k_head_stride = tensors[kKeys].head_stride;
    batch.v = tensors[kValues].data;
    batch.v_token_stride = tensors[kValues].token_stride;
    batch.v_head_stride = tensors[kValues].head_stride;
    batch.output = result;
    batch.sliding_window = layer.sliding_window;
    batch.sinks = sinks;
    status = kvq_extend(cache_.get(), layer.index, &batch, &error_);
  } else {
    kvq_attend_batch batch;
    kvq_attend_batch_init(&batch, sizeof(batch));
    set_queries(batch, step_sequences_, tensors[kQueries]);
    batch.query_counts = step_counts_.data();
    batch.query_positions = rows_.positions.data();
    batch.output = result;
    batch.sliding_window = layer.sliding_window;
    batch.sinks = sinks;
    status = kvq_attend(cache_.get(), layer.index, &batch, &error_);
  }
  if (status == KVQ_OK && !rows_.in_order) {
    for (size_t i = 0; i < rows_.token.size(); ++i) {
      std::memcpy(static_cast<float*>(output->data) + row * static_cast<size_t>(rows_.token[i]), result + row * i,
                  sizeof(float) * row);
    }
  }
  return status;
}

}  // namespace llama_kvq

size_t llama_kvq_bytes(const llama_context* context) {
  const auto* memory = dynamic_cast<const llama_kvq::Memory*>(llama_get_memory(context));
  return memory ? memory->bytes() : 0;
}
