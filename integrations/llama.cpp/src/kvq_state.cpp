#include "kvq_state.h"

#include "kvq_memory.h"

#include "llama-io.h"

#include <map>
#include <stdexcept>

namespace llama_kvq {

/// Flags do not matter: a part of a state is all of it.
void Memory::state_write(llama_io_write_i& io, llama_seq_id id, llama_state_seq_flags) const {
  const_cast<Memory*>(this)->end_step();  // changes nothing that a caller could see
  std::vector<StateEntry> entries;
  std::vector<const kvq_sequence*> pages;
  for (size_t i = 0; i < sequences_.size(); ++i) {
    const auto& sequence = sequences_[i];
    const auto own = static_cast<llama_seq_id>(i);
    if (sequence.length == 0 || (id >= 0 && own != id)) continue;
    entries.push_back({own, sequence.first, sequence.length, id >= 0 ? 0 : sequence.inherited, sequence.content});
    pages.push_back(sequence.pages.get());
  }
  std::vector<uint8_t> snapshot;
  if (!pages.empty()) {
    Error error;
    size_t size = 0;
    const auto n = static_cast<int32_t>(pages.size());
    require(kvq_cache_save(cache_.get(), pages.data(), n, nullptr, 0, &size, &error), error, "saving");
    snapshot.resize(size);
    require(kvq_cache_save(cache_.get(), pages.data(), n, snapshot.data(), size, &size, &error), error, "saving");
  }
  const StateHeader header = {kStateMagic, static_cast<int32_t>(entries.size()), snapshot.size()};
  io.write(&header, sizeof(header));
  io.write(entries.data(), entries.size() * sizeof(StateEntry));
  io.write(snapshot.data(), snapshot.size());
}

/// After a failure, which throws, all sequences are as they were.
void Memory::state_read(llama_io_read_i& io, llama_seq_id id, llama_state_seq_flags) {
  StateHeader header = {};
  io.read(&header, sizeof(header));
  const auto most = id >= 0 ? 1 : static_cast<int32_t>(sequences_.size());
  if (header.magic != kStateMagic || header.sequences < 0 || header.sequences > most) {
    throw std::runtime_error("kvq: this is not the state of a kvq cache");
  }
  std::vector<StateEntry> entries(static_cast<size_t>(header.sequences));
  io.read(entries.data(), entries.size() * sizeof(StateEntry));
  for (const auto& entry : entries) {
    if (entry.id < 0 || static_cast<size_t>(entry.id) >= sequences_.size() || entry.length <= 0 || entry.first < 0) {
      throw std::runtime_error("kvq: the state of a kvq cache is damaged");
    }
  }
  std::vector<uint8_t> snapshot(header.bytes);
  io.read(snapshot.data(), snapshot.size());
  end_step();
  std::vector<kvq_sequence*> loaded(entries.size());
  Error error;
  if (!entries.empty()) {
    require(kvq_cache_load(cache_.get(), snapshot.data(), snapshot.size(), loaded.data(), header.sequences, nullptr,
                           &error),
            error, "loading");
  }
  if (id >= 0) {
    drop(id);
  } else {
    clear(true);
  }
  std::map<uint64_t, uint64_t> contents;  // numbers here of those in the file
  for (size_t i = 0; i < entries.size(); ++i) {
    const auto& entry = entries[i];
    auto& content = contents[entry.content];
    if (content == 0) content = ++contents_;
    sequences_[static_cast<size_t>(id >= 0 ? id : entry.id)] = {Pages(loaded[i]), entry.first, entry.length, 0,
                                                                entry.inherited,  content,     false};
  }
}

}  // namespace llama_kvq
