#pragma once

#include "backend/backend.h"
#include "backend/cpu/dispatch/kernels.h"
#include "backend/cpu/pool/block_pools.h"
#include "backend/cpu/training/host_training.h"
#include "core/parallel.h"
#include "core/scratch.h"

namespace kvq::cpu {

/// Pages in host memory, kernels of one instruction set.
class CpuBackend final : public Backend,
                         private Pages,
                         private Attention,
                         private Weighing,
                         private Voting,
                         private Linear {
 public:
  /// `allocator`: for memory kept between calls.
  CpuBackend(Allocator& allocator, const KernelTable& kernels, Parallel& parallel)
      : kernels_(kernels), parallel_(parallel), linear_scratch_(allocator), training_(parallel) {}

  const char* name() const override { return "cpu"; }
  const char* isa() const override { return kernels_.name; }
  void set_stream(void* stream) override;
  bool recording() override { return false; }

  Pages& pages() override { return *this; }
  Attention& attention() override { return *this; }
  Facet<BlockPools> block_pools() override { return block_pools_; }
  Facet<Weighing> weighing() override { return *this; }
  Facet<Voting> voting() override { return *this; }
  Facet<Linear> linear() override { return *this; }
  Facet<Tuning> tuning() override {
    return Facet<Tuning>::missing("a CPU context has nothing to tune: its kernels follow from the processor");
  }
  Facet<Training> training() override { return training_; }
  Facet<weights::Quantizing> quantizing() override {
    return Facet<weights::Quantizing>::missing("the CPU has the quantizer's own threads");
  }

 private:
  bool knows(const PageFormat& format) const override;
  bool knows_heads(const HeadShape& /*head*/, int32_t /*rotary_begin*/) const override { return true; }
  std::shared_ptr<const Resident> make_resident(Allocator& allocator, const Codec& codec,
                                                std::shared_ptr<const Trained> trained) override;
  Owned<LayerContext> make_context(Allocator& allocator, const Codec& codec, const Resident& resident, int32_t layer,
                                   const PageFormat& format, const OptionValues& options,
                                   const RotationTable& rotations) override;
  std::byte* allocate(Allocator& allocator, size_t bytes) override;
  void release(Allocator& allocator, std::byte* data, size_t bytes) noexcept override;
  void read(const PageFormat& format, const std::byte* data, std::byte* host) override;
  const std::byte* read_tensor(const std::byte* tensor, size_t bytes, Vector<std::byte>& room) override;
  void upload(const void* host, size_t bytes, std::byte* data) override;
  void write(const PageFormat& format, const std::byte* host, std::byte* data) override;
  Owned<LayerMirror> make_mirror(Allocator& allocator, int32_t kv_heads) override;
  uint64_t mirror_bytes(int32_t /*kv_heads*/, int32_t /*pages*/, int32_t /*ring*/) const override { return 0; }
  void read_lengths(std::span<const Owned<LayerMirror>> mirrors, std::span<int32_t> lengths) override;
  void append(const TokenBatch& tokens, const PageWrites& writes, std::span<const AppendedLayer> layers,
              Allocator& scratch) override;
  uint64_t append_bytes(const ExpectedAppend& expected) const override;
  void compact(const SlotCompaction& compaction) override;

  Owned<Workspace> make_workspace(Allocator& allocator) override;
  uint64_t workspace_bytes(std::span<const ExpectedCall> calls) override;
  void reserve(const ExpectedCall& call, Workspace& workspace) override;
  void require_known_sizes(int32_t /*queries*/) const override {}
  void attend(const AttendBatch& batch, Workspace& workspace) override;
  const float* rotate(const StreamRotation& heads, Workspace& workspace) override;

  void copy(void* to, const void* from, size_t bytes) noexcept override;
  void clear(void* data, size_t bytes) override;
  void add(float* to, const float* from, size_t n) noexcept override;
  void keep_queries(const QueriesToKeep& queries) noexcept override;
  void read_queries(const KeptQueries& queries) override;
  void weigh(const AttendBatch& batch, Pooling group, Workspace& workspace, std::span<float* const> masses) override;
  void select(Allocator& allocator, const Selection& selection, std::span<Vector<int32_t>> slots) override;
  void take(float* to, const float* from, std::span<const int32_t> slots) override;
  /// Trained formats need more than their page: the layer, RoPE, other heads.
  bool moves(const PageFormat& format) const override { return !format.needs_training(); }
  void move(const SlotMoves& moves) override;

  std::shared_ptr<const Resident> make_resident(Allocator& allocator,
                                                std::shared_ptr<const ModelRouter> router) override;
  void vote(std::span<const PageToRoute> pages, const RotationTable& rotations, const Resident& router, int32_t group,
            std::span<int32_t> counts) override;

  Owned<Resident> make_resident(Allocator& allocator, weights::Matrix&& matrix) override;
  const weights::Matrix& read(const Resident& matrix, std::optional<weights::Matrix>& copy) override;
  void multiply(const LinearBatch& batch) override;

  const KernelTable& kernels_;
  Parallel& parallel_;
  ScratchPool linear_scratch_;
  HostTraining training_;
  CpuBlockPools block_pools_{*this, *this, parallel_};
};

}  // namespace kvq::cpu
