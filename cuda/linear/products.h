// Calls of linear layers, cut into what is launched.
#pragma once

#include "core/tensor.h"
#include "linear/device_matrix.h"
#include "linear/kernel_choice.h"
#include "weights/scheme.h"

#include <algorithm>
#include <array>
#include <optional>

namespace kvq::cuda {

/// Matrices of a batch, from one on, that one launch multiplies by: of one scheme.
class Together {
 public:
  /// \param rows_before  those of the batch that were multiplied before.
  Together(const LinearBatch& batch, size_t first, size_t rows_before)
      : signs_(DeviceMatrix::of(batch.matrices[first]).signs()) {
    for (size_t i = first; i < batch.matrices.size() && n_ < kMostTogether; ++i) {
      const LinearMatrix& matrix = DeviceMatrix::of(batch.matrices[i]).tables();
      if (n_ > 0 && matrix.scheme != products_[0].matrix.scheme) break;
      const size_t bytes = rows_before * static_cast<size_t>(matrix.out) * dtype_bytes(batch.y_dtype);
      products_[n_++] = {matrix, {static_cast<std::byte*>(batch.y[i]) + bytes, batch.y_dtype}};
    }
  }

  LinearProducts products() const { return {products_.data(), n_}; }
  const uint8_t* signs() const { return signs_; }

 private:
  std::array<LinearProduct, kMostTogether> products_{};
  size_t n_ = 0;
  const uint8_t* signs_;
};

static_assert(kMostTogether == LinearShape::kMostMatrices);
inline LinearShape shape_of(LinearProducts products, int32_t rows) {
  const LinearMatrix& first = products.front().matrix;
  LinearShape shape{.scheme = weights::index_of(first.scheme), .in = first.in, .rows = rows};
  for (size_t i = 0; i < products.size(); ++i) shape.outs[i] = products[i].matrix.out;
  return shape;
}

/// Calls pass(rows, rows before) for as many rows at a time as inputs are made ready of.
template <typename Pass>
void for_each_pass(int32_t rows, int32_t in, const Pass& pass) {
  // Work space of wide rows is larger.
  const int32_t most = std::min(rows, in > kMostTransformed ? kMostTileRows : kMostLinearRows);
  for (int32_t first = 0; first < rows; first += most) pass(std::min(most, rows - first), static_cast<size_t>(first));
}

/// \param inputs  ready as the way takes them, unless it makes them ready itself.
inline cudaError_t launch_products(LinearProducts products, const InputRows& rows, const LinearWay& way,
                                   const std::optional<LinearInputs>& inputs, const LinearDevice& device,
                                   cudaStream_t stream) {
  if (way.tile_rows > 0) return launch_linear_many(products, rows, *inputs, way.cluster, stream);
  return launch_linear(products, rows, way.own_inputs ? nullptr : &*inputs, device, stream);
}

}  // namespace kvq::cuda
