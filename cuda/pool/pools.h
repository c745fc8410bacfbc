#pragma once

#include "backend/block_pools.h"
#include "device/device.h"

namespace kvq::cuda {

/// Pages in blocks of the host's memory.
class CudaBlockPools final : public BlockPools {
 public:
  explicit CudaBlockPools(Device& device) : device_(device) {}

  void require(const PooledLayer& layer) const override;
  Owned<PoolPlan> make_plan(Allocator& allocator, const BlockPool& pool, const PoolMaxima& maxima) override;

 private:
  Device& device_;
};

}  // namespace kvq::cuda
