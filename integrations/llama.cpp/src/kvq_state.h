#pragma once

#include <cstdint>

namespace llama_kvq {

/// A state of llama.cpp that kvq has written: a header, an entry for each sequence, and a snapshot of kvq.
inline constexpr uint32_t kStateMagic = 0x3151564b;  // "KVQ1"

struct StateHeader {
  uint32_t magic;
  int32_t sequences;
  uint64_t bytes;  // of the snapshot that follows the entries
};

struct StateEntry {
  int32_t id;
  int32_t first;
  int32_t length;
  int32_t inherited;
  uint64_t content;
};

}  // namespace llama_kvq
