#pragma once

#include <map>
#include <vector>

#include "llama/json_document.h"

namespace cli {

enum class Side { kKeys, kValues };

/// What a linear layer loses when its weights are off.
struct Sensitivity {
  double slope = 0.0;      // divergence in nats, over the squared error of the weights relative to their squares
  double fit_error = 0.0;  // of single measurements from that line, relative, root mean square
  std::vector<double> divergences;  // at the noise levels of the measurements
};

struct Latencies {
  std::map<std::string, double> linear;  // by linear_key()
  std::map<std::string, double> cache;   // of appending to a layer and attending, by cache_time_key()
  std::map<std::string, double> others;  // of the rest of a step of decoding, by others_key()
};

/// What bit allocation knows of a model and of machines, kept in a file, which grows measurement by measurement.
struct Measurements {
  /// Reads the file if there is one. An Error if it is of another model, or of other tokens than `text` says.
  Measurements(std::filesystem::path path, uint64_t model, const std::string& text);
  void save() const;

  std::filesystem::path path;
  uint64_t model;                                              // fingerprint of the checkpoint
  std::string text;                                            // what the model read, in words
  std::vector<double> noise_levels;                            // relative norms
  std::map<std::string, Sensitivity> weights;                  // by the name of the linear layer
  std::map<std::string, double> scheme_errors;                 // by scheme: squared error of Gaussian weights
  std::map<std::string, std::map<std::string, double>> cache;  // by cache_key(): divergence by format
  std::map<std::string, double> eviction;                      // divergence by METHOD:BUDGET
  std::map<std::string, Latencies> machines;                   // by machine and version

 private:
  void check(const llama::JsonObject& file) const;
  void read(const llama::JsonObject& file);
};

/// \param calibrates  whether caches find scales of channels, with which they lose something else.
inline std::string cache_key(int32_t layer, Side side, bool calibrates) {
  return std::to_string(layer) + (side == Side::kKeys ? ".keys" : ".values") + (calibrates ? " with scales" : "");
}
/// Of matrices `[out, in]` that read the same inputs.
std::string linear_key(const std::string& scheme, const std::vector<int64_t>& outs, int64_t in, int32_t batch);
inline std::string cache_time_key(const std::string& formats, int32_t length, int32_t batch) {
  return formats + " " + std::to_string(length) + " tokens batch " + std::to_string(batch);
}
/// Beside caches and, if they are planned, linear layers.
inline std::string others_key(bool weights_planned, int32_t batch) {
  return std::string(weights_planned ? "" : "and linear layers ") + "batch " + std::to_string(batch);
}

}  // namespace cli
