#pragma once

#include "attend/workspace.h"
#include "cuda_backend.h"
#include "device/device_block.h"

#include <algorithm>
#include <optional>
#include <span>

namespace kvq::cuda {

/// Some KV heads of some sequences of a batch, as a batch of its own. Where pages have a codebook's codes, copies of
/// them in halves stand in for them as long as this exists. Page tables have caught up.
class DecodedLists {
 public:
  DecodedLists(CudaBackend& backend, const CudaBackend::Call& call, AttendWorkspace& space, const AttendBatch& batch,
               std::span<const AttendSequence> sequences, int32_t first_head, int32_t heads);

  /// Without log-sum-exps if these are not of all heads: a row has those of all.
  const AttendBatch& batch() const { return batch_; }
  std::span<const SequenceView> views() const { return views_; }

  /// Bytes that one head of a sequence takes.
  static size_t bytes_of_head(const AttendBatch& batch, const AttendSequence& sequence);

 private:
  Vector<AttendSequence> sequences_;
  Vector<SequenceView> views_;
  AttendBatch batch_;
  std::optional<DeviceBlock> memory_;
};

/// Whether some page of a sequence may have such codes.
bool has_codes(const AttendSequence& sequence);

/// Calls use(lists, first head) for all sequences that are `wanted`, which have codes, as many of them and of their
/// heads at a time as fit.
template <typename Wanted, typename Use>
void for_decoded_lists(CudaBackend& backend, const CudaBackend::Call& call, AttendWorkspace& space,
                       const AttendBatch& batch, const Wanted& wanted, const Use& use) {
  constexpr size_t kMemory = size_t{132} << 20U;
  Vector<AttendSequence> some{StlAllocator<AttendSequence>(space.allocator())};
  size_t bytes = 0;
  const auto run = [&](int32_t heads) {
    for (int32_t first = 0; first < batch.kv_heads; first += heads) {
      use(DecodedLists(backend, call, space, batch, some, first, std::min(heads, batch.kv_heads - first)), first);
    }
    some.clear();
    bytes = 0;
  };
  for (const AttendSequence& sequence : batch.sequences) {
    if (!wanted(sequence)) continue;
    const size_t of_head = DecodedLists::bytes_of_head(batch, sequence);
    const size_t more = of_head * static_cast<size_t>(batch.kv_heads);
    if (!some.empty() && bytes + more > kMemory) run(batch.kv_heads);
    some.push_back(sequence);
    bytes += more;
    if (bytes > kMemory) run(static_cast<int32_t>(std::clamp<size_t>(kMemory / of_head, 1, batch.kv_heads)));
  }
  if (!some.empty()) run(batch.kv_heads);
}

}  // namespace kvq::cuda
