#pragma once

#include "kvq_threads.h"

#include <kvq.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

struct llama_cparams;
struct llama_hparams;
struct llama_model;

namespace llama_kvq {

template <auto destroy>
struct Destroy {
  template <class T>
  void operator()(T* handle) const {
    destroy(handle);
  }
};
using Context = std::unique_ptr<kvq_context, Destroy<kvq_context_destroy>>;
using Policy = std::unique_ptr<kvq_policy, Destroy<kvq_policy_destroy>>;
using Cache = std::unique_ptr<kvq_cache, Destroy<kvq_cache_destroy>>;
using Pages = std::unique_ptr<kvq_sequence, Destroy<kvq_sequence_destroy>>;

struct Error : kvq_error {
  Error() { kvq_error_init(this, sizeof(kvq_error)); }
};

/// Throws std::runtime_error with the message of a call that has failed.
void require(kvq_status status, const Error& error, const char* what);

class Memory;

/// A layer of the model: what its graph node points to.
struct Layer {
  Memory* memory = nullptr;
  int32_t index = 0;
  kvq_layer_info info = {};
  bool stores = true;          // false: it reads the pages of an earlier layer, or has no attention
  int32_t sliding_window = 0;  // of calls, where the cache keeps what is behind it
  std::atomic<bool> done{false};
};

/// Which layers keep keys and values, and whose pages the others read: llama.cpp's callbacks. Empty: all their own.
struct LayerChoice {
  std::function<bool(int32_t)> filter;
  std::function<int32_t(int32_t)> reuse;
};

/// Shape of a model's cache.
struct Shape {
  kvq_cache_options options;
  std::vector<kvq_layer_shape> layers;
  bool frees_windows = false;
};

/// Throws std::runtime_error if kvq cannot hold this model's cache.
void refuse_unsupported(const llama_model& model, const llama_hparams& hparams, const llama_cparams& cparams);
Shape shape_of(const llama_model& model, const llama_hparams& hparams, bool swa_full, const LayerChoice& choice);

/// Text that ::llama_kvq_set_policy or the environment's KVQ_POLICY gives; empty: llama.cpp's own cache.
std::string chosen_policy();

}  // namespace llama_kvq
