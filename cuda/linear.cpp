#include "core/tensor.h"
#include "device_matrix.h"
#include "linear_workspace.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace kvq::cuda {
namespace {

const DeviceMatrix& of(const Resident* matrix) { return static_cast<const DeviceMatrix&>(*matrix); }

}  // namespace

LinearWorkspace::~LinearWorkspace() {
  for (const Block& block : {numbers_, rotated_, plain_, scales_}) blocks_.release(block);
}

void LinearWorkspace::reserve(int32_t rows, int32_t in, bool recorded) {
  // Of whole tiles: rows are kMostLinearRows, or fewer than a tile has.
  const auto whole = static_cast<size_t>(rows <= kMostFewRows ? rows : kMostLinearRows);
  const size_t numbers = whole * static_cast<size_t>(in);
  blocks_.grow(numbers_, numbers * sizeof(float), false, recorded);
  blocks_.grow(rotated_, numbers * sizeof(uint16_t), false, recorded);
  blocks_.grow(plain_, numbers * sizeof(uint16_t), false, recorded);
  blocks_.grow(scales_, 2 * kMostLinearRows * sizeof(float), false, recorded);
  if (recorded) blocks_.keep();
}

Owned<Resident> CudaBackend::make_resident(Allocator& allocator, weights::Matrix&& matrix) {
  const Call call(*this, Call::Reports::kNothing);
  std::shared_ptr<LinearWorkspace> space = linear_space_.lock();
  if (space == nullptr) {
    space = std::allocate_shared<LinearWorkspace>(StlAllocator<LinearWorkspace>(allocator), *this, allocator);
    linear_space_ = space;
  }
  const weights::Matrix host = std::move(matrix);
  return make_owned<DeviceMatrix>(allocator, *this, allocator, host, std::move(space));
}

const weights::Matrix& CudaBackend::read(const Resident& matrix, std::optional<weights::Matrix>& copy) {
  const Call call(*this, Call::Reports::kNothing);
  copy.emplace(of(&matrix).read(*this));
  return *copy;
}

void CudaBackend::multiply(const LinearBatch& batch) {
  const Call call(*this);
  const int32_t in = of(batch.matrices.front()).tables().in;
  const int32_t most_rows = std::min(batch.batch, kMostLinearRows);
  const LinearDevice device = linear_device();
  LinearWorkspace& space = of(batch.matrices.front()).space();
  const bool own =
      batch.matrices.size() == 1 && makes_inputs_ready(of(batch.matrices.front()).tables(), batch.batch, device);
  if (!own) space.reserve(most_rows, in, is_capturing());
  const auto issue = [&](cudaError_t status) { call.require(status, "kernel of linear layers"); };
  for (int32_t first = 0; first < batch.batch; first += most_rows) {
    const auto before = static_cast<size_t>(first);
    InputRows rows{
        .x = static_cast<const std::byte*>(batch.x) + before * static_cast<size_t>(in) * dtype_bytes(batch.x_dtype),
        .dtype = batch.x_dtype,
        .rows = std::min(most_rows, batch.batch - first),
        .in = in,
        .signs = nullptr};
    std::optional<LinearInputs> ready[2];  // plain ones, rotated ones
    for (size_t i = 0; i < batch.matrices.size(); ++i) {
      const DeviceMatrix& matrix = of(batch.matrices[i]);
      const LinearMatrix& tables = matrix.tables();
      const bool rotates = matrix.signs() != nullptr;
      rows.signs = matrix.signs();
      const auto out = static_cast<size_t>(tables.out);
      const LinearOutputs outputs{.y = static_cast<std::byte*>(batch.y[i]) + before * out * dtype_bytes(batch.y_dtype),
                                  .dtype = batch.y_dtype};
      if (own) {
        issue(launch_linear(tables, rows, nullptr, outputs, device, stream_));
        continue;
      }
      const int32_t tile_rows = tile_rows_for(tables, rows.rows, device);
      std::optional<LinearInputs>& inputs = ready[rotates ? 1 : 0];
      if (!inputs || inputs->tile_rows != tile_rows) {
        inputs = rotates ? space.rotated() : space.plain();
        inputs->tile_rows = tile_rows;
        issue(launch_linear_inputs(rows, space.numbers(), *inputs, device.overlaps, stream_));
      }
      issue(tile_rows > 0 ? launch_linear_many(tables, rows, *inputs, outputs, stream_)
                          : launch_linear(tables, rows, &*inputs, outputs, device, stream_));
    }
  }
}

}  // namespace kvq::cuda
