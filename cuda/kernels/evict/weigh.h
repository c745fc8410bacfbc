// Eviction: attention weights of slots, and moves of those that stay.
#pragma once

#include "kernels/attend/attend.h"

#include <cstdint>

namespace kvq::cuda {

/// Maximum pages per block of the weighing kernel.
inline constexpr int32_t kWeighPages = 32;

/// Queries belong to the only sequence of AttendArguments.
struct WeighArguments {
  const float* lse;      // [queries, q_heads]
  float* const* masses;  // [kv_heads][slots], accumulated
  int32_t largest;       // 1: largest weight of a query over the query heads of a KV head; 0: their mean
  int32_t rows;          // per KV head
  int32_t ring_bytes;
};

cudaError_t prepare_weigh(int32_t shared_limit);
/// `pages`: of the longest list.
cudaError_t launch_weigh(const AttendArguments& arguments, WeighArguments weighing, int32_t pages, int32_t shared_limit,
                         cudaStream_t stream);

// The same for heads of any shape.
cudaError_t prepare_weigh_any();
cudaError_t launch_weigh_any(const AttendArguments& arguments, const WeighArguments& weighing, int32_t pages,
                             cudaStream_t stream);

/// Queries to keep.
struct KeepArguments {
  const void* q;
  HeadStrides strides;
  int32_t dtype;
  int32_t first;
  int32_t count;
  int32_t q_heads;
  int32_t head_dim;
  uint16_t* rows;  // [count, q_heads] rows of core/scaled_row.h
};
cudaError_t launch_keep(const KeepArguments& arguments, cudaStream_t stream);
/// Reads n such rows: [n, head_dim].
cudaError_t launch_read_kept(const uint16_t* rows, size_t n, int32_t head_dim, float* numbers, cudaStream_t stream);

/// to[i] += from[i].
cudaError_t launch_add(float* to, const float* from, size_t n, cudaStream_t stream);

/// to[i] = from[slots[i]].
cudaError_t launch_take(float* to, const float* from, const int32_t* slots, int32_t n, cudaStream_t stream);

/// Slots of a page that move.
struct alignas(16) DeviceMove {
  uint64_t page;
  uint64_t target;  // FP16 pages of the head, consecutive in memory
  uint32_t slots;   // one bit each
  int32_t rank;     // rank of the first slot among those that stay
  uint32_t format;  // FormatCode
  int32_t padding;
};
static_assert(sizeof(DeviceMove) == 32);

struct MoveArguments {
  const DeviceMove* moves;  // [n], read by the device
  int32_t n;
  HeadShape head;
};
cudaError_t prepare_move();
cudaError_t launch_move(const MoveArguments& arguments, int32_t multiprocessors, cudaStream_t stream);

// The same for heads of any shape.
cudaError_t prepare_move_any();
cudaError_t launch_move_any(const MoveArguments& arguments, int32_t multiprocessors, cudaStream_t stream);

}  // namespace kvq::cuda
