// Moves slots of heads of any shape: a warp decodes a side of a page to shared memory as for tiles, rotates it back,
// and copies slots.
#include "kernels/evict/moved_slots.cuh"
#include "kernels/prefill/unpack.cuh"

#include <algorithm>

namespace kvq::cuda {
namespace {

using AnySide = UnpackGeometry<kMaxChannels, false>;
using AnyMemory = UnpackMemory<kMaxChannels>;

class AnyMover {
 public:
  __device__ AnyMover(const HeadShape& head, AnyMemory& memory)
      : head_(head), keys_{head_.keys}, values_{head_.values}, memory_(memory), lane_(this_lane()) {
    if (lane_.index == 0) make_copy_barrier(shared_address(&memory_.arrived));
    order_before_copies();
    __syncwarp();
  }

  __device__ void run(const DeviceMove& move) {
    const FormatCode format{move.format};
    const PageLayout layout{page_places(format, head_), format, format.group_shift()};
    const MovedSlots slots(head_, move);
    const auto* page = reinterpret_cast<const std::byte*>(move.page);
    if (format.keys().is_float16()) {
      slots.copy_keys(page, lane_.index);
    } else {
      const MadeSide<AnySide> made = made_side(keys_);
      made.decode_keys(page_side(keys_, layout, lane_, load(page, layout, 0, layout.keys.bytes)));
      store<Side::kKeys>(made, format.hadamard_keys(), slots);
    }
    if (format.values().is_float16()) {
      slots.copy_values(page + layout.values_at, lane_.index);
    } else {
      const MadeSide<AnySide> made = made_side(values_);
      made.decode_values(page_side(values_, layout, lane_, load(page, layout, layout.values_at, layout.values.bytes)));
      store<Side::kValues>(made, format.hadamard_values(), slots);
    }
  }

 private:
  __device__ MadeSide<AnySide> made_side(const AnySide& geometry) const {
    return {geometry, kMaxChannels, lane_, memory_.made};
  }

  /// Copies a side that begins `at` bytes into a page to shared memory, and returns its shared address.
  __device__ uint32_t load(const std::byte* page, const PageLayout& layout, int32_t at, int32_t bytes) {
    const bool mixed = layout.format.both_have_gains();
    const uint32_t to = shared_address(memory_.side);
    const uint32_t arrived = shared_address(&memory_.arrived);
    order_before_copies();
    __syncwarp();
    start_copy(to, reinterpret_cast<uint64_t>(page + (mixed ? 0 : at)), mixed ? layout.bytes : bytes, arrived,
               lane_.index, 0);
    wait_copy(arrived, parity_);
    parity_ ^= 1U;
    return to + static_cast<uint32_t>(mixed ? at : 0);
  }

  template <Side kSide>
  __device__ void store(const MadeSide<AnySide>& made, bool rotated, const MovedSlots& slots) {
    static_assert(sizeof(memory_.side) >= kRotatedRows * kMaxChannels * sizeof(float));
    auto* scratch = reinterpret_cast<float*>(memory_.side);  // codes are no longer needed
    if (rotated) rotate_side<kSide>(made.geometry, made.plane(), scratch, made.memory);
    __syncwarp();
    for (int32_t slot = 0; slot < kSlots; ++slot) {
      if (!slots.has(slot)) continue;
      const MovedSlots::Target target = slots.target_of(slot);
      for (int32_t channel = 2 * lane_.index; channel < made.geometry.head_dim(); channel += 64) {
        if constexpr (kSide == Side::kKeys) {
          const std::byte* two = made.memory + made.key_at(slot, channel) + channel % 8 * 2;
          *slots.key_word(target, channel) = *reinterpret_cast<const uint32_t*>(two);
        } else {
          for (int32_t i = channel; i < channel + 2; ++i) {
            const std::byte* one = made.memory + value_chunk_at(slot, i) + slot % 8 * 2;
            *slots.value_half(target, i) = *reinterpret_cast<const __half*>(one);
          }
        }
      }
    }
    __syncwarp();
  }

  const HeadShape head_;
  const AnySide keys_;
  const AnySide values_;
  AnyMemory& memory_;
  const Lane lane_;
  uint32_t parity_ = 0;
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
