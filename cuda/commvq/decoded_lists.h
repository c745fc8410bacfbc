#pragma once

#include "attend/routes.h"
#include "attend/workspace.h"

#include <algorithm>
#include <span>

namespace kvq::cuda {

/// Some KV heads of some sequences of a batch, as a batch of its own. FP16 copies stand in for pages with CommVQ codes
/// as long as this exists. Page tables have caught up.
class DecodedLists {
 public:
  DecodedLists(Device& device, const Call& call, AttendWorkspace& space, const AttendBatch& batch,
               std::span<const AttendSequence> sequences, int32_t first_head, int32_t heads);

  /// Without log-sum-exps unless they are of all heads: a row has those of all.
  const AttendBatch& batch() const { return batch_; }
  /// The batch's sequences, to be read from the copies.
  std::span<const RoutedSequence> sequences() const { return routed_; }

  /// Bytes that one head of a sequence takes.
  static size_t bytes_of_head(const AttendBatch& batch, const AttendSequence& sequence);

 private:
  Vector<AttendSequence> sequences_;
  Vector<RoutedSequence> routed_;
  AttendBatch batch_;
  DeviceBlock memory_;
};

/// Calls use(lists, first head) for all sequences of the decoded route, as many of them and of their heads at a time as
/// memory allows.
template <typename Use>
void for_decoded_lists(Device& device, const Call& call, AttendWorkspace& space, const AttendBatch& batch,
                       std::span<const RoutedSequence> sequences, const Use& use) {
  constexpr size_t kMemory = size_t{132} << 20U;
  Vector<AttendSequence> some(space.allocator());
  size_t bytes = 0;
  const auto run = [&](int32_t heads) {
    for (int32_t first = 0; first < batch.kv_heads; first += heads) {
      use(DecodedLists(device, call, space, batch, some, first, std::min(heads, batch.kv_heads - first)), first);
    }
    some.clear();
    bytes = 0;
  };
  for (const RoutedSequence& each : sequences) {
    if (each.route != Route::kDecoded) continue;
    const size_t of_head = DecodedLists::bytes_of_head(batch, *each.sequence);
    const size_t more = of_head * static_cast<size_t>(batch.kv_heads);
    if (!some.empty() && bytes + more > kMemory) run(batch.kv_heads);
    some.push_back(*each.sequence);
    bytes += more;
    if (bytes > kMemory)
      run(static_cast<int32_t>(std::clamp<size_t>(kMemory / of_head, 1, static_cast<size_t>(batch.kv_heads))));
  }
  if (!some.empty()) run(batch.kv_heads);
}

}  // namespace kvq::cuda
