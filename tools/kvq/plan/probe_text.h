#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "options/engine.h"

namespace cli {

/// Which tokens a model reads to be measured.
struct ProbeText {
  std::string file;       // empty: the model writes them
  int64_t tokens = 4096;  // about
  uint64_t seed = 1;      // of what the model writes
};

/// Windows of tokens, each read from an empty cache.
class ProbeWindows {
 public:
  ProbeWindows(const Engine& engine, ProbeText text);

  /// In words; the same only for the same tokens in the same windows.
  const std::string& note() const { return note_; }
  /// What the model writes takes as long as it takes to generate it.
  std::vector<std::vector<int32_t>> tokens(Engine& engine) const;

 private:
  ProbeText text_;
  int32_t length_;  // of a window that the model writes
  std::string note_;
  std::vector<std::vector<int32_t>> read_;  // from a file
};

}  // namespace cli
