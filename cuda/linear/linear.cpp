#include "linear/linear.h"

#include "core/tensor.h"
#include "kernels/linear/code_order.h"
#include "linear/device_matrix.h"
#include "weights/scheme.h"

#include <cstdio>
#include <utility>

namespace kvq::cuda {
namespace {

using weights::Family;

/// Bytes of codes of a multiprocessor, above which a kernel of its own prepares the inputs of one row faster.
constexpr size_t kMostFusedCodes = 80 << 10;
/// Rows of a pass of the kernel for few rows.
constexpr int32_t kFewRowsPass = 16;

/// Cycles that a block of threads takes for a block of columns on an H100: products, or codes where rows are few.
constexpr int32_t step_cycles(Family family, int32_t tile_rows) {
  const bool few = tile_rows == kTileRowCounts[0];
  switch (family) {
    case Family::kTcx:
      return few ? 1900 : 3300;
    case Family::kFloat16:
      return few ? 1850 : 3500;
    default:
      return few ? 1300 : 2900;
  }
}
/// Cycles until a cluster has added up its sums.
constexpr int32_t meeting_cycles(int32_t tile_rows) { return tile_rows == kTileRowCounts[0] ? 3500 : 11000; }

/// Cycles of a kernel for many rows.
int64_t estimated_cycles(const LinearKernel& kernel, LinearProducts products, int32_t rows,
                         const LinearDevice& device) {
  const LinearMatrix& matrix = products.front().matrix;
  const int32_t segments = matrix.scheme.has_halves() ? 2 : 1;
  const int32_t steps = segments * up_to(blocks_of(matrix.segments[0].columns), kernel.cluster);
  const int32_t clusters = blocks_for(products, kManyPanels) * up_to(rows, kernel.tile_rows);
  return int64_t{up_to(clusters, device.clusters[kernel.cluster])} *
         (int64_t{steps} * step_cycles(matrix.scheme.family, kernel.tile_rows) +
          (kernel.cluster > 1 ? meeting_cycles(kernel.tile_rows) : 0));
}

}  // namespace

LinearInputs LinearWorkspace::reserve(const InputRows& rows, int32_t tile_rows, bool recorded) {
  const bool rotates = rows.signs != nullptr;
  DeviceBlock& float16 = rotates ? rotated_ : plain_;
  const auto in = static_cast<size_t>(rows.in);
  const auto whole_tiles =
      static_cast<size_t>(tile_rows == 0 ? rows.rows : up_to(rows.rows, kMostTileRows) * kMostTileRows);
  if (rotates && rows.in > kMostTransformed) {
    growth_.grow(numbers_, static_cast<size_t>(rows.rows) * in * sizeof(float), false, recorded);
  }
  growth_.grow(float16, whole_tiles * in * sizeof(uint16_t), false, recorded);
  growth_.grow(scales_, 2 * kMostLinearRows * sizeof(float), false, recorded);
  if (recorded) growth_.keep();
  return {reinterpret_cast<uint16_t*>(float16.memory()),
          reinterpret_cast<float*>(scales_.memory()) + (rotates ? 0 : kMostLinearRows), tile_rows};
}

LaunchGroup::LaunchGroup(const LinearBatch& batch, size_t first, size_t rows_before)
    : signs_(DeviceMatrix::of(batch.matrices[first]).signs()) {
  for (size_t i = first; i < batch.matrices.size() && n_ < kMostTogether; ++i) {
    const LinearMatrix& matrix = DeviceMatrix::of(batch.matrices[i]).tables();
    if (n_ > 0 && matrix.scheme != products_[0].matrix.scheme) break;
    const size_t bytes = rows_before * static_cast<size_t>(matrix.out) * dtype_bytes(batch.y_dtype);
    products_[n_++] = {matrix, {static_cast<std::byte*>(batch.y[i]) + bytes, batch.y_dtype}};
  }
}

LinearShape shape_of(LinearProducts products, int32_t rows) {
  const LinearMatrix& first = products.front().matrix;
  LinearShape shape{.scheme = weights::index_of(first.scheme), .in = first.in, .rows = rows};
  for (size_t i = 0; i < products.size(); ++i) shape.outs[i] = products[i].matrix.out;
  return shape;
}

cudaError_t launch_products(LinearProducts products, const InputRows& rows, const LinearKernel& kernel,
                            const std::optional<LinearInputs>& inputs, const LinearDevice& device,
                            cudaStream_t stream) {
  if (kernel.tile_rows > 0) return launch_linear_many(products, rows, *inputs, kernel.cluster, stream);
  return launch_linear(products, rows, kernel.fused_inputs ? nullptr : &*inputs, device, stream);
}

KernelChoice::KernelChoice(Device& device) : device_index_(device.index()) {
  const Call call(device);
  linear_device_ = {.multiprocessors = device.multiprocessors(),
                    .shared_limit = device.shared_limit(),
                    .overlaps = device.compute_capability() >= 90,
                    .has_warpgroups = device.compute_capability() == 90,
                    .clusters = {}};
  if (linear_device_.has_warpgroups) count_clusters(linear_device_);
}

LinearKernel KernelChoice::choose(LinearProducts products, const InputRows& rows) const {
  const LinearKernel* measured = measured_ ? measured_->find(shape_of(products, rows.rows)) : nullptr;
  if (measured != nullptr && can_run(*measured, products, rows)) return *measured;
  return estimate(products, rows);
}

LinearKernel KernelChoice::estimate(LinearProducts products, const InputRows& rows) const {
  if (code_bytes(products) <= kMostFusedCodes * static_cast<size_t>(linear_device_.multiprocessors) &&
      has_room_for_inputs(rows, linear_device_)) {
    return kFusedInputs;
  }
  // Passes that all run at once, a panel each, cost no more than one.
  const int32_t passes = up_to(rows.rows, kFewRowsPass);
  if (passes == 1 || blocks_for(products, 1) * passes <= linear_device_.multiprocessors) return kFewRows;
  LinearKernel best = kFewRows;
  int64_t least = INT64_MAX;
  for_each_candidate(products, rows, [&](const LinearKernel& kernel) {
    if (kernel.tile_rows == 0) return;
    const int64_t cycles = estimated_cycles(kernel, products, rows.rows, linear_device_);
    if (cycles >= least) return;
    least = cycles;
    best = kernel;
  });
  return best;
}

bool KernelChoice::can_run(const LinearKernel& kernel, LinearProducts products, const InputRows& rows) const {
  if (kernel == kFewRows) return true;
  if (kernel == kFusedInputs) return has_room_for_inputs(rows, linear_device_);
  if (kernel.fused_inputs || kernel.cluster < 1 || kernel.cluster > kMostCluster || !linear_device_.has_warpgroups) {
    return false;
  }
  if (std::find(std::begin(kTileRowCounts), std::end(kTileRowCounts), kernel.tile_rows) == std::end(kTileRowCounts)) {
    return false;
  }
  // Blocks of columns are whole, and each block of threads has one.
  const LinearMatrix& matrix = products.front().matrix;
  return matrix.in % (matrix.scheme.has_halves() ? 2 * kBlockColumns : kBlockColumns) == 0 &&
         kernel.cluster <= blocks_of(matrix.segments[0].columns) && linear_device_.clusters[kernel.cluster] > 0;
}

MeasuredKernels& KernelChoice::measured() {
  if (!measured_) {
    cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, device_index_), "cudaGetDeviceProperties");
    char device[192];
    std::snprintf(device, sizeof(device), "%.127s, %d multiprocessors, kvq %s", properties.name,
                  linear_device_.multiprocessors, KVQ_VERSION_STRING);
    std::replace(std::begin(device), std::end(device), '\t', ' ');
    measured_.emplace(device);
  }
  return *measured_;
}

Owned<Resident> CudaLinear::make_resident(Allocator& allocator, weights::Matrix&& matrix) {
  const Call call(device_, Call::Reports::kNothing);
  std::shared_ptr<LinearWorkspace> space = space_.lock();
  if (space == nullptr) {
    space = std::allocate_shared<LinearWorkspace>(StlAllocator<LinearWorkspace>(allocator), device_, allocator);
    space_ = space;
  }
  const weights::Matrix host = std::move(matrix);
  check(prepare_linear_inputs(), "cudaFuncSetAttribute");
  check(prepare_linear(host.scheme, kernels_.device()), "cudaFuncSetAttribute");
  check(prepare_linear_many(host.scheme, kernels_.device()), "cudaFuncSetAttribute");
  return make_owned<DeviceMatrix>(allocator, device_, allocator, host, std::move(space));
}

const weights::Matrix& CudaLinear::read(const Resident& matrix, std::optional<weights::Matrix>& copy) {
  const Call call(device_, Call::Reports::kNothing);
  copy.emplace(DeviceMatrix::of(&matrix).read(device_));
  return *copy;
}

void CudaLinear::multiply(const LinearBatch& batch) {
  const Call call(device_);
  LinearWorkspace& space = DeviceMatrix::of(batch.matrices.front()).space();
  const auto issue = [&](cudaError_t status) { call.require(status, "kernel of linear layers"); };
  const int32_t in = DeviceMatrix::of(batch.matrices.front()).tables().in;
  const size_t row_bytes = static_cast<size_t>(in) * dtype_bytes(batch.x_dtype);
  for_each_pass(batch.batch, in, [&](int32_t n_rows, size_t rows_before) {
    InputRows rows{.x = static_cast<const std::byte*>(batch.x) + rows_before * row_bytes,
                   .dtype = batch.x_dtype,
                   .rows = n_rows,
                   .in = in,
                   .signs = nullptr};
    std::optional<LinearInputs> prepared[2];  // plain, rotated
    for (size_t i = 0; i < batch.matrices.size();) {
      const LaunchGroup group(batch, i, rows_before);
      const LinearProducts products = group.products();
      i += products.size();
      rows.signs = group.signs();
      LinearKernel kernel = kernels_.choose(products, rows);
      // Inputs that several launches read are prepared once.
      if (kernel.fused_inputs && products.size() < batch.matrices.size()) kernel = kFewRows;
      std::optional<LinearInputs>& inputs = prepared[rows.signs != nullptr ? 1 : 0];
      if (!kernel.fused_inputs && (!inputs || inputs->tile_rows != kernel.tile_rows)) {
        inputs = space.reserve(rows, kernel.tile_rows, device_.is_capturing());
        issue(launch_linear_inputs(rows, space.numbers(), *inputs, kernels_.device(), call.stream()));
      }
      issue(launch_products(products, rows, kernel, inputs, kernels_.device(), call.stream()));
    }
  });
}

}  // namespace kvq::cuda
