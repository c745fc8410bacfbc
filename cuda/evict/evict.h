#pragma once

#include "attend/workspace.h"
#include "backend/weighing.h"

namespace kvq::cuda {

/// Weighs, selects and moves slots.
class CudaWeighing final : public Weighing {
 public:
  explicit CudaWeighing(Device& device);

  void copy(void* to, const void* from, size_t bytes) noexcept override;
  void clear(void* data, size_t bytes) override;
  void add(float* to, const float* from, size_t n) noexcept override;
  void keep_queries(const QueriesToKeep& queries) noexcept override;
  void read_queries(const KeptQueries& queries) override;
  void weigh(const AttendBatch& batch, Pooling group, Workspace& workspace, std::span<float* const> masses) override;
  void select(Allocator& allocator, const Selection& selection, std::span<Vector<int32_t>> slots) override;
  void take(float* to, const float* from, std::span<const int32_t> slots) override;
  bool moves(const PageFormat& format) const override;
  void move(const SlotMoves& moves) override;

 private:
  /// Weighs the slots of lists without CommVQ codes: those of `view`.
  void weigh_lists(const Call& call, const AttendBatch& batch, const SequenceView& view, Pooling group,
                   AttendWorkspace& space, std::span<float* const> masses);
  /// Selects on the host, which gets all masses.
  void select_on_host(const Call& call, Allocator& allocator, const Selection& selection,
                      std::span<Vector<int32_t>> slots);

  Device& device_;
};

}  // namespace kvq::cuda
