#pragma once

#include "backend/block_pools.h"
#include "device/device_arrays.h"
#include "kernels/append/append.h"
#include "kernels/attend/attend.h"
#include "kernels/pool/plan.h"
#include "pool/tiling.h"

namespace kvq::cuda {

/// Memory for calls within limits, and what a call's sequences have been found to be. Created during a Call.
class CudaPoolPlan final : public PoolPlan {
 public:
  CudaPoolPlan(Device& device, Allocator& allocator, const Call& call, const BlockPool& pool, const PoolMaxima& maxima);

  void plan(const PooledBatch& batch) override;
  void run(const PooledCall& call) override;

 private:
  struct Layer {
    PoolPages pages;  // but for the starts of a division
    LayerScales scales;
    PagesWritten written;
  };
  struct Frequencies {
    const Rope* rope;
    const float* numbers;
  };
  /// What a layer's calls read pages by.
  struct Readers {
    PoolTiling tiling;  // of sequences with many new tokens
    int32_t group;
    int32_t most_queries;  // of other sequences

    /// All other sequences, for a kernel with blocks of so many rows.
    PoolDivision others(int32_t rows) const { return {.group = group, .rows = rows, .most_queries = most_queries}; }
  };
  /// Numbers in memory that the limits need.
  struct Sizes {
    size_t blocks = 0;
    size_t tiles = 0;  // bytes, partials included
    size_t writes = 0;
    size_t round_bytes = 0;  // of all divisions
    size_t partials = 0;
    size_t tickets = 0;
    size_t work = 0;
    size_t table = 0;
    size_t zeros = 0;
    size_t frequency_bytes = 0;
  };

  Readers readers_of(const AttendBatch& queries, bool centred) const;
  Vector<PoolStarts> divisions_of(Allocator& allocator) const;
  Sizes sizes_of() const;
  size_t bytes_of(const Sizes& sizes) const;
  void make_starts();
  void make_frequencies(const BlockPool& pool);
  void make_layers(const BlockPool& pool, const std::byte* work, const std::byte* zeros);
  const PoolStarts& starts_of(const PoolDivision& division) const;
  bool store_whole_pages(const Call& call, AppendArguments& arguments, const PoolPages& pages) const;
  void store(const Call& call, const Layer& layer, const PoolPages& pages, const TokenBatch& tokens) const;
  void attend(const Call& call, const Layer& layer, const PoolPages& pages, const AttendBatch& queries) const;
  void attend_pages(const Call& call, const Readers& readers, AttendArguments& arguments, const PooledWork& work) const;
  void attend_wide(const Call& call, const Readers& readers, AttendArguments& arguments, const PooledWork& work) const;

  Device& device_;
  const BlockPool& pool_;
  const PoolMaxima maxima_;
  Vector<PoolStarts> starts_;  // as in device memory
  const Sizes sizes_;
  DeviceArrays arrays_;
  Vector<Frequencies> frequencies_;
  Vector<Layer> layers_;
  PlanArguments plan_{};
  float* partials_ = nullptr;
  int32_t* tickets_ = nullptr;
  DeviceWrite* writes_ = nullptr;
  std::byte* tiles_ = nullptr;  // and their partials
};

}  // namespace kvq::cuda
