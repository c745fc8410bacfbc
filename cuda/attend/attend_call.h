#pragma once

#include "attend/workspace.h"
#include "cuda_backend.h"
#include "kernels/attend/attend.h"
#include "kernels/prefill/prefill.h"

#include <span>

namespace kvq::cuda {

/// Sequences of one launch.
class ChosenSequences;

/// One call of attention: sequences with few rows a KV head go by one kernel, those with many by way of tiles. Page
/// tables have caught up.
class CudaBackend::AttendCall {
 public:
  /// `views`: of the batch's sequences, if they are not those of their page tables.
  AttendCall(CudaBackend& backend, const Call& call, const AttendBatch& batch, AttendWorkspace& space,
             std::span<const SequenceView> views = {});

  void run();
  /// Whether a sequence of the batch has codes that run() does not know how to attend to.
  bool needs_decoding(const AttendSequence& sequence) const;
  /// After the last launch that uses the arguments.
  void done();

  /// After run(), where the batch has one sequence: that and its queries, as other kernels may take them.
  const AttendArguments& arguments() const { return arguments_; }

 private:
  bool has_many_rows(const AttendSequence& sequence) const;
  bool takes_codes(const AttendSequence& sequence) const;
  template <typename Wanted, typename Launch>
  void for_some(const Wanted& wanted, size_t tile_memory, const Launch& launch) const;
  void take(const ChosenSequences& chosen);
  void attend_pages(const ChosenSequences& chosen);
  void attend_tiles(const ChosenSequences& chosen);
  void attend_codes(const ChosenSequences& chosen);
  int32_t parts_of(const Tiles& tiles, int32_t longest) const;
  const int32_t* positions();
  SequenceView view_of(const AttendSequence& sequence) const;

  CudaBackend& backend_;
  const Call& call_;
  const AttendBatch& batch_;
  AttendWorkspace& space_;
  std::span<const SequenceView> views_;
  AttendArguments arguments_{};
  int32_t* positions_ = nullptr;
};

}  // namespace kvq::cuda
