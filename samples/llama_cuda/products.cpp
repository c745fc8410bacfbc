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

  cublasLtMatmulDesc_t operation = nullptr;
  check(cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
  operation_.reset(operation);
  const cublasOperation_t transposed = CUBLAS_OP_T;
  check(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed)),
        "cublasLtMatmulDescSetAttribute");

  cublasLtMatmulPreference_t preference = nullptr;
  check(cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");
  preference_.reset(preference);
  const uint64_t bytes = kWorkspaceBytes;
  check(
      cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof(bytes)),
      "cublasLtMatmulPreferenceSetAttribute");
}

// Matrices of cuBLAS are column-major: ours seem transposed to it.
Products::Layout Products::make_layout(int64_t rows, int64_t columns) {
  cublasLtMatrixLayout_t layout = nullptr;
  check(cublasLtMatrixLayoutCreate(&layout, CUDA_R_32F, static_cast<uint64_t>(columns), static_cast<uint64_t>(rows),
                                   columns),
        "cublasLtMatrixLayoutCreate");
  return Layout(layout);
}

Products::Plan Products::make_plan(const Shape& shape) {
  // yᵀ = (Wᵀ)ᵀ·xᵀ
  Plan plan{
      make_layout(shape.out, shape.in), make_layout(shape.rows, shape.in), make_layout(shape.rows, shape.out), {}};
  cublasLtMatmulHeuristicResult_t result{};
  int found = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle_.get(), operation_.get(), plan.weight.get(), plan.x.get(), plan.y.get(),
                                     plan.y.get(), preference_.get(), 1, &result, &found);
  const std::string call = "cublasLtMatmulAlgoGetHeuristic for " + std::to_string(shape.rows) + " x " +
                           std::to_string(shape.in) + " by " + std::to_string(shape.in) + " x " +
                           std::to_string(shape.out);
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

void Products::run(const float* weight, int64_t out, int64_t in, const float* x, int64_t rows, float beta, float* y,
                   cudaStream_t stream) {
  const Plan& plan = this->plan({out, in, rows});
  const float alpha = 1.0F;
  check(cublasLtMatmul(handle_.get(), operation_.get(), &alpha, weight, plan.weight.get(), x, plan.x.get(), &beta, y,
                       plan.y.get(), y, plan.y.get(), &plan.algorithm, workspace_.get(), kWorkspaceBytes, stream),
        "cublasLtMatmul");
}

}  // namespace llama::cuda
