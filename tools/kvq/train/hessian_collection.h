#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "llama/hessians.h"
#include "options/model_options.h"

namespace cli {

/// What the linear layers of a model read when it runs over texts: of as many layers at once as memory has room for.
class HessianCollection {
 public:
  using Layers = std::span<const llama::LinearLayer>;
  using IsWanted = std::function<bool(const llama::LinearLayer&)>;

  /// Runs where quantization is to be done or, if the model does not fit there, on the CPU.
  /// \param bytes      of sums at once; 0: half of the device's memory.
  /// \param is_wanted  whose inputs to collect.
  HessianCollection(const std::filesystem::path& model, const ComputeOptions& compute,
                    std::span<const llama::Tokens> windows, uint64_t bytes, IsWanted is_wanted);

  /// The layers in runs that collect() has room for. An Error if there is none for a single one.
  std::vector<Layers> runs(Layers layers) const;

  /// Run the model over the windows. What was collected before is gone.
  void collect(Layers layers, const std::string& label);

  std::span<const float> of(const llama::LinearLayer& layer) { return hessians_->of(layer); }

 private:
  Engine engine_;
  std::span<const llama::Tokens> windows_;
  uint64_t bytes_;
  IsWanted is_wanted_;
  std::optional<llama::Hessians> hessians_;
};

}  // namespace cli
