#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "kvq.hpp"
#include "options/command.h"
#include "options/engine.h"

namespace cli {

/// Add `--tuning`.
void add_tuning_option(Command command, std::string& path);

/// Which of a GPU's kernels are the fastest for linear layers, measured and kept in a file.
class Tuning {
 public:
  /// Measures nothing.
  Tuning() = default;
  /// Reads the file if there is one. \param path  empty: nothing is measured. A UsageError if there is no GPU.
  Tuning(const kvq::Context& context, std::string path);

  /// For calls with these matrices and so many rows, unless it is known.
  void measure(std::span<const qp_matrix* const> matrices, int32_t batch) const;
  /// Writes the file.
  void keep() const;

 private:
  const kvq::Context* context_ = nullptr;
  std::string path_;
};

/// For the packed layers of a model, one row and `chunk` rows at a time.
void tune(Engine& engine, const std::string& path, int32_t chunk);

}  // namespace cli
