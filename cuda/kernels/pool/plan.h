// Plans of calls on pools: sequences as later kernels read them, from the host's arrays in stream order.
#pragma once

#include "kernels/pool/records.h"

#include <cuda_runtime_api.h>

namespace kvq::cuda {

/// Sequences, their row blocks and pages, as PoolPages has them, for one division.
struct PoolStarts {
  PoolDivision division;
  PooledSequence* sequences;  // those that it does not read have no queries
  int32_t* rows;              // at least one of each sequence, if pages are read as they are
  int32_t* pages;
  int32_t* rounds;  // [n_rounds + 1] where each begins in the row of all sequences' and heads' tiles
  int32_t n_rounds;
};

struct PlanArguments {
  int32_t n_sequences;
  int32_t n_tokens;
  int32_t max_queries;
  int32_t max_length;
  int32_t block_pages;
  int32_t n_blocks;
  int32_t n_tails;
  int32_t capacity;  // of a row of `blocks`
  const int32_t* query_starts;
  const int32_t* lengths;
  const int32_t* block_table;
  int64_t table_stride;
  const int32_t* tails;  // null: there are none
  PooledSequence* sequences;
  int32_t* blocks;
  int32_t* job_starts;       // [n + 1] PoolJobs before each sequence
  int32_t* whole_starts;     // [n + 1] PoolWholePages before each sequence
  const PoolStarts* starts;  // [n_starts], device memory
  int32_t n_starts;
};

cudaError_t launch_pool_plan(const PlanArguments& arguments, cudaStream_t stream);

}  // namespace kvq::cuda
