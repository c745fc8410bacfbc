#pragma once

#include <cstddef>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

#include "llama/linear_layers.h"

namespace cli {

/// The directory where a quantization keeps finished matrices until all are, a file each.
class PartialMatrices {
 public:
  /// Make the directory, or take up what an earlier run left there; an Error if that was made with other options.
  /// \param made_with  what the matrices depend on: an object of strings and numbers.
  PartialMatrices(std::filesystem::path directory, const nlohmann::ordered_json& made_with);

  const std::filesystem::path& directory() const { return directory_; }
  std::filesystem::path file(const std::string& name) const { return directory_ / (name + ".safetensors"); }
  bool holds(const std::string& name) const;
  bool is_empty() const;
  void keep(const std::string& name, std::span<const std::byte> bytes) const;
  /// The directory and these files.
  void remove(std::span<const llama::LinearLayer> layers) const;

 private:
  std::filesystem::path directory_;
};

}  // namespace cli
