#include "linear/products.h"
#include "linear/tuning.h"
#include "linear/workspace.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace kvq::cuda {

LinearWorkspace::~LinearWorkspace() {
  for (const Block& block : {numbers_, rotated_, plain_, scales_}) blocks_.release(block);
}

LinearInputs LinearWorkspace::reserve(const InputRows& rows, int32_t tile_rows, bool recorded) {
  const bool rotates = rows.signs != nullptr;
  Block& halves = rotates ? rotated_ : plain_;
  const auto in = static_cast<size_t>(rows.in);
  // Of whole tiles.
  const auto whole = static_cast<size_t>(tile_rows == 0 ? rows.rows : up_to(rows.rows, kMostTileRows) * kMostTileRows);
  if (rotates && rows.in > kMostTransformed) {
    blocks_.grow(numbers_, static_cast<size_t>(rows.rows) * in * sizeof(float), false, recorded);
  }
  blocks_.grow(halves, whole * in * sizeof(uint16_t), false, recorded);
  blocks_.grow(scales_, 2 * kMostLinearRows * sizeof(float), false, recorded);
  if (recorded) blocks_.keep();
  return {static_cast<uint16_t*>(halves.memory), static_cast<float*>(scales_.memory) + (rotates ? 0 : kMostLinearRows),
          tile_rows};
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
  copy.emplace(DeviceMatrix::of(&matrix).read(*this));
  return *copy;
}

LinearWay CudaBackend::way_of(LinearProducts products, const InputRows& rows) const {
  const LinearWay* measured = tuning_ ? tuning_->find(shape_of(products, rows.rows)) : nullptr;
  if (measured != nullptr && can_go(*measured, products, rows, linear_device_)) return *measured;
  return estimated_way(products, rows, linear_device_);
}

void CudaBackend::multiply(const LinearBatch& batch) {
  const Call call(*this);
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
    std::optional<LinearInputs> ready[2];  // plain ones, rotated ones
    for (size_t i = 0; i < batch.matrices.size();) {
      const Together together(batch, i, rows_before);
      const LinearProducts products = together.products();
      i += products.size();
      rows.signs = together.signs();
      LinearWay way = way_of(products, rows);
      // Inputs that matrices after these take, too, are made ready once.
      if (way.own_inputs && products.size() < batch.matrices.size()) way = kFewRows;
      std::optional<LinearInputs>& inputs = ready[rows.signs != nullptr ? 1 : 0];
      if (!way.own_inputs && (!inputs || inputs->tile_rows != way.tile_rows)) {
        inputs = space.reserve(rows, way.tile_rows, is_capturing());
        issue(launch_linear_inputs(rows, space.numbers(), *inputs, linear_device_, stream_));
      }
      issue(launch_products(products, rows, way, inputs, linear_device_, stream_));
    }
  });
}

}  // namespace kvq::cuda
