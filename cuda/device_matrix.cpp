#include "device_matrix.h"

#include "cuda_backend.h"
#include "cuda_error.h"
#include "weights/codebook.h"

namespace kvq::cuda {
namespace {

using weights::Matrix;

bool has_levels(const weights::Segment& segment) { return segment.code.family != weights::Family::kFloat16; }

std::span<const std::byte> codes_of(const Matrix& matrix) { return {matrix.codes.data(), matrix.code_bytes()}; }

size_t bytes_for(const Matrix& matrix) {
  size_t bytes = DeviceArrays::bytes_for(codes_of(matrix), matrix.row_scales, matrix.signs, matrix.bias);
  for (const weights::Segment& segment : matrix.segments) {
    if (has_levels(segment)) bytes += DeviceArrays::bytes_for(weights::codebook_of(segment.code).levels);
  }
  return bytes;
}

}  // namespace

DeviceMatrix::DeviceMatrix(CudaBackend& backend, Allocator& allocator, const Matrix& matrix,
                           std::shared_ptr<LinearWorkspace> space)
    : allocator_(allocator),
      space_(std::move(space)),
      shape_(matrix.shape()),
      error_(matrix.error),
      proxy_error_(matrix.proxy_error),
      arrays_(backend, allocator, bytes_for(matrix)) {
  tables_ = {.scheme = matrix.scheme,
             .out = matrix.out,
             .in = matrix.in,
             .codes = reinterpret_cast<const uint8_t*>(arrays_.put(codes_of(matrix))),
             .panel_bytes = static_cast<int64_t>(weights::panel_bytes(matrix.scheme, matrix.in)),
             .scale = matrix.scale,
             .row_scales = arrays_.put(matrix.row_scales),
             .bias = nullptr,
             .segments = {}};
  signs_ = arrays_.put(matrix.signs);
  tables_.bias = arrays_.put(matrix.bias);
  int64_t begin = 0;
  LinearSegment* to = tables_.segments;
  for (const weights::Segment& segment : matrix.segments) {
    *to = {.first_column = segment.first_column,
           .columns = segment.columns,
           .begin = begin,
           .unit = 1.0F,
           .levels = nullptr,
           .n_levels = 0,
           .index_bits = 0,
           .addend = 0};
    if (has_levels(segment)) {
      const weights::Codebook& codebook = weights::codebook_of(segment.code);
      to->unit = codebook.unit;
      to->levels = arrays_.put(codebook.levels);
      to->n_levels = static_cast<int32_t>(codebook.levels.size());
      to->index_bits = codebook.index_bits;
      to->addend = codebook.addend;
    }
    begin += int64_t{segment.columns / weights::kTileColumns} * static_cast<int64_t>(segment.code.tile_bytes());
    ++to;
  }
}

Matrix DeviceMatrix::read(CudaBackend& backend) const {
  Matrix matrix(allocator_, shape_.scheme, shape_.out, shape_.in);
  matrix.scale = tables_.scale;
  matrix.error = error_;
  matrix.proxy_error = proxy_error_;
  if (shape_.has_bias) matrix.bias.resize(static_cast<size_t>(shape_.out));
  const auto copy = [&](void* to, const void* from, size_t bytes) {
    if (bytes > 0) check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, backend.stream()), "cudaMemcpyAsync");
  };
  copy(matrix.codes.data(), tables_.codes, matrix.code_bytes());
  copy(matrix.row_scales.data(), tables_.row_scales, matrix.row_scales.size() * sizeof(matrix.row_scales[0]));
  copy(matrix.signs.data(), signs_, matrix.signs.size());
  copy(matrix.bias.data(), tables_.bias, matrix.bias.size() * sizeof(matrix.bias[0]));
  check(cudaStreamSynchronize(backend.stream()), "cudaStreamSynchronize");
  return matrix;
}

}  // namespace kvq::cuda
