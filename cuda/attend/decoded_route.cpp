// Attention to FP16 pages in place of those with CommVQ codes.
#include "attend/routes.h"
#include "attend/workspace.h"
#include "commvq/decoded_lists.h"

namespace kvq::cuda {
namespace {

/// Attends to some heads of some sequences.
void attend_some(Device& device, const Call& call, const AttendBatch& batch, AttendWorkspace& space,
                 const DecodedLists& lists, int32_t first_head) {
  const auto attend = [&](const AttendBatch& some) {
    AttendCall attention(device, call, some, space);
    attention.run(lists.sequences());
    attention.done();
  };
  AttendBatch some = lists.batch();
  if (batch.lse == nullptr || some.lse != nullptr) return attend(some);
  const auto row = [](int32_t heads) { return static_cast<size_t>(heads) * sizeof(float); };
  const DeviceBlock lse(device, space.allocator(), batch.query_positions.size() * row(some.q_heads));
  some.lse = reinterpret_cast<float*>(lse.memory());
  attend(some);
  const int32_t group = batch.q_heads / batch.kv_heads;
  for (const AttendSequence& sequence : some.sequences) {
    const auto first = static_cast<size_t>(sequence.query_begin);
    call.require(cudaMemcpy2DAsync(batch.lse + first * static_cast<size_t>(batch.q_heads) + first_head * group,
                                   row(batch.q_heads), some.lse + first * static_cast<size_t>(some.q_heads),
                                   row(some.q_heads), row(some.q_heads), static_cast<size_t>(sequence.query_count),
                                   cudaMemcpyDeviceToDevice, call.stream()),
                 "cudaMemcpy2DAsync");
  }
}

}  // namespace

void attend_decoded(Device& device, const Call& call, const AttendBatch& batch, AttendWorkspace& space,
                    std::span<const RoutedSequence> sequences) {
  for_decoded_lists(device, call, space, batch, sequences, [&](const DecodedLists& lists, int32_t first_head) {
    attend_some(device, call, batch, space, lists, first_head);
  });
}

}  // namespace kvq::cuda
