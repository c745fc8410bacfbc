#pragma once

#include "llama_kvq.h"

#include "llama-graph.h"
#include "llama-memory.h"

#include <functional>
#include <memory>

/// What edited places of llama.cpp call. Every function leaves contexts alone whose memory is llama.cpp's own.
namespace llama_kvq {

struct DeviceNodes;

/// llama_model::create_memory, where it would create a plain cache or one with windows: a kvq cache, or NULL if none
/// was asked for. Throws std::runtime_error with the reason if kvq cannot hold this model's.
llama_memory_i* create_memory(const llama_model& model, const llama_memory_params& params, const llama_cparams& cparams,
                              const std::function<bool(int32_t)>& filter, const std::function<int32_t(int32_t)>& reuse);
/// Its result. Throws if kvq was asked for and the model takes another kind of memory.
llama_memory_i* checked_memory(llama_memory_i* memory);

/// llm_graph_context::build_attn_inp_kv and build_attn_inp_kv_iswa: inputs without masks and tensors, or NULL.
std::unique_ptr<llm_graph_input_attn_kv> attention_input(const llama_hparams& hparams, const llama_cparams& cparams,
                                                         const llama_memory_context_i* mctx);
std::unique_ptr<llm_graph_input_attn_kv_iswa> attention_input_iswa(const llama_hparams& hparams,
                                                                   const llama_cparams& cparams,
                                                                   const llama_memory_context_i* mctx);

/// llm_graph_context::build_attn: a node that stores keys and values and attends, [head_dim * q_heads, tokens]; or
/// NULL.
ggml_tensor* attention(ggml_context* ctx, ggml_cgraph* graph, llm_graph_input_i* input, ggml_tensor* q, ggml_tensor* k,
                       ggml_tensor* v, ggml_tensor* bias, ggml_tensor* sinks, ggml_tensor* v_mla, float scale,
                       int layer);

/// What ggml's CUDA backend does with the nodes of caches that are on a GPU.
const DeviceNodes* device_nodes();

/// llama_context::process_ubatch, after computing: false if a node of kvq has failed.
bool computed(const llama_memory_context_i* mctx, ggml_backend_sched_t sched);

}  // namespace llama_kvq
