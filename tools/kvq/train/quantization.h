#pragma once

#include "llama/config.h"
#include "llama/system.h"
#include "options/common.h"

namespace cli {

struct Quantization {
  std::string model;                       // directory
  std::string scheme;                      // of every matrix that `plan` does not name; empty: it names all
  std::string plan = {};                   // file of a plan; empty: none
  std::vector<std::string> hessian_texts;  // none: every weight is rounded alone
  int64_t hessian_tokens = 16384;
  uint64_t hessian_bytes = 0;     // of sums at once; 0: half of the device's memory
  std::string rounding = "ldlq";  // or "nearest"
  double damping = 0.01;
  uint64_t seed = 1;
  std::filesystem::path out;
  ComputeOptions compute;

  /// Where finished matrices are kept meanwhile.
  std::filesystem::path partial() const { return llama::path_of(out.string() + ".partial"); }
};

struct QuantizedLayer {
  llama::LinearLayer layer;
  std::string scheme;
  double bits = 0.0;
  double error = 0.0;
  double proxy_error = 0.0;
  double squares = 0.0;   // sum over the weights
  double seconds = -1.0;  // negative: an earlier run did it

  double weights() const { return static_cast<double>(layer.out * layer.in); }
};

struct QuantizedModel {
  std::vector<QuantizedLayer> layers;
  std::string note;    // what the Hessians are of; empty without
  uint64_t bytes = 0;  // of the file

  double bits() const;         // of a packed weight
  double error() const;        // of all layers' weights together
  double proxy_error() const;  // mean over the weights
  double seconds() const;
  double weights_per_second() const;  // of the matrices that took some
};

/// Quantize the linear layers of a model and write them with its other tensors to `quantization.out`. Finished matrices
/// are kept in `partial()` meanwhile, which stays after an interruption and every other failure, and is taken up.
QuantizedModel quantize_model(const Quantization& quantization);

}  // namespace cli
