// Hessian of a layer's inputs, which weighs errors of its weights.
#pragma once

#include "core/memory.h"
#include "weights/matrix.h"
#include "weights/stepped_loops.h"
#include "weights/tile_encoder.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace kvq::weights {

class Quantizing;

/// H = F D Fᵀ of the rotated and damped Hessian, columns in coding order: F is the identity in the diagonal blocks of
/// columns that are coded together and zero to their right; block LDLQ feeds back errors with it. D = C Cᵀ in these
/// blocks.
class Hessian {
 public:
  /// `hessian`: [in, in]. `device`: factorizes it, or null. Throws KVQ_E_ARGUMENT unless it is finite, symmetric, and
  /// with `damping` times its mean diagonal added to its diagonal positive definite.
  Hessian(Allocator& allocator, SteppedLoops& loops, Quantizing* device, const float* hessian, const Matrix& matrix,
          double damping);
  /// Time of construction, as in SteppedLoops.
  static double time(int32_t in);

  /// sums[row][column of the tile] = Σ_j numbers[row][j] · F[j][column] over the columns j beyond the tile.
  /// numbers: [16, in], coding order.
  void sum_beyond(int32_t tile, const float* numbers, TileNumbers& sums) const noexcept;
  /// F[j][column] of two columns of a tile in coding order.
  float factor(int32_t tile, int32_t j, int32_t column) const {
    return factors_[begin_of(tile) + static_cast<size_t>(j * kTileColumns + column)];
  }
  /// F[j][column] of a tile begin at begin_of(tile), of rows from its own first column on: [rows][16].
  std::span<const float> factors() const { return {factors_.data(), factors_.size()}; }
  size_t begin_of(int32_t tile) const {
    const auto t = static_cast<size_t>(tile);
    return (t * static_cast<size_t>(in_) - kTileColumns * (t * (t - 1) / 2)) * kTileColumns;
  }
  /// Number added to the diagonal.
  double damping() const { return damping_; }
  /// |y C|² of a row of a block of columns.
  double energy(int32_t tile, int32_t begin, int32_t count, std::span<const float> y) const noexcept;

 private:
  void factorize_tile(int32_t tile, int32_t together, const float* upper) noexcept;

  int32_t in_;
  double damping_ = 0.0;
  Unwritten<float> factors_;  // [tiles][rows from the tile's first column on][16]
  Vector<float> roots_;       // C, [tiles][16][16]
};

}  // namespace kvq::weights
