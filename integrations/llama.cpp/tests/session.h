#pragma once

#include "llama.h"
#include "llama_kvq.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

/// A token for one or several sequences.
struct Token {
  llama_token id;
  llama_pos position;
  std::vector<llama_seq_id> sequences = {0};
  bool logits = true;  // are wanted
};

using Logits = std::vector<float>;

struct FreeModel {
  void operator()(llama_model* model) const { llama_model_free(model); }
};
struct FreeContext {
  void operator()(llama_context* context) const { llama_free(context); }
};
using Model = std::unique_ptr<llama_model, FreeModel>;

inline Model load_model(const std::string& path, int gpu_layers = -1) {
  auto params = llama_model_default_params();
  params.n_gpu_layers = gpu_layers;
  Model model(llama_model_load_from_file(path.c_str(), params));
  if (!model) throw std::runtime_error("cannot load " + path);
  return model;
}

struct Options {
  uint32_t context = 2048;
  uint32_t ubatch = 128;
  uint32_t sequences = 8;
  bool unified = true;
  bool full_windows = false;
  bool offload = true;  // the cache, where the layers are on a GPU
  bool flash = true;    // of llama.cpp's own cache
  ggml_type type = GGML_TYPE_F16;
  int32_t threads = 1;  // more wait for one another, which takes long on a machine that others use
};

/// A context whose keys and values are stored by a policy of kvq; "none": by llama.cpp.
class Session {
 public:
  Session(const Model& model, const std::string& policy, const Options& options = {}) {
    llama_kvq_set_policy(policy.c_str());
    auto params = llama_context_default_params();
    params.n_ctx = options.context;
    params.n_batch = 1024;
    params.n_ubatch = options.ubatch;
    params.n_seq_max = options.sequences;
    params.kv_unified = options.unified;
    params.flash_attn_type = options.flash ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    params.swa_full = options.full_windows;
    params.offload_kqv = options.offload;
    params.type_k = params.type_v = options.type;
    params.n_threads = params.n_threads_batch = options.threads;
    context_.reset(llama_init_from_model(model.get(), params));
    llama_kvq_set_policy("none");
    if (!context_) throw std::runtime_error("no context with policy " + policy);
    vocabulary_ = static_cast<size_t>(llama_vocab_n_tokens(llama_model_get_vocab(model.get())));
  }

  llama_context* context() const { return context_.get(); }
  llama_memory_t memory() const { return llama_get_memory(context_.get()); }

  int decode(const std::vector<Token>& tokens) {
    auto batch = llama_batch_init(static_cast<int32_t>(tokens.size()), 0, 8);
    batch.n_tokens = static_cast<int32_t>(tokens.size());
    for (size_t i = 0; i < tokens.size(); ++i) {
      batch.token[i] = tokens[i].id;
      batch.pos[i] = tokens[i].position;
      batch.n_seq_id[i] = static_cast<int32_t>(tokens[i].sequences.size());
      std::copy(tokens[i].sequences.begin(), tokens[i].sequences.end(), batch.seq_id[i]);
      batch.logits[i] = tokens[i].logits;
    }
    const int status = llama_decode(context_.get(), batch);
    llama_batch_free(batch);
    return status;
  }

  /// Logits behind each token.
  std::vector<Logits> run(const std::vector<Token>& tokens) {
    if (const int status = decode(tokens)) throw std::runtime_error("llama_decode returned " + std::to_string(status));
    std::vector<Logits> result;
    for (size_t i = 0; i < tokens.size(); ++i) {
      const float* logits = llama_get_logits_ith(context_.get(), static_cast<int32_t>(i));
      result.emplace_back(logits, logits + vocabulary_);
    }
    return result;
  }

  /// As many tokens of a text, from a position on, for one sequence.
  std::vector<Logits> run(const std::vector<llama_token>& text, int begin, int end, llama_seq_id sequence = 0) {
    std::vector<Logits> result;
    for (int piece = begin; piece < end; piece += 512) {
      std::vector<Token> tokens;
      for (int i = piece; i < std::min(end, piece + 512); ++i) tokens.push_back({text[i], i, {sequence}, true});
      for (auto& logits : run(tokens)) result.push_back(std::move(logits));
    }
    return result;
  }

  /// Keeps positions before `begin`.
  bool cut(llama_seq_id sequence, llama_pos begin) { return llama_memory_seq_rm(memory(), sequence, begin, -1); }

 private:
  std::unique_ptr<llama_context, FreeContext> context_;
  size_t vocabulary_ = 0;
};

inline double surprise(const Logits& logits, llama_token token) {
  const double most = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - most);
  return most + std::log(sum) - logits[static_cast<size_t>(token)];
}

inline double difference(const Logits& a, const Logits& b) {
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) most = std::max(most, std::fabs(double(a[i]) - b[i]));
  return std::isfinite(a[0]) ? most : HUGE_VAL;
}

inline llama_token best(const Logits& logits) {
  return static_cast<llama_token>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

inline std::vector<llama_token> read_tokens(const std::string& path) {
  std::vector<llama_token> result;
  std::ifstream file(path);
  for (llama_token token; file >> token;) result.push_back(token);
  return result;
}
