#include "linear/device_matrix.h"

#include "kernels/linear/code_order.h"
#include "weights/codebook.h"

#include <algorithm>

namespace kvq::cuda {
namespace {

using weights::Matrix;

/// Bytes of codes that are reordered at a time.
constexpr size_t kStagedBytes = size_t{64} << 20U;

/// Levels of a segment's codes; none in FP16.
std::span<const int8_t> levels_of(const weights::Segment& segment) {
  if (segment.code.family == weights::Family::kFloat16) return {};
  return weights::codebook_of(segment.code).levels;
}

size_t lane_bytes(const weights::Segment& segment) {
  return static_cast<size_t>(blocks_of(segment.columns)) * block_bytes(segment.code);
}
size_t lane_panel_bytes(const Matrix& matrix) {
  size_t bytes = 0;
  for (const weights::Segment& segment : matrix.segments) bytes += lane_bytes(segment);
  return bytes;
}
size_t lane_code_bytes(const Matrix& matrix) {
  return static_cast<size_t>(weights::panels_of(matrix.out)) * lane_panel_bytes(matrix);
}

size_t bytes_for(const Matrix& matrix) {
  size_t bytes = DeviceArrays::bytes_for_room<uint8_t>(lane_code_bytes(matrix)) +
                 DeviceArrays::bytes_for(matrix.row_scales, matrix.signs, matrix.bias);
  for (const weights::Segment& segment : matrix.segments) bytes += DeviceArrays::bytes_for(levels_of(segment));
  return bytes;
}

/// Calls carry(staging, first panel, panels) for all panels, as many at a time as fit into staging memory.
template <typename Carry>
void by_panels(Device& device, Allocator& allocator, const LinearMatrix& tables, size_t file_panel_bytes,
               const Carry& carry) {
  const int32_t panels = weights::panels_of(tables.out);
  const int32_t at_once =
      std::clamp(static_cast<int32_t>(kStagedBytes / std::max(file_panel_bytes, size_t{1})), 1, std::max(panels, 1));
  DeviceArrays staging(device, allocator,
                       DeviceArrays::bytes_for_room<uint8_t>(static_cast<size_t>(at_once) * file_panel_bytes));
  auto* memory = staging.take<uint8_t>(static_cast<size_t>(at_once) * file_panel_bytes);
  for (int32_t first = 0; first < panels; first += at_once) carry(memory, first, std::min(at_once, panels - first));
  check(cudaStreamSynchronize(device.stream()), "cudaStreamSynchronize");
}

}  // namespace

DeviceMatrix::DeviceMatrix(Device& device, Allocator& allocator, const Matrix& matrix,
                           std::shared_ptr<LinearWorkspace> space)
    : allocator_(allocator),
      space_(std::move(space)),
      shape_(matrix.shape()),
      error_(matrix.error),
      proxy_error_(matrix.proxy_error),
      arrays_(device, allocator, bytes_for(matrix)) {
  auto* codes = arrays_.take<uint8_t>(lane_code_bytes(matrix));
  tables_ = {.scheme = matrix.scheme,
             .out = matrix.out,
             .in = matrix.in,
             .codes = codes,
             .panel_bytes = static_cast<int64_t>(lane_panel_bytes(matrix)),
             .scale = matrix.scale,
             .row_scales = arrays_.put(matrix.row_scales),
             .bias = nullptr,
             .segments = {}};
  signs_ = arrays_.put(matrix.signs);
  tables_.bias = arrays_.put(matrix.bias);
  int64_t begin = 0;
  LinearSegment* to = tables_.segments;
  std::span<const int8_t> known;  // levels of the segment before
  for (const weights::Segment& segment : matrix.segments) {
    *to = {.first_column = segment.first_column,
           .columns = segment.columns,
           .begin = begin,
           .unit = 1.0F,
           .levels = nullptr,
           .index_bits = 0,
           .addend = 0};
    const std::span<const int8_t> levels = levels_of(segment);
    if (!levels.empty()) {
      const weights::Codebook& codebook = weights::codebook_of(segment.code);
      to->unit = codebook.unit;
      to->levels = levels.data() == known.data() ? tables_.segments[0].levels : arrays_.put(levels);
      to->index_bits = codebook.index_bits;
      to->addend = codebook.addend;
    }
    known = levels;
    begin += static_cast<int64_t>(lane_bytes(segment));
    ++to;
  }
  const size_t file_bytes = weights::panel_bytes(matrix.scheme, matrix.in);
  check(cudaMemsetAsync(codes, 0, lane_code_bytes(matrix), device.stream()), "cudaMemsetAsync");
  by_panels(device, allocator, tables_, file_bytes, [&](uint8_t* staging, int32_t first, int32_t panels) {
    const auto before = static_cast<size_t>(first);
    check(cudaMemcpyAsync(staging, matrix.codes.data() + before * file_bytes, static_cast<size_t>(panels) * file_bytes,
                          cudaMemcpyHostToDevice, device.stream()),
          "cudaMemcpyAsync");
    check(launch_to_lanes(tables_, panels, staging, static_cast<int64_t>(file_bytes),
                          codes + before * lane_panel_bytes(matrix), device.stream()),
          "kernel of linear layers");
  });
}

Matrix DeviceMatrix::read(Device& device) const {
  Matrix matrix(allocator_, shape_.scheme, shape_.out, shape_.in);
  matrix.scale = tables_.scale;
  matrix.error = error_;
  matrix.proxy_error = proxy_error_;
  if (shape_.has_bias) matrix.bias.resize(static_cast<size_t>(shape_.out));
  const auto copy = [&](void* to, const void* from, size_t bytes) {
    if (bytes > 0) check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, device.stream()), "cudaMemcpyAsync");
  };
  const size_t file_bytes = weights::panel_bytes(matrix.scheme, matrix.in);
  by_panels(device, allocator_, tables_, file_bytes, [&](uint8_t* staging, int32_t first, int32_t panels) {
    const size_t bytes = static_cast<size_t>(panels) * file_bytes;
    check(cudaMemsetAsync(staging, 0, bytes, device.stream()), "cudaMemsetAsync");
    check(launch_from_lanes(tables_, panels, tables_.codes + first * tables_.panel_bytes, staging,
                            static_cast<int64_t>(file_bytes), device.stream()),
          "kernel of linear layers");
    copy(matrix.codes.data() + static_cast<size_t>(first) * file_bytes, staging, bytes);
  });
  copy(matrix.row_scales.data(), tables_.row_scales, matrix.row_scales.size() * sizeof(matrix.row_scales[0]));
  copy(matrix.signs.data(), signs_, matrix.signs.size());
  copy(matrix.bias.data(), tables_.bias, matrix.bias.size() * sizeof(matrix.bias[0]));
  check(cudaStreamSynchronize(device.stream()), "cudaStreamSynchronize");
  return matrix;
}

}  // namespace kvq::cuda
