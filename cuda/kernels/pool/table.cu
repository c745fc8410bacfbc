#include "kernels/pool/table.h"

#include "kernels/pool/pages.cuh"

namespace kvq::cuda {
namespace {

constexpr int32_t kThreads = 256;

/// One block per list.
__global__ void __launch_bounds__(kThreads) pool_table_kernel(const __grid_constant__ PoolPages pool) {
  const auto sequence = static_cast<int32_t>(blockIdx.x);
  const auto head = static_cast<int32_t>(blockIdx.y);
  const int32_t pages = pooled_sequence(pool, sequence).pages;
  DevicePage* to = pool.table + (static_cast<int64_t>(sequence) * pool.kv_heads + head) * pool.table_pages;
  for (auto i = static_cast<int32_t>(threadIdx.x); i < pages; i += kThreads) {
    DevicePage page = pooled_page(pool, sequence, head, i);
    if (page.state == 0) {
      // Lists end before states of 0: a group of values says nothing of FP16.
      const uint32_t format = pool.format != 0 ? pool.format : 1U << FormatCode::kGroupBit;
      page = {pool.zeros, i * kSlots, DevicePage::state_of(format, 0, false)};
    }
    to[i] = page;
  }
}

}  // namespace

cudaError_t launch_pool_table(const PoolPages& pages, int32_t n_sequences, cudaStream_t stream) {
  const dim3 lists(static_cast<uint32_t>(n_sequences), static_cast<uint32_t>(pages.kv_heads));
  pool_table_kernel<<<lists, kThreads, 0, stream>>>(pages);
  return cudaGetLastError();
}

}  // namespace kvq::cuda
