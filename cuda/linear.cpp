#include "core/tensor.h"
#include "device_matrix.h"
#include "linear_workspace.h"

#include <algorithm>
#include <utility>

namespace kvq::cuda {
namespace {

const DeviceMatrix& of(const Resident* matrix) { return static_cast<const DeviceMatrix&>(*matrix); }

}  // namespace

LinearWorkspace::~LinearWorkspace() {
  for (const Block& block : {numbers_, rotated_, plain_, scales_}) blocks_.release(block);
}

void LinearWorkspace::reserve(int32_t rows, int32_t in, bool recorded) {
  const size_t numbers = static_cast<size_t>(rows) * static_cast<size_t>(in);
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
  LinearWorkspace& space = of(batch.matrices.front()).space();
  const bool own = makes_inputs_ready(batch.batch, in);
  if (!own) space.reserve(most_rows, in, is_capturing());
  for (int32_t first = 0; first < batch.batch; first += most_rows) {
    const auto before = static_cast<size_t>(first);
    InputRows rows{
        .x = static_cast<const std::byte*>(batch.x) + before * static_cast<size_t>(in) * dtype_bytes(batch.x_dtype),
        .dtype = batch.x_dtype,
        .rows = std::min(most_rows, batch.batch - first),
        .in = in,
        .signs = nullptr};
    bool is_ready[2] = {own, own};  // plain ones, rotated ones
    for (size_t i = 0; i < batch.matrices.size(); ++i) {
      const DeviceMatrix& matrix = of(batch.matrices[i]);
      const bool rotates = matrix.signs() != nullptr;
      const LinearInputs inputs = own ? LinearInputs{} : (rotates ? space.rotated() : space.plain());
      rows.signs = matrix.signs();
      if (!std::exchange(is_ready[rotates ? 1 : 0], true)) {
        call.require(launch_linear_inputs(rows, space.numbers(), inputs, stream_), "kernel of linear layers");
      }
      const auto out = static_cast<size_t>(matrix.tables().out);
      const LinearOutputs outputs{.y = static_cast<std::byte*>(batch.y[i]) + before * out * dtype_bytes(batch.y_dtype),
                                  .dtype = batch.y_dtype};
      call.require(launch_linear(matrix.tables(), rows, inputs, outputs, linear_device(), stream_),
                   "kernel of linear layers");
    }
  }
}

}  // namespace kvq::cuda
