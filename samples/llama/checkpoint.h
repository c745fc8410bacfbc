#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "safetensors.h"

namespace llama {

/** The tensors of a model directory: `model.safetensors`, or the shards that `model.safetensors.index.json` names. */
class Checkpoint {
 public:
  explicit Checkpoint(const std::filesystem::path& directory);

  /** nullptr if there is no such tensor. Views live as long as the checkpoint. */
  const TensorView* find(std::string_view name) const;
  /** Throws Error if there is no such tensor. */
  const TensorView& at(std::string_view name) const;
  /** A number that differs between checkpoints: of names, types, shapes, and samples of every tensor's bytes. */
  uint64_t fingerprint() const;

 private:
  std::filesystem::path directory_;
  std::vector<SafetensorsFile> shards_;
  std::map<std::string, const TensorView*, std::less<>> tensors_;
};

}  // namespace llama
