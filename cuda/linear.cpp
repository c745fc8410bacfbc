#include "core/tensor.h"
#include "device_matrix.h"
#include "linear_workspace.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

namespace kvq::cuda {
namespace {

const DeviceMatrix& of(const Resident* matrix) { return static_cast<const DeviceMatrix&>(*matrix); }

/// Matrices of a batch, from one on, that one launch multiplies by: of one scheme.
class Together {
 public:
  /// \param rows_before  those of the batch that were multiplied before.
  Together(const LinearBatch& batch, size_t first, size_t rows_before) : signs_(of(batch.matrices[first]).signs()) {
    for (size_t i = first; i < batch.matrices.size() && n_ < kMostTogether; ++i) {
      const LinearMatrix& matrix = of(batch.matrices[i]).tables();
      if (n_ > 0 && matrix.scheme != products_[0].matrix.scheme) break;
      const size_t bytes = rows_before * static_cast<size_t>(matrix.out) * dtype_bytes(batch.y_dtype);
      products_[n_++] = {matrix, {static_cast<std::byte*>(batch.y[i]) + bytes, batch.y_dtype}};
    }
  }

  LinearProducts products() const { return {products_.data(), n_}; }
  const uint8_t* signs() const { return signs_; }

 private:
  std::array<LinearProduct, kMostTogether> products_{};
  size_t n_ = 0;
  const uint8_t* signs_;
};

}  // namespace

LinearWorkspace::~LinearWorkspace() {
  for (const Block& block : {numbers_, rotated_, plain_, scales_}) blocks_.release(block);
}

LinearInputs LinearWorkspace::reserve(const InputRows& rows, bool recorded) {
  const bool rotates = rows.signs != nullptr;
  Block& halves = rotates ? rotated_ : plain_;
  const auto in = static_cast<size_t>(rows.in);
  // Of whole tiles.
  const auto whole = static_cast<size_t>(
      rows.rows <= kMostFewRows ? rows.rows : (rows.rows + kMostTileRows - 1) / kMostTileRows * kMostTileRows);
  if (rotates && rows.in > kMostTransformed) {
    blocks_.grow(numbers_, static_cast<size_t>(rows.rows) * in * sizeof(float), false, recorded);
  }
  blocks_.grow(halves, whole * in * sizeof(uint16_t), false, recorded);
  blocks_.grow(scales_, 2 * kMostLinearRows * sizeof(float), false, recorded);
  if (recorded) blocks_.keep();
  return {static_cast<uint16_t*>(halves.memory), static_cast<float*>(scales_.memory) + (rotates ? 0 : kMostLinearRows),
          0};
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
  // Work space of wide rows is larger.
  const int32_t most_rows = std::min(batch.batch, in > kMostTransformed ? kMostTileRows : kMostLinearRows);
  const LinearDevice& device = linear_device();
  LinearWorkspace& space = of(batch.matrices.front()).space();
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
    for (size_t i = 0; i < batch.matrices.size();) {
      const Together together(batch, i, before);
      i += together.products().size();
      rows.signs = together.signs();
      // Inputs that matrices after these take, too, are made ready once.
      const bool own = together.products().size() == batch.matrices.size() &&
                       makes_inputs_ready(together.products(), rows.rows, device);
      if (own) {
        issue(launch_linear(together.products(), rows, nullptr, device, stream_));
        continue;
      }
      const int32_t tile_rows = tile_rows_for(together.products(), rows.rows, device);
      std::optional<LinearInputs>& inputs = ready[rows.signs != nullptr ? 1 : 0];
      if (!inputs || inputs->tile_rows != tile_rows) {
        inputs = space.reserve(rows, is_capturing());
        inputs->tile_rows = tile_rows;
        issue(launch_linear_inputs(rows, space.numbers(), *inputs, device, stream_));
      }
      issue(tile_rows > 0 ? launch_linear_many(together.products(), rows, *inputs, device, stream_)
                          : launch_linear(together.products(), rows, &*inputs, device, stream_));
    }
  }
}

}  // namespace kvq::cuda
