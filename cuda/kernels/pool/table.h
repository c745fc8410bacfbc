// Tables of a pool's pages for kernels that read no others.
#pragma once

#include "kernels/pool/records.h"

#include <cuda_runtime_api.h>

namespace kvq::cuda {

/// Fills PoolPages::table. Places without a page get an empty one.
cudaError_t launch_pool_table(const PoolPages& pages, int32_t n_sequences, cudaStream_t stream);

}  // namespace kvq::cuda
