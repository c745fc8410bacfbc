// New tokens of a pool's sequences: pages in blocks, tails and work pages in one launch.
#pragma once

#include "kernels/append/append.h"
#include "kernels/pool/records.h"

namespace kvq::cuda {

/// What blocks do: each new page of a head is a job, but the first one of a sequence and that which takes its place in
/// the tail are one together.
struct PoolJobs {
  const int32_t* starts;  // [n_sequences + 1] jobs before each sequence; null: one job each
  int32_t n_sequences;
  int32_t most;  // of all sequences
  int32_t ends;  // only the first and the last job of each sequence; PoolWholePages has the others
};

/// Pages that a call fills and that no tail holds, nor is among them a sequence's first: no two writes depend on each
/// other.
struct PoolWholePages {
  const int32_t* starts;  // [n_sequences + 1] such pages before each sequence
  int32_t n_sequences;
  int32_t most;         // of all sequences
  DeviceWrite* writes;  // [most, copies, kv_heads]
  int32_t copies;       // 2: in FP16, too
};

/// `arguments`: without writes. A value that does not fit FP16 is reported as by launch_append.
cudaError_t launch_pool_append(const AppendArguments& arguments, const PoolPages& pages, const PoolJobs& jobs,
                               cudaStream_t stream);
/// Fills `whole.writes` for launch_append, which has a kernel for many pages. Those without a page get no target.
cudaError_t launch_pool_writes(const PoolWholePages& whole, const PoolPages& pages, cudaStream_t stream);
cudaError_t prepare_pool_append(int32_t shared_limit);

}  // namespace kvq::cuda
