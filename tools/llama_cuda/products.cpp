#include "products.h"

#include <algorithm>
#include <string>
#include <utility>

#include "kernels.h"
#include "llama/error.h"
#include "memory.h"

namespace llama::cuda {
namespace {

constexpr size_t kWorkspaceBytes = size_t{32} << 20;  // what cuBLAS itself takes on its largest devices
// What is multiplied at once with weights in 16 bits, which bounds the memory that it takes.
constexpr int64_t kMostRows = 512;
constexpr int64_t kMostProducts = int64_t{16} << 20;
constexpr int64_t kAlignment = 256;       // of what cuBLASLt reads and writes, in bytes
constexpr int64_t kAlignedOutputs = 128;  // of which the rows of a matrix in 16 bits have a multiple of that

int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

cudaDataType type_of(kvq_dtype dtype) {
  if (dtype == KVQ_F32) return CUDA_R_32F;
  return dtype == KVQ_F16 ? CUDA_R_16F : CUDA_R_16BF;
}

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

Products::Layout Products::make_layout(cudaDataType type, cublasOperation_t operation, int64_t rows, int64_t columns) {
  if (operation == CUBLAS_OP_T) std::swap(rows, columns);
  cublasLtMatrixLayout_t layout = nullptr;
  check(cublasLtMatrixLayoutCreate(&layout, type, static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), rows),
        "cublasLtMatrixLayoutCreate");
  return Layout(layout);
}

Products::Matmul Products::make_matmul(const Shape& shape) {
  Matmul matmul{make_operation(shape.a, shape.b),
                make_layout(shape.type, shape.a, shape.m, shape.k),
                make_layout(shape.type, shape.b, shape.k, shape.n),
                make_layout(CUDA_R_32F, CUBLAS_OP_N, shape.m, shape.n),
                {}};
  cublasLtMatmulHeuristicResult_t result{};
  int found = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle_.get(), matmul.operation.get(), matmul.a.get(), matmul.b.get(),
                                     matmul.c.get(), matmul.c.get(), preference_.get(), 1, &result, &found);
  const std::string call = "cublasLtMatmulAlgoGetHeuristic for " + std::to_string(shape.m) + " x " +
                           std::to_string(shape.k) + " by " + std::to_string(shape.k) + " x " + std::to_string(shape.n);
  check(status, call.c_str());
  if (found == 0) throw Error(call + ": no algorithm");
  check(result.state, call.c_str());
  matmul.algorithm = result.algo;
  return matmul;
}

const Products::Matmul& Products::matmul(const Shape& shape) {
  const auto known = matmuls_.find(shape);
  return known != matmuls_.end() ? known->second : matmuls_.emplace(shape, make_matmul(shape)).first->second;
}

void Products::multiply(const Shape& shape, const void* a, const void* b, float beta, float* c, cudaStream_t stream) {
  const Matmul& matmul = this->matmul(shape);
  const float alpha = 1.0F;
  check(cublasLtMatmul(handle_.get(), matmul.operation.get(), &alpha, a, matmul.a.get(), b, matmul.b.get(), &beta, c,
                       matmul.c.get(), c, matmul.c.get(), &matmul.algorithm, workspace_.get(), kWorkspaceBytes, stream),
        "cublasLtMatmul");
}

// Matrices of cuBLAS are column-major: ours seem transposed to it.
void Products::run(const Matrix& weight, const float* x, int64_t rows, float beta, float* y, cudaStream_t stream) {
  const auto& [data, dtype] = weight.numbers;
  const int64_t out = weight.rows;
  const int64_t in = weight.columns;
  if (dtype == KVQ_F32) {  // yᵀ = (Wᵀ)ᵀ·xᵀ
    multiply({CUDA_R_32F, CUBLAS_OP_T, CUBLAS_OP_N, out, rows, in}, data.get(), x, beta, y, stream);
  } else if (can_multiply_few_rows(dtype, in, rows)) {
    check(launch_multiply_few_rows(data.get(), dtype, out, in, x, rows, beta, y, stream), "kernel of products");
  } else {
    for (int64_t done = 0; done < rows; done += kMostRows) {
      run_split(weight, x + done * in, std::min(rows - done, kMostRows), beta, y + done * out, stream);
    }
  }
}

void Products::run_split(const Matrix& weight, const float* x, int64_t rows, float beta, float* y,
                         cudaStream_t stream) {
  const auto& [data, dtype] = weight.numbers;
  const int64_t out = weight.rows;
  const int64_t in = weight.columns;
  const int64_t most = std::max(kMostProducts / (kParts * rows) / kAlignedOutputs, int64_t{1}) * kAlignedOutputs;
  const int64_t passes = (out + most - 1) / most;
  const int64_t together = std::min(round_up((out + passes - 1) / passes, kAlignedOutputs), out);

  const int64_t scale_bytes = round_up(rows * static_cast<int64_t>(sizeof(float)), kAlignment);
  const int64_t part_bytes = round_up(kParts * rows * in * bytes_of(dtype), kAlignment);
  const int64_t product_bytes = kParts * rows * together * static_cast<int64_t>(sizeof(float));
  const auto bytes = static_cast<size_t>(scale_bytes + part_bytes + product_bytes);
  if (scratch_bytes_ < bytes) {
    scratch_bytes_ = 0;
    scratch_.reset();
    scratch_ = allocate_device(bytes);
    scratch_bytes_ = bytes;
  }
  auto* scratch = static_cast<std::byte*>(scratch_.get());
  auto* scales = reinterpret_cast<float*>(scratch);
  std::byte* parts = scratch + scale_bytes;
  auto* products = reinterpret_cast<float*>(parts + part_bytes);

  check(launch_split(x, rows, in, dtype, parts, scales, stream), "kernel that splits inputs");
  for (int64_t first = 0; first < out; first += together) {
    const int64_t count = std::min(together, out - first);
    const std::byte* numbers = data.get() + first * in * bytes_of(dtype);
    multiply({type_of(dtype), CUBLAS_OP_T, CUBLAS_OP_N, count, kParts * rows, in}, numbers, parts, 0.0F, products,
             stream);
    check(launch_join(products, scales, dtype, rows, count, out, beta, y + first, stream),
          "kernel that joins products");
  }
}

void Products::gram(const float* x, int64_t rows, int64_t in, float beta, float* sums, cudaStream_t stream) {
  multiply({CUDA_R_32F, CUBLAS_OP_N, CUBLAS_OP_T, in, in, rows}, x, x, beta, sums, stream);  // sumsᵀ = xᵀ·(xᵀ)ᵀ
}

}  // namespace llama::cuda
