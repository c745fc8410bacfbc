// Kernels of products with packed matrices, and which of them measured fastest.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>

namespace kvq::cuda {

struct LinearKernel {
  bool fused_inputs;  // each block of threads prepares the inputs for itself
  int32_t tile_rows;  // for many rows, on warpgroups; 0: few rows at a time
  int32_t cluster;    // blocks of threads that share the columns of many rows

  friend bool operator==(const LinearKernel&, const LinearKernel&) = default;
};

inline constexpr LinearKernel kFusedInputs{true, 0, 1};
inline constexpr LinearKernel kFewRows{false, 0, 1};

/// What the choice depends on.
struct LinearShape {
  static constexpr size_t kMostMatrices = 4;

  int32_t scheme = 0;  // weights::index_of
  int32_t in = 0;
  int32_t rows = 0;
  std::array<int32_t, kMostMatrices> outs{};  // of one launch's matrices; zeros behind the last

  friend auto operator<=>(const LinearShape&, const LinearShape&) = default;
};

/// Measured kernels, and their text: a line each, with tabs between fields.
class MeasuredKernels {
 public:
  /// \param device  measured on, without tabs: lines of other devices are kept and not used.
  explicit MeasuredKernels(std::string device) : device_(std::move(device)) {}

  /// Null: not measured. A kernel from a file may be one that the device cannot run.
  const LinearKernel* find(const LinearShape& shape) const;
  void put(const LinearShape& shape, const LinearKernel& kernel) { kernels_[shape] = kernel; }

  std::string text() const;
  /// Adds all lines or, if it throws, none.
  void load(std::string_view text);

 private:
  std::string device_;
  std::map<LinearShape, LinearKernel> kernels_;
  std::map<std::string, std::string, std::less<>> others_;  // of other devices: all but the kernel, and its text
};

}  // namespace kvq::cuda
