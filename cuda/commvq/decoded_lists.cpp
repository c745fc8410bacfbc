#include "commvq/decoded_lists.h"

#include "attend/routes.h"
#include "commvq/device_codebook.h"
#include "core/tensor.h"
#include "pages/codecs.h"
#include "pages/page_table.h"

#include <algorithm>

namespace kvq::cuda {
namespace {

/// Bytes of an FP16 page in place of one with codes.
size_t stand_in_bytes(const PageFormat& format) {
  return static_cast<size_t>(page_places(without_codes(format), format.head.keys).bytes + 127) / 128 * 128;
}

/// Scales of the heads from `head` on; the numbers before those of heads are read only where tokens are appended.
LayerScales scales_from(const LayerScales& scales, int32_t head, int32_t head_dim) {
  if (!scales) return scales;
  return {scales.numbers + static_cast<ptrdiff_t>(head) * kScaleArrays * head_dim};
}

}  // namespace

size_t DecodedLists::bytes_of_head(const AttendBatch& batch, const AttendSequence& sequence) {
  const PageTable& table = table_of(sequence);
  return static_cast<size_t>(table.view().capacity) * sizeof(DevicePage) +
         static_cast<size_t>(longest_list(sequence, batch.kv_heads)) * stand_in_bytes(*table.commvq_format());
}

DecodedLists::DecodedLists(Device& device, const Call& call, AttendWorkspace& space, const AttendBatch& batch,
                           std::span<const AttendSequence> sequences, int32_t first_head, int32_t heads)
    : sequences_(sequences.begin(), sequences.end(), space.allocator()), routed_(space.allocator()), batch_(batch) {
  const int32_t group = batch.q_heads / batch.kv_heads;
  const auto from_head = [&](const void* tensor, const HeadStrides& strides, kvq_dtype dtype) {
    return static_cast<const std::byte*>(tensor) +
           static_cast<int64_t>(strides.at(0, static_cast<size_t>(first_head * group)) * dtype_bytes(dtype));
  };
  batch_.q = from_head(batch.q, batch.q_strides, batch.q_dtype);
  batch_.out = const_cast<std::byte*>(from_head(batch.out, batch.out_strides, batch.out_dtype));
  batch_.kv_heads = heads;
  batch_.q_heads = heads * group;
  if (heads != batch.kv_heads) batch_.lse = nullptr;
  if (batch.sinks != nullptr) batch_.sinks = batch.sinks + first_head * group;
  size_t bytes = 0;
  for (AttendSequence& sequence : sequences_) {
    bytes += bytes_of_head(batch, sequence) * static_cast<size_t>(heads);
    sequence.pages += first_head;
    sequence.page_counts += first_head;
  }
  batch_.sequences = sequences_;
  memory_ = DeviceBlock(device, space.allocator(), std::max<size_t>(bytes, 1));

  const CodebookTables& tables = codebook_context(batch.context).tables();
  std::byte* next = memory_.memory();
  for (size_t i = 0; i < sequences.size(); ++i) {
    const AttendSequence& sequence = sequences[i];
    const PageTable& table = table_of(sequence);
    const PageFormat& format = *table.commvq_format();
    const FormatCode plain = without_codes(format);
    const PagePlaces plain_bytes = page_places(plain, format.head.keys);
    const SequenceView view = table.view();
    const bool codes_keys = format.keys.code.is_commvq();
    const bool codes_values = format.values.code.is_commvq();
    const int32_t longest = longest_list(sequence, batch.kv_heads);
    const size_t page = stand_in_bytes(format);
    CommvqLists lists{.tables = tables,
                      .view = view,
                      .records = reinterpret_cast<DevicePage*>(next + static_cast<size_t>(heads) *
                                                                          static_cast<size_t>(longest) * page),
                      .pages = next,
                      .first_head = first_head,
                      .heads = heads,
                      .longest = longest,
                      .page_bytes = static_cast<int32_t>(page),
                      .format = format_code(format).bits,
                      .stand_in = plain.bits,
                      .codes_keys = codes_keys ? 1 : 0,
                      .codes_values = codes_values ? 1 : 0,
                      .commvq_values = coded_values_at(format),
                      .stand_in_values = plain_bytes.values_at,
                      .copied = {},
                      .shared_limit = device.shared_limit()};
    if (!codes_values) lists.copied = {lists.commvq_values, plain_bytes.values_at, plain_bytes.values.bytes};
    if (!codes_keys) lists.copied = {0, 0, plain_bytes.keys.bytes};
    if (longest > 0) call.require(decode_lists(lists, call.stream()), "decoding kernel");
    next += bytes_of_head(batch, sequence) * static_cast<size_t>(heads);
    const int64_t first_row = int64_t{first_head} * view.capacity * kSlots;
    const SequenceView decoded{.pages = lists.records,
                               .heads = view.heads + first_head,
                               .positions = view.positions != nullptr ? view.positions + first_row : nullptr,
                               .capacity = view.capacity,
                               .scales = scales_from(sequence.scales, first_head, format.head.keys)};
    routed_.push_back({&sequences_[i], decoded, route_by_rows(device, batch_, sequences_[i])});
  }
}

}  // namespace kvq::cuda
