#include "pool/pools.h"

#include "attend/routes.h"
#include "kernels/append/append.h"
#include "pages/codecs.h"
#include "pool/plan.h"

namespace kvq::cuda {

void CudaBlockPools::require(const PooledLayer& layer) const {
  const PageFormat& format = *layer.format;
  if (!knows(format) || has_codes(format)) {
    fail(KVQ_E_UNSUPPORTED, "cuda does not read pages with CommVQ codes in blocks of pools");
  }
  const HeadShape& head = format.head;
  PagesWritten pages;
  pages.add(format_code(format));
  if (fit(pages, head, device_.shared_limit()).scratch_apart != 0) {
    fail(KVQ_E_UNSUPPORTED,
         "pools cannot hold heads of %d and %d channels on this GPU, whose blocks have %d bytes of shared memory",
         head.keys, head.values, device_.shared_limit());
  }
}

Owned<PoolPlan> CudaBlockPools::make_plan(Allocator& allocator, const BlockPool& pool, const PoolMaxima& maxima) {
  for (size_t i = 0; i < pool.layers.size(); ++i) {
    require(pool.layers[i]);
    const AttendBatch& queries = pool.queries[i];
    if (needs_wide(queries.head, *queries.rope)) {
      fail(
          KVQ_E_UNSUPPORTED,
          "pools on cuda take heads with as many channels of keys as of values, at most %d, and rotated from the first "
          "one on",
          kMaxHeadDim);
    }
  }
  const Call call(device_);
  return make_owned<CudaPoolPlan>(allocator, device_, allocator, call, pool, maxima);
}

}  // namespace kvq::cuda
