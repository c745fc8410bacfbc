#include "pool/pools.h"

#include "kernels/append/append.h"
#include "pages/codecs.h"
#include "pool/plan.h"

namespace kvq::cuda {

void CudaBlockPools::require(const PooledLayer& layer) const {
  const PageFormat& format = *layer.format;
  if (!knows(format) || has_codes(format)) {
    fail(KVQ_E_UNSUPPORTED, "cuda does not read pages with CommVQ codes in blocks of pools");
  }
  PagesWritten pages;
  pages.add(format_code(format));
  if (fit(pages, format.head, device_.shared_limit()).scratch_apart != 0) {
    fail(KVQ_E_UNSUPPORTED,
         "a pool cannot store heads of %d and %d channels on this GPU, whose blocks have %d bytes of shared memory",
         format.head.keys, format.head.values, device_.shared_limit());
  }
}

Owned<PoolPlan> CudaBlockPools::make_plan(Allocator& allocator, const BlockPool& pool, const PoolMaxima& maxima) {
  const Call call(device_);
  return make_owned<CudaPoolPlan>(allocator, device_, allocator, call, pool, maxima);
}

}  // namespace kvq::cuda
