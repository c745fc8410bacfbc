#include "products.h"

#include <string>
#include <utility>

#include "cuda_error.h"
#include "llama/error.h"

namespace llama::cuda {
namespace {

constexpr size_t kWorkspaceBytes = size_t{32} << 20;  // what cuBLAS itself takes on its largest devices

}  // namespace

Products::Products() : workspace_(allocate_device(kWorkspaceBytes)) {
  cublasLtHandle_t handle = nullptr;
  check(cublasLtCreate(&handle), "cublasLtCreate");
  handle_.reset(handle);

  cublasLtMatmulPreference_t preference = nullptr;
  check(cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");
  preference_.reset(preference);
  const uint64_t bytes = kWorkspaceBytes;
  check(
      cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof(bytes)),
      "cublasLtMatmulPreferenceSetAttribute");
}

Products::Operation Products::make_operation(cublasOperation_t a, cublasOperation_t b) {
  cublasLtMatmulDesc_t handle = nullptr;
  check(cublasLtMatmulDescCreate(&handle, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
  Operation operation(handle);
  check(cublasLtMatmulDescSetAttribute(handle, CUBLASLT_MATMUL_DESC_TRANSA, &a, sizeof(a)),
        "cublasLtMatmulDescSetAttribute");
  check(cublasLtMatmulDescSetAttribute(handle, CUBLASLT_MATMUL_DESC_TRANSB, &b, sizeof(b)),
        "cublasLtMatmulDescSetAttribute");
  return operation;
}

Products::Layout Products::make_layout(cublasOperation_t operation, int64_t rows, int64_t columns) {
  if (operation == CUBLAS_OP_T) std::swap(rows, columns);
  cublasLtMatrixLayout_t layout = nullptr;
  check(cublasLtMatrixLayoutCreate(&layout, CUDA_R_32F, static_cast<uint64_t>(rows), static_cast<uint64_t>(columns),
                                   rows),
        "cublasLtMatrixLayoutCreate");
  return Layout(layout);
}

Products::Plan Products::make_plan(const Shape& shape) {
  Plan plan{make_operation(shape.a, shape.b),
            make_layout(shape.a, shape.m, shape.k),
            make_layout(shape.b, shape.k, shape.n),
            make_layout(CUBLAS_OP_N, shape.m, shape.n),
            {}};
  cublasLtMatmulHeuristicResult_t result{};
  int found = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle_.get(), plan.operation.get(), plan.a.get(), plan.b.get(), plan.c.get(),
                                     plan.c.get(), preference_.get(), 1, &result, &found);
  const std::string call = "cublasLtMatmulAlgoGetHeuristic for " + std::to_string(shape.m) + " x " +
                           std::to_string(shape.k) + " by " + std::to_string(shape.k) + " x " + std::to_string(shape.n);
  check(status, call.c_str());
  if (found == 0) throw Error(call + ": no algorithm");
  check(result.state, call.c_str());
  plan.algorithm = result.algo;
  return plan;
}

const Products::Plan& Products::plan(const Shape& shape) {
  const auto known = plans_.find(shape);
  return known != plans_.end() ? known->second : plans_.emplace(shape, make_plan(shape)).first->second;
}

void Products::multiply(const Shape& shape, const float* a, const float* b, float beta, float* c, cudaStream_t stream) {
  const Plan& plan = this->plan(shape);
  const float alpha = 1.0F;
  check(cublasLtMatmul(handle_.get(), plan.operation.get(), &alpha, a, plan.a.get(), b, plan.b.get(), &beta, c,
                       plan.c.get(), c, plan.c.get(), &plan.algorithm, workspace_.get(), kWorkspaceBytes, stream),
        "cublasLtMatmul");
}

// Matrices of cuBLAS are column-major: ours seem transposed to it.
void Products::run(const float* weight, int64_t out, int64_t in, const float* x, int64_t rows, float beta, float* y,
                   cudaStream_t stream) {
  multiply({CUBLAS_OP_T, CUBLAS_OP_N, out, rows, in}, weight, x, beta, y, stream);  // yᵀ = (Wᵀ)ᵀ·xᵀ
}

void Products::gram(const float* x, int64_t rows, int64_t in, float beta, float* sums, cudaStream_t stream) {
  multiply({CUBLAS_OP_N, CUBLAS_OP_T, in, in, rows}, x, x, beta, sums, stream);  // sumsᵀ = xᵀ·(xᵀ)ᵀ
}

}  // namespace llama::cuda
