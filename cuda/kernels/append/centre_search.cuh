// Nearest centres of a whole page's tokens by exact int8 products on tensor cores.
#pragma once

#include "kernels/append/centres.cuh"
#include "kernels/append/tokens.cuh"
#include "kernels/device/copies.cuh"

namespace kvq::cuda {

/// Rotations of the slots of a page with consecutive positions, as centres of keys need them. Heads of the same 32
/// tokens share them.
class PageRotations {
 public:
  __host__ __device__ static constexpr int32_t bytes(int32_t head_dim) { return SlotRotations::bytes(head_dim); }

  __device__ PageRotations(const AppendArguments& arguments, int32_t head_dim, uint8_t* memory)
      : a_(arguments), table_(arguments.rope, head_dim, memory) {}

  /// Computes the rotations of a page's tokens; a barrier must follow.
  __device__ void find(const DeviceWrite& page, int32_t thread, int32_t threads) const {
    const int32_t pairs = a_.rope.rotary_dim / 2;
    constexpr int32_t kRun = 8;
    for (int32_t i = thread; i < pairs * (kSlots / kRun); i += threads) {
      const int32_t pair = i % pairs;
      const int32_t begin = i / pairs * kRun;
      const float2 first = position_rotation(page.first_position, static_cast<double>(a_.rope.inv_freq[pair]));
      for (int32_t slot = begin; slot < begin + kRun; ++slot) {
        const float* within = a_.centres.page_rotations + slot * 2 * pairs;
        table_.put(slot, pair, multiply_rotations(first, make_float2(within[pair], within[pairs + pair])));
      }
    }
  }

  __device__ const SlotRotations& table() const { return table_; }

 private:
  const AppendArguments& a_;
  const SlotRotations table_;
};

/// Tokens of a side as bytes [slots][head_dim], in memory that later holds the side as floats. The row padding keeps
/// eight rows free of bank conflicts.
class BytePlane {
 public:
  __device__ BytePlane(void* memory, int32_t head_dim) : memory_(static_cast<uint8_t*>(memory)), head_dim_(head_dim) {}

  __device__ void put(int32_t slot, int32_t eighth, uint2 bytes) const {
    *reinterpret_cast<uint2*>(memory_ + place(slot, 8 * eighth)) = bytes;
  }
  /// Loads bytes [32·step, 32·step + 32) of 16 tokens as a tensor-core operand.
  __device__ void load(int32_t first_slot, int32_t step, int32_t lane, uint32_t (&words)[4]) const {
    const uint32_t from = shared_address(memory_ + place(first_slot + lane % 16, 32 * step + lane / 16 * 16));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(from)
                 : "memory");
  }

 private:
  __device__ int32_t place(int32_t slot, int32_t byte) const { return slot * (head_dim_ + 16) + byte; }

  uint8_t* memory_;
  int32_t head_dim_;
};

/// sums += products of 16 tokens' bytes with those of eight centres.
__device__ inline void multiply_bytes(const uint32_t (&tokens)[4], const uint32_t (&centres)[2], int32_t (&sums)[4]) {
  asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
               : "+r"(sums[0]), "+r"(sums[1]), "+r"(sums[2]), "+r"(sums[3])
               : "r"(tokens[0]), "r"(tokens[1]), "r"(tokens[2]), "r"(tokens[3]), "r"(centres[0]), "r"(centres[1]));
}

/// Finds the nearest centres of a page's tokens with all warps of a block.
class CentreSearcher {
 public:
  /// Shared memory: candidates of each warp, token scales, chosen indices.
  __host__ __device__ static constexpr int32_t bytes(int32_t threads) {
    return 2 * kSlots * (threads / 32 * static_cast<int32_t>(sizeof(BestCentre)) + 4 + 1);
  }

  __device__ CentreSearcher(const AppendArguments& arguments, int32_t head_dim, int32_t threads, uint8_t* memory)
      : a_(arguments),
        head_dim_(head_dim),
        warps_(threads / 32),
        found_(reinterpret_cast<BestCentre*>(memory)),
        units_(reinterpret_cast<float*>(found_ + 2 * warps_ * kSlots)),
        chosen_(reinterpret_cast<uint8_t*>(units_ + 2 * kSlots)) {}

  /// Writes a thread's channels of a token, with the key's rotation undone, to the byte plane. All threads of a warp
  /// take part.
  __device__ void round(bool keys, int32_t head, int32_t slot, int32_t units, int32_t unit, const int32_t (&eighths)[2],
                        float (&x)[2][8], const BytePlane& plane) const {
    const SideCentres centres(a_, keys, head, false);
    float largest = 0.0F;
#pragma unroll
    for (int32_t i = 0; i < 16; ++i) {
      float& each = x[i / 8][i % 8];
      each -= centres.mean[8 * eighths[i / 8] + i % 8];
      largest = fmaxf(largest, fabsf(each));
    }
    for (int32_t d = 1; d < units; d *= 2) largest = fmaxf(largest, __shfl_xor_sync(kAll, largest, d));
    const float inverse = largest > 0.0F ? kTopByte / largest : 0.0F;
#pragma unroll
    for (int32_t i = 0; i < 2; ++i) {
      uint32_t words[2] = {0, 0};
#pragma unroll
      for (uint32_t j = 0; j < 8; ++j) {
        const auto byte = static_cast<uint32_t>(__float2int_rn(x[i][j] * inverse)) & 0xFFU;
        words[j / 4] |= byte << (8 * (j % 4));
      }
      plane.put(slot, eighths[i], make_uint2(words[0], words[1]));
    }
    if (unit == 0) units_[index_of(keys, slot)] = largest / kTopByte * centres.scale;
  }

  /// Searches a warp's share of a side's centres. Barriers must precede and follow.
  __device__ void search(bool keys, int32_t head, const BytePlane& plane) const {
    const SideCentres centres(a_, keys, head, false);
    const auto lane = static_cast<int32_t>(threadIdx.x) % 32;
    const auto warp = static_cast<int32_t>(threadIdx.x) / 32;
    float units[4];  // for tokens lane / 4 + 8 · i
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) units[i] = units_[index_of(keys, lane / 4 + 8 * i)];
    BestCentre best[4];
    for (int32_t first = 16 * warp; first < centres.padded; first += 16 * warps_) {
      int32_t sums[2][2][4] = {};  // [centres][tokens]
#pragma unroll 4
      for (int32_t step = 0; step < head_dim_ / 32; ++step) {
        uint32_t of_centres[2][2];
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) {
          const int32_t quad = 8 * step + 4 * (i % 2) + lane % 4;
          of_centres[i / 2][i % 2] = __ldg(centres.rounded + quad * centres.padded + first + i / 2 * 8 + lane / 4);
        }
#pragma unroll
        for (int32_t tokens = 0; tokens < 2; ++tokens) {
          uint32_t words[4];
          plane.load(16 * tokens, step, lane, words);
          multiply_bytes(words, of_centres[0], sums[0][tokens]);
          multiply_bytes(words, of_centres[1], sums[1][tokens]);
        }
      }
#pragma unroll
      for (int32_t j = 0; j < 4; ++j) {
        const int32_t centre = first + j / 2 * 8 + 2 * (lane % 4) + j % 2;
        const float bias = __ldg(centres.biases + centre);
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) {
          const float product = static_cast<float>(sums[j / 2][i / 2][2 * (i % 2) + j % 2]);
          best[i].look_at(product * units[i] - bias, centre);
        }
      }
    }
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      best[i].join_across(1);
      best[i].join_across(2);
      if (lane % 4 == 0) found_[(keys ? 0 : warps_ * kSlots) + warp * kSlots + lane / 4 + 8 * i] = best[i];
    }
  }

  /// Returns the nearest centre of all warps' candidates; the thread with the token's first channels records it.
  __device__ int32_t choose(bool keys, int32_t slot, int32_t unit) const {
    const BestCentre* found = found_ + (keys ? 0 : warps_ * kSlots) + slot;
    BestCentre best;
    for (int32_t warp = 0; warp < warps_; ++warp) best.join(found[warp * kSlots]);
    if (unit == 0) chosen_[index_of(keys, slot)] = static_cast<uint8_t>(best.index);
    return best.index;
  }

  __device__ uint8_t chosen(bool keys, int32_t slot) const { return chosen_[index_of(keys, slot)]; }

 private:
  __device__ static int32_t index_of(bool keys, int32_t slot) { return (keys ? 0 : kSlots) + slot; }

  const AppendArguments& a_;
  int32_t head_dim_;
  int32_t warps_;
  BestCentre* found_;  // [2][warps][slots]
  float* units_;       // [2][slots]
  uint8_t* chosen_;    // [2][slots]
};

}  // namespace kvq::cuda
