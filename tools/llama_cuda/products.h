#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <type_traits>

#include "llama/device.h"
#include "memory.h"

namespace llama::cuda {

/// Matrix products with the precision of FP32, on the device that is current when it is made. What cuBLASLt has to know
/// about a shape is found out once.
class Products {
 public:
  Products();

  /// y = x·Wᵀ + beta·y with W `[out, in]`, x `[rows, in]` and y `[rows, out]`, each aligned to 256 bytes. Weights in 16
  /// bits are read as they are.
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
    cudaDataType type;  // of a and b; c is of floats
    cublasOperation_t a, b;
    int64_t m, n, k;
    auto operator<=>(const Shape&) const = default;
  };
  struct Matmul {
    Operation operation;
    Layout a, b, c;
    cublasLtMatmulAlgo_t algorithm;
  };

  static Operation make_operation(cublasOperation_t a, cublasOperation_t b);
  /// As it is stored, of what the operation makes `[rows, columns]`.
  static Layout make_layout(cudaDataType type, cublasOperation_t operation, int64_t rows, int64_t columns);
  Matmul make_matmul(const Shape& shape);
  const Matmul& matmul(const Shape& shape);
  void multiply(const Shape& shape, const void* a, const void* b, float beta, float* c, cudaStream_t stream);

  /// As run() with weights in 16 bits, by tensor cores: inputs are split into parts of 16 bits.
  void run_split(const Matrix& weight, const float* x, int64_t rows, float beta, float* y, cudaStream_t stream);

  Owned<cublasLtHandle_t> handle_;
  Owned<cublasLtMatmulPreference_t> preference_;
  DeviceMemory workspace_;
  DeviceMemory scratch_;
  size_t scratch_bytes_ = 0;
  std::map<Shape, Matmul> matmuls_;
};

}  // namespace llama::cuda
