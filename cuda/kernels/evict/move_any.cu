// Moves slots of heads of any shape.
#include "kernels/evict/any_sides.cuh"
#include "kernels/evict/moved_slots.cuh"

#include <algorithm>

namespace kvq::cuda {
namespace {

/// A block of one warp takes a page.
class AnyMover {
 public:
  __device__ AnyMover(const HeadShape& head, AnyMemory& memory) : head_(head), sides_(head, memory) {}

  __device__ void run(const DeviceMove& move) {
    const MovedSlots slots(head_, move);
    move_side<Side::kKeys>(move, slots);
    move_side<Side::kValues>(move, slots);
  }

 private:
  template <Side kSide>
  __device__ void move_side(const DeviceMove& move, const MovedSlots& slots) {
    sides_.read<kSide>(move.page, FormatCode{move.format});
    for (int32_t slot = 0; slot < kSlots; ++slot) {
      if (!slots.has(slot)) continue;
      const MovedSlots::Target target = slots.target_of(slot);
      for (auto channel = static_cast<int32_t>(threadIdx.x); channel < head_.of(kSide); channel += 32) {
        *slots.half_at<kSide>(target, channel) = *sides_.number<kSide>(slot, channel);
      }
    }
    __syncwarp();
  }

  const HeadShape head_;
  AnySides sides_;
};

__global__ void __launch_bounds__(32) move_any_kernel(const __grid_constant__ MoveArguments arguments) {
  extern __shared__ __align__(128) uint8_t memory[];
  AnyMover mover(arguments.head, *reinterpret_cast<AnyMemory*>(memory));
#pragma unroll 1
  for (auto i = static_cast<int32_t>(blockIdx.x); i < arguments.n; i += static_cast<int32_t>(gridDim.x)) {
    mover.run(arguments.moves[i]);
  }
}

}  // namespace

cudaError_t prepare_move_any() {
  return cudaFuncSetAttribute(move_any_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(AnyMemory));
}

cudaError_t launch_move_any(const MoveArguments& arguments, int32_t multiprocessors, cudaStream_t stream) {
  const auto blocks = static_cast<uint32_t>(std::min(arguments.n, 4 * multiprocessors));
  move_any_kernel<<<blocks, 32, sizeof(AnyMemory), stream>>>(arguments);
  return cudaGetLastError();
}

}  // namespace kvq::cuda
