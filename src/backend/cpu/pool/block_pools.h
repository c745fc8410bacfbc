#pragma once

#include "backend/block_pools.h"
#include "core/parallel.h"

namespace kvq::cpu {

/// Pools in host memory: pages of blocks are listed for each call, and appending and attention take the lists.
class CpuBlockPools final : public BlockPools {
 public:
  CpuBlockPools(Pages& pages, Attention& attention, Parallel& parallel)
      : pages_(pages), attention_(attention), parallel_(parallel) {}

  void require(const PooledLayer& /*layer*/) const override {}
  Owned<PoolPlan> make_plan(Allocator& allocator, const BlockPool& pool, const PoolMaxima& maxima) override;

 private:
  Pages& pages_;
  Attention& attention_;
  Parallel& parallel_;
};

}  // namespace kvq::cpu
