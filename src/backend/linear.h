// Products with packed matrices.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include "core/memory.h"
#include "core/resident.h"
#include "kvq.h"
#include "weights/matrix.h"

#include <memory>
#include <optional>
#include <span>

namespace kvq {

class Tuning {
 public:
  virtual ~Tuning() = default;
  /// Measure calls with these matrices and `batch` rows, and use the fastest kernel from now on. Known shapes are not
  /// measured again. Waits for the device.
  virtual void tune(Allocator& allocator, std::span<const Resident* const> matrices, int32_t batch) = 0;
  /// Known choices, as a text for load().
  virtual std::string save() = 0;
  /// Add the choices of a text. Throws KVQ_E_FORMAT, KVQ_E_MISMATCH.
  virtual void load(std::string_view text) = 0;
};

/// Limit of matrices per call.
inline constexpr size_t kMostSharedMatrices = 1024;

/// Products of the same activations with one or more matrices: y[i] = x · Wᵢᵀ + biasᵢ.
struct LinearBatch {
  std::span<const Resident* const> matrices;  // with the same `in`; packed ones share their signs
  const void* x;                              // [batch, in]
  kvq_dtype x_dtype;
  int32_t batch;
  void* const* y;  // [matrices] of [batch, out]
  kvq_dtype y_dtype;
};

/// A packed matrix in host memory, in file byte order: the form before a backend takes it over, and the one that a CPU
/// multiplies by.
class HostMatrix final : public Resident {
 public:
  explicit HostMatrix(weights::Matrix&& matrix_) : matrix(std::move(matrix_)) {}

  weights::Matrix matrix;
};

class Linear {
 public:
  virtual ~Linear() = default;
  /// Take over a matrix: a device copies it, and may reorder it.
  virtual Owned<Resident> make_resident(Allocator& allocator, weights::Matrix&& matrix) = 0;
  /// The original matrix: in host memory, or read back into `copy`.
  virtual const weights::Matrix& read(const Resident& matrix, std::optional<weights::Matrix>& copy) = 0;
  /// Rows of x with NaN or infinity give rows of NaN. Callable from several threads at once.
  virtual void multiply(const LinearBatch& batch) = 0;
};

}  // namespace kvq
