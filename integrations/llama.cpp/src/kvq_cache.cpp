#include "kvq_cache.h"

#include "llama-cparams.h"
#include "llama-hparams.h"
#include "llama-model.h"
#include "llama_kvq.h"

#include <cstdlib>
#include <mutex>
#include <optional>
#include <stdexcept>

namespace llama_kvq {
namespace {

std::mutex policy_mutex;
std::optional<std::string> policy_text;  // unset: the environment's

[[noreturn]] void refuse(const std::string& what) { throw std::runtime_error("kvq: " + what); }

kvq_layer_shape shape_of_layer(const llama_hparams& hparams, int32_t layer, bool swa_full, const LayerChoice& choice) {
  kvq_layer_shape shape;
  kvq_layer_shape_init(&shape, sizeof(shape));
  shape.first_layer = layer;
  const auto il = static_cast<uint32_t>(layer);
  if ((choice.filter && !choice.filter(layer)) || hparams.n_head_kv(il) == 0) {
    shape.recurrent = 1;
    return shape;
  }
  shape.q_heads = static_cast<int32_t>(hparams.n_head(il));
  if (hparams.attn_soft_cap) shape.logit_softcap = hparams.f_attn_logit_softcapping;
  shape.pages_of_layer = choice.reuse ? choice.reuse(layer) : -1;
  if (shape.pages_of_layer >= 0) return shape;
  shape.kv_heads = static_cast<int32_t>(hparams.n_head_kv(il));
  shape.key_dim = static_cast<int32_t>(hparams.n_embd_head_k(il));
  shape.value_dim = static_cast<int32_t>(hparams.n_embd_head_v(il));
  if (!hparams.is_swa(il)) return shape;
  if (hparams.swa_type == LLAMA_SWA_TYPE_CHUNKED) {
    shape.attention_chunk = static_cast<int32_t>(hparams.n_swa);
  } else if (!swa_full) {
    shape.sliding_window = static_cast<int32_t>(hparams.n_swa);
  }
  return shape;
}

}  // namespace

void require(kvq_status status, const Error& error, const char* what) {
  if (status != KVQ_OK) refuse(std::string(what) + ": " + error.message);
}

std::string chosen_policy() {
  const std::lock_guard lock(policy_mutex);
  const char* environment = std::getenv("KVQ_POLICY");
  const std::string text = policy_text.value_or(environment ? environment : "");
  return text == "none" ? "" : text;
}

void refuse_unsupported(const llama_model& model, const llama_hparams& hparams, const llama_cparams& cparams) {
  if (cparams.ctx_type != LLAMA_CONTEXT_TYPE_DEFAULT) refuse("contexts of draft heads (MTP) are not supported");
  if (model.arch == LLM_ARCH_GROK || model.arch == LLM_ARCH_DFLASH || model.arch == LLM_ARCH_GEMMA4_ASSISTANT) {
    refuse(std::string("the architecture ") + llm_arch_name(model.arch) + " is not supported");
  }
  if (hparams.is_mla()) refuse("latent attention (MLA) is not supported");
  if (hparams.use_alibi || hparams.f_max_alibi_bias > 0)
    refuse("attention with position biases (ALiBi) is not supported");
  if (hparams.n_rel_attn_bkts > 0) refuse("relative position biases (T5) are not supported");
  if (hparams.n_pos_per_embd() > 1) refuse("several positions a token (M-RoPE) are not supported");
  if (hparams.hrm_prefix_lm) refuse("prefixes that see one another (HRM) are not supported");
  if (!hparams.causal_attn) refuse("attention that is not causal is not supported");
  if (hparams.swa_type != LLAMA_SWA_TYPE_NONE && hparams.swa_type != LLAMA_SWA_TYPE_STANDARD &&
      hparams.swa_type != LLAMA_SWA_TYPE_CHUNKED) {
    refuse("symmetric sliding windows are not supported");
  }
}

Shape shape_of(const llama_model& model, const llama_hparams& hparams, bool swa_full, const LayerChoice& choice) {
  Shape result;
  auto& options = result.options;
  kvq_cache_options_init(&options, sizeof(options));
  options.n_layers = static_cast<int32_t>(hparams.n_layer());
  options.rope = KVQ_ROPE_NONE;  // keys and queries come rotated
  options.model_id = llama_kvq_model_id(&model);
  for (int32_t layer = 0; layer < options.n_layers; ++layer) {
    const auto shape = shape_of_layer(hparams, layer, swa_full, choice);
    if (options.head_dim == 0 && shape.key_dim > 0) {  // the cache's heads: those of the first layer that has any
      options.q_heads = shape.q_heads;
      options.kv_heads = shape.kv_heads;
      options.head_dim = shape.value_dim;
    }
    const bool frees = shape.sliding_window > 0 || shape.attention_chunk > 0;
    result.frees_windows |= frees;
    const bool alike = shape.key_dim == options.head_dim && shape.value_dim == options.head_dim &&
                       shape.q_heads == options.q_heads && shape.kv_heads == options.kv_heads &&
                       shape.logit_softcap == 0;
    if (frees || !alike) result.layers.push_back(shape);
  }
  if (options.head_dim == 0) refuse("the model has no layer with keys and values");
  options.shapes = result.layers.data();
  options.n_shapes = static_cast<int32_t>(result.layers.size());
  return result;
}

}  // namespace llama_kvq

void llama_kvq_set_policy(const char* policy) {
  const std::lock_guard lock(llama_kvq::policy_mutex);
  if (policy) {
    llama_kvq::policy_text = policy;
  } else {
    llama_kvq::policy_text.reset();
  }
}

uint64_t llama_kvq_model_id(const llama_model* model) {
  const std::string text = model->desc() + " " + std::to_string(model->n_elements());
  uint64_t hash = 14695981039346656037u;  // FNV-1a
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 1099511628211u;
  return hash;
}
