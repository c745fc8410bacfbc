// For eviction: how much attention each slot gets, and moving those that stay.
#pragma once

#include "kernels/attend/attend.h"

#include <cstdint>

namespace kvq::cuda {

/// Pages of one block of the weighing kernel, at most.
inline constexpr int32_t kWeighPages = 32;

/// The queries are those of AttendArguments' only sequence.
struct WeighArguments {
  const float* lse;      // [queries, q_heads]
  float* const* masses;  // [kv_heads][slots], which are added to
  int32_t largest;       // of a query's weights over the query heads of a KV head; otherwise their mean
  int32_t rows;          // of a KV head
  int32_t ring_bytes;
};

cudaError_t prepare_weigh(int32_t shared_limit);
/// `pages`: of the longest list.
cudaError_t launch_weigh(const AttendArguments& arguments, WeighArguments weighing, int32_t pages, int32_t shared_limit,
                         cudaStream_t stream);

/// Rows of queries as halves.
struct KeepArguments {
  const void* q;
  HeadStrides strides;
  int32_t dtype;
  int32_t first;
  int32_t count;
  int32_t q_heads;
  int32_t head_dim;
  uint16_t* rows;  // [count, q_heads, head_dim]
};
cudaError_t launch_keep(const KeepArguments& arguments, cudaStream_t stream);

/// to[i] = from[slots[i]].
cudaError_t launch_take(float* to, const float* from, const int32_t* slots, int32_t n, cudaStream_t stream);

/// Slots of a page that move.
struct alignas(16) DeviceMove {
  uint64_t page;
  uint64_t target;  // FP16 pages of the head, one behind the other
  uint32_t slots;   // a bit each
  int32_t rank;     // of the first of them
  uint32_t format;  // FormatCode
  int32_t padding;
};
static_assert(sizeof(DeviceMove) == 32);

struct MoveArguments {
  const DeviceMove* moves;  // [n], memory that the device reads
  int32_t n;
  int32_t head_dim;
};
cudaError_t prepare_move();
cudaError_t launch_move(const MoveArguments& arguments, int32_t multiprocessors, cudaStream_t stream);

}  // namespace kvq::cuda
