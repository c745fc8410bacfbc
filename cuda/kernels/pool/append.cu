#include "kernels/pool/append.h"

#include "kernels/append/page.cuh"
#include "kernels/pool/pages.cuh"
#include "kernels/pool/search.cuh"

namespace kvq::cuda {
namespace {

constexpr int32_t kWriteThreads = 128;

/// A page to write, and where a copy in FP16 is wanted; 0: nowhere.
struct PoolWrite {
  DeviceWrite write;
  uint64_t copy;
};

/// Plans the write of page `page` of a head. Returns false if the host's arrays name no place for it.
__device__ bool plan_write(const PoolPages& pool, int32_t sequence, const PooledSequence& of, int32_t head,
                           int32_t page, PoolWrite& to) {
  const int32_t first = max(page * kSlots, of.older());
  const int32_t end = min((page + 1) * kSlots, of.length);
  const int32_t kept = first - page * kSlots;
  const bool full = end == (page + 1) * kSlots;
  uint64_t target = 0;
  uint64_t source = 0;
  uint64_t copy = 0;
  uint32_t format = pool.format;
  if (pool.tails == 0) {
    source = target = page_in_block(pool, sequence, head, page);
  } else {
    const uint64_t tail = page_in_tail(pool, of.tail, head, page);
    source = tail;
    if (page >= of.first_in_tail()) {
      copy = tail;
    } else if (pool.extends != 0) {
      copy = work_page(pool, of.work + page - of.first_new(), head);
    }
    if (full) target = page_in_block(pool, sequence, head, page);
    if (target == 0) {
      target = copy;
      copy = 0;
      format = 0;
    }
  }
  if (target == 0 || (kept > 0 && source == 0)) return false;
  to.write = {};
  to.write.source = kept > 0 ? source : 0;
  to.write.target = target;
  to.write.format = format;
  to.write.kept = static_cast<uint8_t>(kept);
  to.write.token_count = static_cast<uint8_t>(end - first);
  to.write.head = head;
  to.write.token_begin = of.query_begin + first - of.older();
  to.write.token_position = first;
  to.write.index = page;
  to.write.first_position = page * kSlots;
  to.copy = copy;
  return true;
}

template <PageCodes kCodes, Heads kHeads>
__global__ void __launch_bounds__(kAppendThreads)
    pool_append_kernel(const __grid_constant__ AppendArguments arguments, const __grid_constant__ PoolPages pool,
                       const __grid_constant__ PoolJobs jobs) {
  extern __shared__ __align__(16) uint32_t shared[];
  const auto head = static_cast<int32_t>(blockIdx.y);
  auto sequence = static_cast<int32_t>(blockIdx.x);
  int32_t job = 0;
  if (jobs.ends != 0) {
    job = sequence % 2;
    sequence /= 2;
  } else if (jobs.starts != nullptr) {
    job = sequence;
    if (job >= __ldg(jobs.starts + jobs.n_sequences)) return;
    sequence = last_not_above(jobs.starts, jobs.n_sequences, job);
    job -= __ldg(jobs.starts + sequence);
  }
  const PooledSequence of = pooled_sequence(pool, sequence);
  if (of.query_count == 0) return;
  const int32_t crossed = of.last_new() - of.first_new();
  if (jobs.ends != 0 && job != 0) {
    job = crossed - 1;
    if (job <= 0) return;
  }
  const int32_t chained = of.last_new() - crossed % 2;  // in the first page's half of the tail
  int32_t page = of.first_new() + job;
  if (job != 0 && page == chained) page = of.last_new();
#pragma unroll 1
  for (;;) {
    PoolWrite next;
    if (plan_write(pool, sequence, of, head, page, next)) {
      PageWriter<kCodes, kHeads>(arguments, next.write, shared).run(reinterpret_cast<uint8_t*>(next.copy));
    }
    if (job != 0 || page != of.first_new() || crossed == 0) return;
    page = crossed == 1 ? of.last_new() : chained;
    __syncthreads();
  }
}

/// A thread for each write.
__global__ void __launch_bounds__(kWriteThreads)
    pool_writes_kernel(const __grid_constant__ PoolWholePages whole, const __grid_constant__ PoolPages pool) {
  const auto i = static_cast<int32_t>(blockIdx.x * kWriteThreads + threadIdx.x);
  const int32_t of_page = whole.copies * pool.kv_heads;
  const int32_t page = i / of_page;
  if (page >= whole.most) return;
  PoolWrite to{};
  if (page < __ldg(whole.starts + whole.n_sequences)) {
    const int32_t sequence = last_not_above(whole.starts, whole.n_sequences, page);
    const PooledSequence of = pooled_sequence(pool, sequence);
    const int32_t number = of.first_new() + 1 + page - __ldg(whole.starts + sequence);
    const bool exists = plan_write(pool, sequence, of, i % pool.kv_heads, number, to);
    if (exists && i % of_page >= pool.kv_heads) {
      to.write.target = to.copy;
      to.write.format = 0;
    }
    if (!exists || to.write.target == 0) to.write = {};
  }
  whole.writes[i] = to.write;
}

template <Heads kHeads>
const void* kernel_of(const PagesWritten& pages) {
  if constexpr (kHeads == Heads::kEqual) {
    if (pages.centres != 0) return reinterpret_cast<const void*>(pool_append_kernel<PageCodes::kCentred, kHeads>);
  }
  if constexpr (kHeads != Heads::kAny) {
    if (pages.gains == 0) return reinterpret_cast<const void*>(pool_append_kernel<PageCodes::kPlain, kHeads>);
  }
  return reinterpret_cast<const void*>(pool_append_kernel<PageCodes::kGains, kHeads>);
}

const void* append_kernel(Heads heads, const PagesWritten& pages) {
  if (heads == Heads::kAny) return kernel_of<Heads::kAny>(pages);
  return heads == Heads::kScalar128 ? kernel_of<Heads::kScalar128>(pages) : kernel_of<Heads::kEqual>(pages);
}

Heads heads_of(const AppendArguments& arguments) {
  if (!arguments.has_equal_sides()) return Heads::kAny;
  const PagesWritten& pages = arguments.pages;
  const bool scalar = pages.search_lanes == 0 && pages.centres == 0;
  return scalar && arguments.head.keys == 128 ? Heads::kScalar128 : Heads::kEqual;
}

}  // namespace

cudaError_t prepare_pool_append(int32_t shared_limit) {
  for (const Heads heads : {Heads::kEqual, Heads::kAny, Heads::kScalar128}) {
    for (const PagesWritten& pages :
         {PagesWritten{}, PagesWritten{.gains = 1}, PagesWritten{.gains = 1, .centres = 1}}) {
      const cudaError_t status =
          cudaFuncSetAttribute(append_kernel(heads, pages), cudaFuncAttributeMaxDynamicSharedMemorySize, shared_limit);
      if (status != cudaSuccess) return status;
    }
  }
  return cudaSuccess;
}

cudaError_t launch_pool_writes(const PoolWholePages& whole, const PoolPages& pages, cudaStream_t stream) {
  const int32_t writes = whole.most * whole.copies * pages.kv_heads;
  const auto blocks = static_cast<uint32_t>((writes + kWriteThreads - 1) / kWriteThreads);
  pool_writes_kernel<<<blocks, kWriteThreads, 0, stream>>>(whole, pages);
  return cudaGetLastError();
}

cudaError_t launch_pool_append(const AppendArguments& arguments, const PoolPages& pages, const PoolJobs& jobs,
                               cudaStream_t stream) {
  void* parameters[] = {const_cast<AppendArguments*>(&arguments), const_cast<PoolPages*>(&pages),
                        const_cast<PoolJobs*>(&jobs)};
  const int32_t threads = arguments.pages.search_lanes > 0 ? kAppendThreads / 2 : kAppendThreads;
  return cudaLaunchKernel(append_kernel(heads_of(arguments), arguments.pages),
                          dim3(static_cast<uint32_t>(jobs.most), static_cast<uint32_t>(arguments.kv_heads)),
                          dim3(static_cast<uint32_t>(threads)), parameters,
                          static_cast<size_t>(Layout{arguments.head, arguments.pages}.bytes()), stream);
}

}  // namespace kvq::cuda
