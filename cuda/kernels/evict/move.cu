// Moves the slots that stay after eviction to FP16 pages, one source page per warp.
#include "kernels/attend/ring.cuh"
#include "kernels/evict/moved_slots.cuh"
#include "kernels/pages/decode.cuh"

#include <algorithm>

namespace kvq::cuda {
namespace {

constexpr int32_t kMoveWarps = 4;

template <typename G>
struct MoveShared {
  using Rows = __half[G::kRows][G::kWidth + 8];

  alignas(16) Rows rows[kMoveWarps];  // for the current pass
  // Pages with at least one side in codes: at most FP16 and eight bits.
  alignas(128) uint8_t pages[kMoveWarps][(kSlots * G::kWidth * 3 + 1024 + kOverrun + 127) / 128 * 128];
  uint64_t arrived[kMoveWarps];
};

template <typename G>
class Mover {
 public:
  __device__ Mover(const MoveArguments& arguments, MoveShared<G>& shared)
      : geometry_{arguments.head.keys}, shared_(shared), lane_(this_lane()) {
    if (lane_.index == 0) make_copy_barrier(shared_address(&shared_.arrived[lane_.warp]));
    order_before_copies();
    __syncwarp();
  }

  __device__ __forceinline__ void run(const DeviceMove& move) {
    const MovedSlots slots(geometry_.head_dim(), move);
    const PageLayout layout = layout_of(geometry_, FormatCode{move.format});
    const bool key_codes = !layout.format.keys().is_float16();
    const bool value_codes = !layout.format.values().is_float16();
    const auto* data = reinterpret_cast<const std::byte*>(move.page);
    const uint32_t memory = shared_address(shared_.pages[lane_.warp]);
    if (key_codes || value_codes) {
      const uint32_t arrived = shared_address(&shared_.arrived[lane_.warp]);
      order_before_copies();
      __syncwarp();
      start_copy(memory, move.page, layout.bytes, arrived, lane_.index, 0);
      wait_copy(arrived, parity_);
      parity_ ^= 1U;
    }
    if (key_codes) {
      decode(page_side(geometry_, layout, lane_, memory), slots);
    } else {
      slots.copy_keys(data, lane_.index);
    }
    if (value_codes) {
      decode_values(page_side(geometry_, layout, lane_, memory + static_cast<uint32_t>(layout.values_at)),
                    [&](const Outputs<G>& outputs, int32_t first) { store(outputs, first, slots); });
    } else {
      slots.copy_values(data + layout.values_at, lane_.index);
    }
  }

 private:
  __device__ __forceinline__ void decode(const PageSide<G>& keys, const MovedSlots& slots) {
    auto& rows = shared_.rows[lane_.warp];
    const bool rotated = keys.layout.format.hadamard_keys();
    const BlockMix mix(geometry_.head_dim());
    const auto make_rows = [&](int32_t pass) -> const auto& {
      __syncwarp();
      for (int32_t i = lane_.index; i < G::kRows * G::kWidth; i += 32) {
        rows[i / G::kWidth][i % G::kWidth] = unit_number(pass * G::kRows + i / G::kWidth, i % G::kWidth, rotated, mix);
      }
      __syncwarp();
      return rows;
    };
    decode_keys(keys, make_rows, [&](const Scores<G::kTiles>& scores, int32_t first) { store(scores, first, slots); });
  }

  __device__ __forceinline__ void store(const Scores<G::kTiles>& scores, int32_t first_channel,
                                        const MovedSlots& slots) const {
#pragma unroll
    for (int32_t tile = 0; tile < 4; ++tile) {
      const int32_t slot = token_of(lane_.g, tile);
      if (!slots.has(slot)) continue;
      const MovedSlots::Target target = slots.target_of(slot);
#pragma unroll
      for (int32_t n = 0; n < G::kTiles; ++n) {
        const int32_t channel = first_channel + 8 * n + 2 * lane_.t;
        if (!geometry_.has_channel(channel)) continue;
        const float(&two)[4] = scores[n][tile / 2];
        *slots.key_word(target, channel) = pack_finite(two[2 * (tile % 2)], two[2 * (tile % 2) + 1]);
      }
    }
  }

  __device__ __forceinline__ void store(const Outputs<G>& outputs, int32_t first_token, const MovedSlots& slots) const {
#pragma unroll
    for (int32_t n = 0; n < G::kTiles; ++n) {
#pragma unroll
      for (int32_t c = 0; c < 2; ++c) {
        const int32_t slot = first_token + 8 * n + 2 * lane_.t + c;
        if (!slots.has(slot)) continue;
        const MovedSlots::Target target = slots.target_of(slot);
#pragma unroll
        for (int32_t i = 0; i < 4 * G::kChannels; ++i) {
          const int32_t channel = 32 * (i / 4) + 4 * lane_.g + i % 4;
          if (!geometry_.has_channel(channel)) continue;
          const float x = outputs.channels[n][i / 4][i / 2 % 2][2 * (i % 2) + c];
          *slots.value_half(target, channel) = __float2half_rn(fminf(fmaxf(x, -65504.0F), 65504.0F));
        }
      }
    }
  }

  const G geometry_;
  MoveShared<G>& shared_;
  const Lane lane_;
  uint32_t parity_ = 0;
};

template <typename G>
__global__ void __launch_bounds__(32 * kMoveWarps, 2) move_kernel(const __grid_constant__ MoveArguments arguments) {
  extern __shared__ __align__(128) uint8_t memory[];
  Mover<G> mover(arguments, *reinterpret_cast<MoveShared<G>*>(memory));
  const auto warps = static_cast<int32_t>(gridDim.x) * kMoveWarps;
#pragma unroll 1
  for (auto i = static_cast<int32_t>(blockIdx.x) * kMoveWarps + static_cast<int32_t>(threadIdx.x / 32); i < arguments.n;
       i += warps) {
    mover.run(arguments.moves[i]);
  }
}

struct MoveKernel {
  const void* function;
  size_t shared_bytes;
};

template <int DP, bool kFull, int NT>
MoveKernel kernel() {
  using G = Geometry<DP, kFull, NT, Lists::kGains>;
  return {reinterpret_cast<const void*>(move_kernel<G>), sizeof(MoveShared<G>)};
}

MoveKernel choose(int32_t head_dim) {
  if (head_dim == 64) return kernel<64, true, 2>();
  if (head_dim == 128) return kernel<128, true, 2>();
  if (head_dim < 128) return kernel<128, false, 2>();
  return kernel<256, false, 1>();
}

}  // namespace

cudaError_t prepare_move() {
  for (const int32_t head_dim : {64, 80, 128, 256}) {
    const MoveKernel kernel = choose(head_dim);
    const cudaError_t status = cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                    static_cast<int>(kernel.shared_bytes));
    if (status != cudaSuccess) return status;
  }
  return prepare_move_any();
}

cudaError_t launch_move(const MoveArguments& arguments, int32_t multiprocessors, cudaStream_t stream) {
  const HeadShape& head = arguments.head;
  if (head.keys != head.values || head.keys > kMaxHeadDim) return launch_move_any(arguments, multiprocessors, stream);
  const MoveKernel kernel = choose(head.keys);
  const auto blocks = static_cast<uint32_t>(std::min((arguments.n + kMoveWarps - 1) / kMoveWarps, 4 * multiprocessors));
  MoveArguments copy = arguments;
  void* parameters[] = {&copy};
  return cudaLaunchKernel(kernel.function, dim3(blocks), dim3(32 * kMoveWarps), parameters, kernel.shared_bytes,
                          stream);
}

}  // namespace kvq::cuda
