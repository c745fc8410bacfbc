#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <type_traits>

#include "llama/array.h"
#include "memory.h"

namespace llama::cuda {

/// Matrix products in FP32, without tensor cores' shorter formats, on the device that is current when it is made. What
/// cuBLASLt has to know about a shape is found out once.
class Products {
 public:
  Products();

  /// y = x·Wᵀ + beta·y with W `[out, in]`, x `[rows, in]` and y `[rows, out]`, each aligned to 256 bytes. Weights in 16
  /// bits are read as they are for a few rows, and widened a part at a time for more.
  void run(const Matrix& weight, const float* x, int64_t rows, float beta, float* y, cudaStream_t stream);

  /// sums = xᵀ·x + beta·sums with x `[rows, in]` and sums `[in, in]`, aligned as those.
  void gram(const float* x, int64_t rows, int64_t in, float beta, float* sums, cudaStream_t stream);

 private:
  struct Destroy {
    void operator()(cublasLtHandle_t handle) const { cublasLtDestroy(handle); }
    void operator()(cublasLtMatmulDesc_t operation) const { cublasLtMatmulDescDestroy(operation); }
    void operator()(cublasLtMatrixLayout_t layout) const { cublasLtMatrixLayoutDestroy(layout); }
    void operator()(cublasLtMatmulPreference_t preference) const { cublasLtMatmulPreferenceDestroy(preference); }
  };
  template <class Handle>
  using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Destroy>;
  using Operation = Owned<cublasLtMatmulDesc_t>;
  using Layout = Owned<cublasLtMatrixLayout_t>;

  /// To cuBLAS, of its c = op(a)·op(b).
  struct Shape {
    cublasOperation_t a, b;
    int64_t m, n, k;
    int64_t stride;  // between columns of c
    auto operator<=>(const Shape&) const = default;
  };
  struct Plan {
    Operation operation;
    Layout a, b, c;
    cublasLtMatmulAlgo_t algorithm;
  };

  static Operation make_operation(cublasOperation_t a, cublasOperation_t b);
  /// As it is stored, of what the operation makes `[rows, columns]`.
  static Layout make_layout(cublasOperation_t operation, int64_t rows, int64_t columns);
  /// Of columns that begin every `stride` numbers.
  static Layout make_layout(int64_t rows, int64_t columns, int64_t stride);
  Plan make_plan(const Shape& shape);
  const Plan& plan(const Shape& shape);
  void multiply(const Shape& shape, const float* a, const float* b, float beta, float* c, cudaStream_t stream);

  /// As run(), with a part of the weights at a time in FP32.
  void run_widened(const Matrix& weight, const float* x, int64_t rows, float beta, float* y, cudaStream_t stream);

  Owned<cublasLtHandle_t> handle_;
  Owned<cublasLtMatmulPreference_t> preference_;
  DeviceMemory workspace_;
  DeviceMemory widened_;
  size_t widened_bytes_ = 0;
  std::map<Shape, Plan> plans_;
};

}  // namespace llama::cuda
