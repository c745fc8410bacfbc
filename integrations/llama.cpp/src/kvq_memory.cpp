#include "kvq_memory.h"

#include "llama-cparams.h"
#include "llama-hparams.h"
#include "llama-impl.h"
#include "llama-model.h"

#include <algorithm>
#include <map>
#include <stdexcept>

namespace llama_kvq {
namespace {

/// Sequences whose newest ubatch has more tokens keep no FP16 originals of it once the batch is done.
constexpr int32_t kDraftTokens = 64;

kvq_log_hook log_hook() {
  return [](void*, kvq_log_level level, const char* message) {
    if (level == KVQ_LOG_INFO) {
      LLAMA_LOG_INFO("kvq: %s\n", message);
    } else {
      LLAMA_LOG_WARN("kvq: %s\n", message);
    }
  };
}

Context create_context(Threads& threads, const Place& place) {
  kvq_context_options options;
  kvq_context_options_init(&options, sizeof(options));
  if (place.gpu) options.device = KVQ_DEVICE_CUDA;
  options.device_index = place.index;
  options.log = log_hook();
  options.parallel_for = Threads::run;
  options.parallel_for_user = &threads;
  Error error;
  kvq_context* result = nullptr;
  require(kvq_context_create(&options, &result, &error), error, "context");
  return Context(result);
}

Policy load_policy(kvq_context* context, const std::string& text) {
  Error error;
  kvq_policy* result = nullptr;
  require(kvq_policy_load(context, text.data(), text.size(), &result, &error), error, "policy");
  Policy policy(result);
  kvq_policy_info info = {};
  info.struct_size = sizeof(info);
  require(kvq_policy_describe(result, &info, &error), error, "policy");
  if (info.eviction_budget != 0) throw std::runtime_error("kvq: policies that evict are not supported");
  return policy;
}

}  // namespace

Memory::Memory(const llama_model& model, const llama_memory_params& params, const llama_cparams& cparams,
               const std::string& policy, const LayerChoice& choice)
    : cparams_(cparams), sequences_(LLAMA_MAX_SEQ) {
  const auto& hparams = model.hparams;
  refuse_unsupported(model, hparams, cparams);
  place_ = choose_place(model, cparams);
  context_ = create_context(threads_, place_);
  const auto loaded = load_policy(context_.get(), policy);
  const auto shape = shape_of(model, hparams, params.swa_full, choice);
  kvq_cache* cache = nullptr;
  require(kvq_cache_create(context_.get(), &shape.options, loaded.get(), &cache, &error_), error_, "cache");
  cache_.reset(cache);
  for (int32_t i = 0; i < shape.options.n_layers; ++i) {
    auto& layer = layers_.emplace_back();
    layer.memory = this;
    layer.index = i;
    layer.info.struct_size = sizeof(layer.info);
    require(kvq_cache_describe_layer(cache, i, &layer.info, &error_), error_, "layer");
    layer.stores = !layer.info.recurrent && layer.info.pages_of_layer == i;
    if (hparams.is_swa(static_cast<uint32_t>(i)) && layer.info.sliding_window == 0 && layer.info.attention_chunk == 0) {
      layer.sliding_window = static_cast<int32_t>(hparams.n_swa);
    }
  }
  frees_windows_ = shape.frees_windows;
  kvq_cache_info info = {};
  info.struct_size = sizeof(info);
  require(kvq_cache_describe(cache, &info, &error_), error_, "cache");
  recent_tokens_ = KVQ_PAGE_SLOTS * std::max(0, info.recent - 1);
  LLAMA_LOG_INFO("kvq: version %s holds keys and values in %s, policy %s; types of the KV cache do not apply\n",
                 kvq_version_string(), on_gpu() ? ggml_backend_dev_name(place_.gpu) : "host memory", policy.c_str());
}

Memory::~Memory() {
  end_step();
  kvq_usage usage = {};
  usage.struct_size = sizeof(usage);
  if (kvq_cache_usage(cache_.get(), nullptr, &usage, nullptr) != KVQ_OK) return;
  LLAMA_LOG_INFO("kvq: pages %.2f MiB, %.2f bits per scalar, workspace %.2f MiB\n",
                 double(usage.sealed_bytes + usage.fp16_bytes + usage.metadata_bytes) / (1 << 20),
                 usage.bits_per_scalar, double(usage.workspace_bytes) / (1 << 20));
}

// ---------------------------------------------------------------------------------------------------------- batches

MemoryContext::~MemoryContext() {
  if (!ubatches_.empty()) memory_.finish_batch();
}

llama_memory_context_ptr Memory::init_full() {
  return std::make_unique<MemoryContext>(*this, LLAMA_MEMORY_STATUS_SUCCESS);
}

llama_memory_context_ptr Memory::init_update(llama_context*, bool) {
  return std::make_unique<MemoryContext>(*this, LLAMA_MEMORY_STATUS_NO_UPDATE);
}

llama_memory_context_ptr Memory::init_batch(llama_batch_allocr& allocator, uint32_t n_ubatch, bool) {
  std::vector<llama_ubatch> ubatches;
  const auto split = [&](auto next) {
    ubatches.clear();
    allocator.split_reset();
    for (auto ubatch = next(); ubatch.n_tokens > 0; ubatch = next()) ubatches.push_back(std::move(ubatch));
    return allocator.get_n_used() == allocator.get_n_tokens();
  };
  const auto arranged = [&] {
    Rows rows;
    // Rows on a GPU stay where they are: a ubatch has those of a sequence side by side.
    return std::all_of(ubatches.begin(), ubatches.end(),
                       [&](const auto& ubatch) { return arrange(ubatch, rows) && (rows.in_order || !on_gpu()); });
  };
  // Tokens of several sequences, as of a prompt that they share, cannot be in a ubatch with those that these have
  // alone.
  const bool done = (split([&] { return allocator.split_simple(n_ubatch); }) && arranged()) ||
                    (split([&] { return allocator.split_equal(n_ubatch, false, 0); }) && arranged());
  if (!done) {
    LLAMA_LOG_ERROR("kvq: a batch has a token of several sequences that are not the same so far\n");
    return std::make_unique<MemoryContext>(*this, LLAMA_MEMORY_STATUS_FAILED_COMPUTE);
  }
  if (!fits(ubatches)) return std::make_unique<MemoryContext>(*this, LLAMA_MEMORY_STATUS_FAILED_PREPARE);
  return std::make_unique<MemoryContext>(*this, std::move(ubatches));
}

/// llama.cpp's limits: a sequence has as many tokens as the context says, and with a unified cache all have.
bool Memory::fits(const std::vector<llama_ubatch>& ubatches) const {
  std::map<llama_seq_id, int64_t> added;
  int64_t all = 0;
  for (const auto& ubatch : ubatches) {
    for (uint32_t i = 0; i < ubatch.n_tokens; ++i) {
      for (int32_t s = 0; s < ubatch.n_seq_id[i]; ++s) ++added[ubatch.seq_id[i][s]];
    }
    all += ubatch.n_tokens;
  }
  for (const auto& sequence : sequences_) all += sequence.length - sequence.inherited;
  const auto limit = static_cast<int64_t>(cparams_.n_ctx_seq);
  if (cparams_.kv_unified && all > limit) return false;
  return std::all_of(added.begin(), added.end(), [&](const auto& entry) {
    return sequences_[static_cast<size_t>(entry.first)].length + entry.second <= limit;
  });
}

/// Adds a token to the part of its sequences, a new one if need be.
bool Memory::place(const llama_ubatch& ubatch, uint32_t token, Rows& rows) const {
  const llama_seq_id* ids = ubatch.seq_id[token];
  const auto n = ubatch.n_seq_id[token];
  for (auto& part : rows.parts) {
    const auto has = [&](llama_seq_id id) {
      return id == part.sequence || std::find(part.followers.begin(), part.followers.end(), id) != part.followers.end();
    };
    if (std::none_of(ids, ids + n, has)) continue;
    const bool same = static_cast<size_t>(n) == part.followers.size() + 1 && std::all_of(ids, ids + n, has);
    part.tokens += same;
    return same;
  }
  auto& part = rows.parts.emplace_back();
  part.sequence = ids[0];
  part.tokens = 1;
  part.followers.assign(ids + 1, ids + n);
  return true;
}

/// False if a token is in a part of its sequences only.
bool Memory::arrange(const llama_ubatch& ubatch, Rows& rows) const {
  rows = {};
  for (uint32_t i = 0; i < ubatch.n_tokens; ++i) {
    if (!place(ubatch, i, rows)) return false;
  }
  for (const auto& part : rows.parts) {
    for (uint32_t i = 0; i < ubatch.n_tokens; ++i) {
      const auto* ids = ubatch.seq_id[i];
      if (std::find(ids, ids + ubatch.n_seq_id[i], part.sequence) == ids + ubatch.n_seq_id[i]) continue;
      rows.in_order &= i == rows.token.size();
      rows.token.push_back(static_cast<int32_t>(i));
      rows.positions.push_back(ubatch.pos[i]);
    }
  }
  return true;
}

// ------------------------------------------------------------------------------------------------------------ steps

bool Memory::begin(const llama_ubatch& ubatch) {
  end_step();
  failure_.clear();
  if (!cparams_.causal_attn || cparams_.training) {
    LLAMA_LOG_ERROR("kvq: %s is not supported\n", cparams_.training ? "training" : "attention that is not causal");
    return false;
  }
  if (!arrange(ubatch, rows_)) return false;
  size_t row = 0;
  step_sequences_.clear();
  step_counts_.clear();
  for (const auto& part : rows_.parts) {
    auto& sequence = sequences_[static_cast<size_t>(part.sequence)];
    const auto unlike = [&](llama_seq_id id) {
      const auto& other = sequences_[static_cast<size_t>(id)];
      return other.broken || other.length != sequence.length ||
             (other.length > 0 && (other.first != sequence.first || other.content != sequence.content));
    };
    if (sequence.broken || std::any_of(part.followers.begin(), part.followers.end(), unlike)) {
      LLAMA_LOG_ERROR("kvq: sequence %d %s\n", part.sequence,
                      sequence.broken ? "has lost its tokens: remove all of them first"
                                      : "is not the same as others that a token is for");
      return false;
    }
    if (sequence.length == 0) sequence.first = rows_.positions[row];
    for (int32_t i = 0; i < part.tokens; ++i, ++row) {
      if (rows_.positions[row] != sequence.end() + i) {
        LLAMA_LOG_ERROR("kvq: sequence %d continues at position %d, a token has %d\n", part.sequence,
                        sequence.end() + i, rows_.positions[row]);
        return false;
      }
    }
    kvq_sequence* pages = sequence.pages.get();
    if (!pages && kvq_sequence_create(cache_.get(), &pages, &error_) != KVQ_OK) {
      LLAMA_LOG_ERROR("kvq: %s\n", error_.message);
      return false;
    }
    if (!sequence.pages) sequence.pages.reset(pages);
    step_sequences_.push_back(pages);
    step_counts_.push_back(part.tokens);
  }
  const kvq_step_batch batch = {sizeof(kvq_step_batch), static_cast<int32_t>(step_sequences_.size()),
                                step_sequences_.data(), step_counts_.data(), nullptr};
  if (kvq_step_begin(cache_.get(), &batch, &error_) != KVQ_OK) {
    LLAMA_LOG_ERROR("kvq: %s\n", error_.message);
    return false;
  }
  stepping_ = true;
  for (const auto& part : rows_.parts) {
    auto& sequence = sequences_[static_cast<size_t>(part.sequence)];
    sequence.length += part.tokens;
    sequence.newest = part.tokens;
    sequence.content = ++contents_;
  }
  return true;
}

bool Memory::in_step(llama_seq_id id) const {
  return stepping_ && std::any_of(rows_.parts.begin(), rows_.parts.end(), [&](const auto& part) {
           return part.sequence == id ||
                  std::find(part.followers.begin(), part.followers.end(), id) != part.followers.end();
         });
}

/// Ends the step: its tokens stay if all layers have them, and otherwise none.
void Memory::end_step() {
  if (!stepping_) return;
  stepping_ = false;
  for (const auto& part : rows_.parts) {
    auto& sequence = sequences_[static_cast<size_t>(part.sequence)];
    kvq_sequence* pages = sequence.pages.get();
    const kvq_step_batch batch = {sizeof(kvq_step_batch), 1, &pages, nullptr, nullptr};
    if (failure_.empty()) {
      if (kvq_step_commit(cache_.get(), &batch, &error_) == KVQ_OK) {
        for (const auto id : part.followers) drop(id);
        follow(part);
        continue;
      }
      LLAMA_LOG_ERROR("kvq: sequence %d loses the tokens of its last batch: %s\n", part.sequence, error_.message);
    }
    // A graph that was aborted, or whose other nodes failed, has not reached every layer.
    sequence.length -= part.tokens;
    sequence.newest = 0;
    if (sequence.length == 0) {
      drop(part.sequence);
    } else if (without_reports([&] { return kvq_step_abort(cache_.get(), &batch, &error_); }) != KVQ_OK) {
      cannot(part.sequence, "a step could not be taken back");
    }
  }
}

/// Ends the step of one sequence before the token at position `end`, which is one of the step's. False: the step goes
/// on.
bool Memory::end_step_at(llama_seq_id id, llama_pos end) {
  if (!failure_.empty()) return false;
  const auto part =
      std::find_if(rows_.parts.begin(), rows_.parts.end(), [&](const auto& it) { return it.sequence == id; });
  if (part == rows_.parts.end() || !part->followers.empty()) return false;
  auto& sequence = sequences_[static_cast<size_t>(id)];
  const int32_t kept = part->tokens - (sequence.end() - end);
  if (kept < 0) return false;
  kvq_sequence* pages = sequence.pages.get();
  const kvq_step_batch batch = {sizeof(kvq_step_batch), 1, &pages, &kept, nullptr};
  if (kvq_step_commit(cache_.get(), &batch, &error_) != KVQ_OK) return false;
  sequence.length -= part->tokens - kept;
  sequence.newest = kept;
  rows_.parts.erase(part);
  stepping_ = !rows_.parts.empty();
  return true;
}

/// Gives the followers of a part what its sequence has.
void Memory::follow(const Rows::Part& part) {
  const auto& leader = sequences_[static_cast<size_t>(part.sequence)];
  for (const auto id : part.followers) {
    auto& sequence = sequences_[static_cast<size_t>(id)];
    kvq_sequence* fork = nullptr;
    if (kvq_sequence_fork(cache_.get(), leader.pages.get(), &fork, &error_) != KVQ_OK) {
      cannot(id, error_.message);
      continue;
    }
    sequence = {Pages(fork), leader.first, leader.length, 0, leader.length, leader.content, false};
  }
}

void Memory::finish_batch() {
  leave_stream();
  const bool large = std::any_of(rows_.parts.begin(), rows_.parts.end(), [](const auto& part) {
    return part.tokens > kDraftTokens || !part.followers.empty();
  });
  if (large) end_step();
}

}  // namespace llama_kvq
