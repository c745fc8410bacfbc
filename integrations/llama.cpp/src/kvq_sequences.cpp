#include "kvq_memory.h"

#include "llama-impl.h"

#include <algorithm>
#include <limits>

namespace llama_kvq {

void Memory::drop(llama_seq_id id) { sequences_[static_cast<size_t>(id)] = {}; }

/// For calls that return nothing: the sequence refuses tokens until all of it is removed.
void Memory::cannot(llama_seq_id id, const char* what) {
  LLAMA_LOG_ERROR("kvq: sequence %d: %s; it takes no tokens until it is removed\n", id, what);
  drop(id);
  sequences_[static_cast<size_t>(id)].broken = true;
}

void Memory::clear(bool) {
  stepping_ = false;
  failure_.clear();
  for (size_t i = 0; i < sequences_.size(); ++i) drop(static_cast<llama_seq_id>(i));
}

bool Memory::seq_rm(llama_seq_id id, llama_pos begin, llama_pos end) {
  begin = std::max(begin, 0);
  if (end < 0) end = std::numeric_limits<llama_pos>::max();
  if (id >= 0) return remove(id, begin, end);
  bool all = true;
  for (size_t i = 0; i < sequences_.size(); ++i) all &= remove(static_cast<llama_seq_id>(i), begin, end);
  return all;
}

bool Memory::remove(llama_seq_id id, llama_pos begin, llama_pos end) {
  auto& sequence = sequences_[static_cast<size_t>(id)];
  if (in_step(id)) {
    if (begin < sequence.end() && end >= sequence.end() && end_step_at(id, begin)) {
      if (sequence.length == 0) drop(id);
      return true;
    }
    end_step();
  }
  if (sequence.broken) {
    if (begin == 0 && end == std::numeric_limits<llama_pos>::max()) drop(id);
    return true;
  }
  if (begin >= sequence.end() || end <= sequence.first || begin >= end) return true;
  if (end < sequence.end()) {
    LLAMA_LOG_WARN("kvq: sequence %d has tokens behind position %d: only the newest can be removed\n", id, end);
    return false;
  }
  if (begin <= sequence.first) {
    drop(id);
    return true;
  }
  return truncate(sequence, begin - sequence.first);
}

bool Memory::truncate(Sequence& sequence, int32_t length) {
  if (kvq_sequence_truncate(cache_.get(), sequence.pages.get(), length, &error_) != KVQ_OK) {
    LLAMA_LOG_WARN("kvq: %s\n", error_.message);
    return false;
  }
  sequence.newest = std::max(0, sequence.newest - (sequence.length - length));
  sequence.length = length;
  sequence.inherited = std::min(sequence.inherited, length);
  return true;
}

void Memory::seq_cp(llama_seq_id source_id, llama_seq_id target_id, llama_pos begin, llama_pos end) {
  if (source_id == target_id) return;
  end_step();
  auto& source = sequences_[static_cast<size_t>(source_id)];
  auto& target = sequences_[static_cast<size_t>(target_id)];
  if (end < 0 || end > source.end()) end = source.end();
  if (source.broken) return cannot(target_id, "its source has lost its tokens");
  if (source.length == 0 || end <= std::max(begin, source.first)) return;
  if (begin > source.first) return cannot(target_id, "only copies from the first token on are supported");
  Sequence copy;
  kvq_sequence* fork = nullptr;
  if (kvq_sequence_fork(cache_.get(), source.pages.get(), &fork, &error_) != KVQ_OK)
    return cannot(target_id, error_.message);
  copy = {Pages(fork), source.first, source.length, source.newest, source.length, source.content, false};
  if (end < source.end() && !truncate(copy, end - source.first)) return cannot(target_id, error_.message);
  target = std::move(copy);
}

void Memory::seq_keep(llama_seq_id id) {
  end_step();
  for (size_t i = 0; i < sequences_.size(); ++i) {
    if (static_cast<llama_seq_id>(i) != id) drop(static_cast<llama_seq_id>(i));
  }
}

void Memory::seq_add(llama_seq_id id, llama_pos begin, llama_pos end, llama_pos shift) {
  if (id < 0 || shift == 0) return;
  const auto& sequence = sequences_[static_cast<size_t>(id)];
  if (end < 0) end = std::numeric_limits<llama_pos>::max();
  if (sequence.length == 0 || begin >= sequence.end() || end <= sequence.first) return;
  end_step();
  cannot(id, "positions cannot be shifted");
}

void Memory::seq_div(llama_seq_id id, llama_pos begin, llama_pos end, int divisor) {
  seq_add(id, begin, end, divisor == 1 ? 0 : 1);
}

/// The first token that the next one could follow: layers with windows forget others.
llama_pos Memory::seq_pos_min(llama_seq_id id) const {
  const auto& sequence = sequences_[static_cast<size_t>(id)];
  if (sequence.length == 0) return -1;
  if (!frees_windows_) return sequence.first;
  int32_t window = 1;
  for (const auto& layer : layers_) {
    if (layer.stores) window = std::max({window, layer.info.sliding_window, layer.info.attention_chunk});
  }
  return std::max(sequence.first, sequence.end() - sequence.newest - recent_tokens_ - window + 1);
}

llama_pos Memory::seq_pos_max(llama_seq_id id) const {
  const auto& sequence = sequences_[static_cast<size_t>(id)];
  return sequence.length == 0 ? -1 : sequence.end() - 1;
}

size_t Memory::bytes() const {
  kvq_usage usage = {};
  usage.struct_size = sizeof(usage);
  return kvq_cache_usage(cache_.get(), nullptr, &usage, nullptr) == KVQ_OK ? usage.total_bytes : 0;
}

std::map<ggml_backend_buffer_type_t, size_t> Memory::memory_breakdown() const {
  return {{on_gpu() ? ggml_backend_dev_buffer_type(place_.gpu) : ggml_backend_cpu_buffer_type(), bytes()}};
}

}  // namespace llama_kvq
