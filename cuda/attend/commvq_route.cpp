// Attention to CommVQ codes as they are.
#include "attend/routes.h"
#include "attend/workspace.h"
#include "commvq/device_codebook.h"
#include "pages/codecs.h"
#include "pages/page_table.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

namespace kvq::cuda {

void AttendCall::attend_commvq(LaunchSequences sequences) {
  set_sequences(sequences);
  arguments_.group = divisor(static_cast<uint32_t>(batch_.q_heads / batch_.kv_heads));
  const CodebookContext& context = codebook_context(batch_.context);
  const PageFormat& format = *table_of(*sequences[0]->sequence).commvq_format();
  CommvqAttention commvq{};
  commvq.tables = context.tables();
  commvq.bytes = context.key_bytes();
  commvq.format = format_code(format).bits;
  commvq.values_at = coded_values_at(format);
  int32_t pages = 1;
  for (const RoutedSequence* each : sequences) {
    const AttendSequence& sequence = *each->sequence;
    commvq.rows = std::max(commvq.rows, sequence.query_count * static_cast<int32_t>(arguments_.group.number));
    pages = std::max(pages, *std::max_element(sequence.page_counts, sequence.page_counts + batch_.kv_heads));
  }
  commvq.tokens = pages * kSlots;
  commvq.warps = commvq_warps(commvq.tables, commvq.bytes, commvq.rows, device_.shared_limit());
  // Each kernel has as many blocks as there are multiprocessors, unless lists are short.
  const auto n = static_cast<int32_t>(sequences.size());
  const auto ceiling = [](int32_t a, int32_t b) { return (a + b - 1) / b; };
  const auto parts = [&](int32_t units, int32_t of_list) {
    return std::clamp(device_.multiprocessors() / std::max(units * n, 1), 1, of_list);
  };
  commvq.parts = parts(batch_.kv_heads, ceiling(pages, commvq.warps));
  const int32_t bit_blocks = ceiling(commvq.tables.values.bits, kBlockBits);
  commvq.sum_parts = commvq.page_warps() * parts(commvq.vectors() * bit_blocks * ceiling(commvq.vector_rows(), 32),
                                                 ceiling(pages, kSumPages));
  const auto all_rows = static_cast<size_t>(n * commvq.all_rows());
  const auto units = static_cast<size_t>(n * batch_.kv_heads);
  const size_t sizes[] = {
      all_rows * static_cast<size_t>(commvq.tokens), all_rows * static_cast<size_t>(commvq.parts),
      all_rows * static_cast<size_t>(commvq.sum_parts) * static_cast<size_t>(commvq.tables.values.bits),
      all_rows * static_cast<size_t>(commvq.sum_parts) * 2,
      units * static_cast<size_t>(commvq.output_blocks() * commvq.rows * kCommvqDim)};
  AttendLaunch launch{};
  launch.partial_floats = std::accumulate(std::begin(sizes), std::end(sizes), size_t{0});
  launch.tickets = units;
  space_.reserve(launch, false);
  float* next = space_.partials();
  float** const arrays[] = {&commvq.scores, &commvq.maxima, &commvq.sums, &commvq.weights, &commvq.outputs};
  for (size_t i = 0; i < std::size(sizes); ++i) *arrays[i] = std::exchange(next, next + sizes[i]);
  commvq.tickets = space_.tickets();
  call_.require(launch_commvq_attention(arguments_, commvq, call_.stream()), "attention kernel");
}

}  // namespace kvq::cuda
