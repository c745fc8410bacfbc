#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <type_traits>

#include "memory.h"

namespace llama::cuda {

/// Matrix products in FP32, without tensor cores' shorter formats, on the device that is current when it is made. What
/// cuBLASLt has to know about a shape is found out once.
class Products {
 public:
  Products();

  /// y = x·Wᵀ + beta·y with W `[out, in]`, x `[rows, in]` and y `[rows, out]`, each aligned to 256 bytes.
  void run(const float* weight, int64_t out, int64_t in, const float* x, int64_t rows, float beta, float* y,
           cudaStream_t stream);

 private:
  struct Destroy {
    void operator()(cublasLtHandle_t handle) const { cublasLtDestroy(handle); }
    void operator()(cublasLtMatmulDesc_t operation) const { cublasLtMatmulDescDestroy(operation); }
    void operator()(cublasLtMatrixLayout_t layout) const { cublasLtMatrixLayoutDestroy(layout); }
    void operator()(cublasLtMatmulPreference_t preference) const { cublasLtMatmulPreferenceDestroy(preference); }
  };
  template <class Handle>
  using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Destroy>;
  using Layout = Owned<cublasLtMatrixLayout_t>;

  struct Shape {
    int64_t out, in, rows;
    auto operator<=>(const Shape&) const = default;
  };
  struct Plan {
    Layout weight, x, y;
    cublasLtMatmulAlgo_t algorithm;
  };

  static Layout make_layout(int64_t rows, int64_t columns);
  Plan make_plan(const Shape& shape);
  const Plan& plan(const Shape& shape);

  Owned<cublasLtHandle_t> handle_;
  Owned<cublasLtMatmulDesc_t> operation_;
  Owned<cublasLtMatmulPreference_t> preference_;
  DeviceMemory workspace_;
  std::map<Shape, Plan> plans_;
};

}  // namespace llama::cuda
