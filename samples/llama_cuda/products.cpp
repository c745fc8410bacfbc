#include "products.h"

#include <algorithm>
#include <string>
#include <utility>

#include "cuda_error.h"
#include "kernels.h"
#include "llama/error.h"

namespace llama::cuda {
namespace {

constexpr size_t kWorkspaceBytes = size_t{32} << 20;  // what cuBLAS itself takes on its largest devices
// More than this many rows are faster widened: every eight read the weights once, in 2 bytes, and widening moves 10.
constexpr int64_t kFewRows = 32;
constexpr int64_t kWidenedNumbers = int64_t{16} << 20;  // a 4096 x 4096 matrix
constexpr int64_t kAlignedOutputs = 64;                 // of which each row's part of y is 256 bytes

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
  return make_layout(rows, columns, rows);
}

Products::Layout Products::make_layout(int64_t rows, int64_t columns, int64_t stride) {
  cublasLtMatrixLayout_t layout = nullptr;
  check(cublasLtMatrixLayoutCreate(&layout, CUDA_R_32F, static_cast<uint64_t>(rows), static_cast<uint64_t>(columns),
                                   stride),
        "cublasLtMatrixLayoutCreate");
  return Layout(layout);
}

Products::Plan Products::make_plan(const Shape& shape) {
  Plan plan{make_operation(shape.a, shape.b),
            make_layout(shape.a, shape.m, shape.k),
            make_layout(shape.b, shape.k, shape.n),
            make_layout(shape.m, shape.n, shape.stride),
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
void Products::run(const Matrix& weight, const float* x, int64_t rows, float beta, float* y, cudaStream_t stream) {
  const auto& [data, dtype] = weight.numbers;
  const int64_t out = weight.rows;
  const int64_t in = weight.columns;
  if (dtype == KVQ_F32) {  // yᵀ = (Wᵀ)ᵀ·xᵀ
    const auto* numbers = reinterpret_cast<const float*>(data.get());
    multiply({CUBLAS_OP_T, CUBLAS_OP_N, out, rows, in, out}, numbers, x, beta, y, stream);
  } else if (rows <= kFewRows && can_multiply_few_rows(dtype, in)) {
    check(launch_multiply_few_rows(data.get(), dtype, out, in, x, rows, beta, y, stream), "kernel of products");
  } else {
    run_widened(weight, x, rows, beta, y, stream);
  }
}

void Products::run_widened(const Matrix& weight, const float* x, int64_t rows, float beta, float* y,
                           cudaStream_t stream) {
  const int64_t out = weight.rows;
  const int64_t in = weight.columns;
  const int64_t most = std::max(kWidenedNumbers / in / kAlignedOutputs, int64_t{1}) * kAlignedOutputs;
  const size_t bytes = static_cast<size_t>(std::min(most, out) * in) * sizeof(float);
  if (widened_bytes_ < bytes) {
    widened_bytes_ = 0;
    widened_.reset();
    widened_ = allocate_device(bytes);
    widened_bytes_ = bytes;
  }
  auto* part = static_cast<float*>(widened_.get());
  for (int64_t first = 0; first < out; first += most) {
    const int64_t count = std::min(most, out - first);
    const std::byte* numbers = weight.numbers.data.get() + first * in * bytes_of(weight.numbers.dtype);
    check(launch_widen(numbers, weight.numbers.dtype, count * in, part, stream), "kernel that widens");
    multiply({CUBLAS_OP_T, CUBLAS_OP_N, count, rows, in, out}, part, x, beta, y + first, stream);
  }
}

void Products::gram(const float* x, int64_t rows, int64_t in, float beta, float* sums, cudaStream_t stream) {
  multiply({CUBLAS_OP_N, CUBLAS_OP_T, in, in, rows, in}, x, x, beta, sums, stream);  // sumsᵀ = xᵀ·(xᵀ)ᵀ
}

}  // namespace llama::cuda
