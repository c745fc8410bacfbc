// Sorts the sequences of a batch by route and runs the routes.
#include "attend/attend.h"

#include "attend/routes.h"
#include "attend/workspace.h"
#include "commvq/device_codebook.h"
#include "kernels/commvq/attend.h"
#include "kernels/wide/wide.h"
#include "pages/device_centres.h"
#include "pages/page_table.h"

#include <algorithm>

namespace kvq::cuda {
namespace {

constexpr float kLog2E = 1.4426950408889634F;

bool consecutive(std::span<const int32_t> positions) {
  return positions.empty() ||
         positions.back() - positions.front() == static_cast<int64_t>(positions.size()) - 1;  // they ascend
}

/// Position of a sequence's last query if its queries are at consecutive positions, otherwise −1.
int32_t last_position(const AttendBatch& batch, const AttendSequence& sequence) {
  if (batch.recorded || batch.mask != nullptr) return -1;  // positions of tokens that a mask covers may fall
  const auto positions = batch.query_positions.subspan(static_cast<size_t>(sequence.query_begin),
                                                       static_cast<size_t>(sequence.query_count));
  return batch.newest_queries && consecutive(positions) ? positions.back() : -1;
}

}  // namespace

Route route_of(const Device& device, const AttendBatch& batch, const AttendSequence& sequence) {
  const PageTable& table = table_of(sequence);
  if (table.commvq_format() == nullptr) return route_by_rows(device, batch, sequence);
  if (!table.only_commvq() || batch.mask != nullptr) return Route::kDecoded;
  const CodebookContext& context = codebook_context(batch.context);
  const int32_t rows = sequence.query_count * (batch.q_heads / batch.kv_heads);
  const bool reads_codes = commvq_warps(context.tables(), context.key_bytes(), rows, device.shared_limit()) > 0;
  return reads_codes ? Route::kCommvq : Route::kDecoded;
}

Route route_by_rows(const Device& device, const AttendBatch& batch, const AttendSequence& sequence) {
  const int64_t least_rows = least_prefill_rows(batch, prefill_of(device, batch.head));
  const bool many_rows = !batch.recorded &&
                         int64_t{sequence.query_count} * batch.q_heads >= least_rows * batch.kv_heads &&
                         !table_of(sequence).any_centres();
  if (many_rows) return Route::kPrefill;
  if (!needs_wide(batch.head, *batch.rope)) return Route::kPages;
  const bool tiles = !batch.recorded && device.compute_capability() == 90 &&
                     int64_t{sequence.query_count} * (batch.q_heads / batch.kv_heads) >= kLeastTiledRows;
  return tiles ? Route::kWideTiles : Route::kWide;
}

void set_batch(AttendArguments& arguments, const AttendBatch& batch, const float* inv_freq) {
  arguments.q_heads = batch.q_heads;
  arguments.kv_heads = batch.kv_heads;
  arguments.head = batch.head;
  arguments.q = batch.q;
  arguments.q_strides = batch.q_strides;
  arguments.out = batch.out;
  arguments.out_strides = batch.out_strides;
  arguments.lse = batch.lse;
  arguments.sinks = batch.sinks;
  arguments.mask = {batch.mask, batch.mask_slots, static_cast<int32_t>(batch.mask_words())};
  arguments.q_dtype = batch.q_dtype;
  arguments.out_dtype = batch.out_dtype;
  arguments.scale = batch.scale * kLog2E;
  arguments.softcap = batch.softcap * kLog2E;
  arguments.window = batch.window;
  arguments.rope_pairing = batch.rope->pairing;
  arguments.rotary_begin = batch.rope->begin;
  arguments.rotary_dim = batch.rope->rotary_dim;
  arguments.inv_freq = inv_freq;
  arguments.hadamard_keys = batch.any_hadamard_keys ? 1 : 0;
  arguments.hadamard_values = batch.any_hadamard_values ? 1 : 0;
  if (const CentreContext* centres = centre_context(batch.context)) arguments.centres = centres->rows();
}

AttendCall::AttendCall(Device& device, const Call& call, const AttendBatch& batch, AttendWorkspace& space)
    : device_(device), call_(call), batch_(batch), space_(space), prefill_(prefill_of(device, batch.head)) {
  set_batch(arguments_, batch_, space_.inv_freq(*batch_.rope, batch_.recorded));
}

void AttendCall::run(std::span<const RoutedSequence> sequences) {
  launch(sequences, Route::kPages, &AttendCall::attend_pages);
  launch(sequences, Route::kPrefill, &AttendCall::attend_prefill);
  launch(sequences, Route::kWide, &AttendCall::attend_wide);
  launch(sequences, Route::kWideTiles, &AttendCall::attend_wide_tiles);
  launch(sequences, Route::kCommvq, &AttendCall::attend_commvq);
}

/// Attends to the sequences of one route, as many at a time as kernel arguments hold and, where there are several, as
/// one head's tiles of all fit into memory.
void AttendCall::launch(std::span<const RoutedSequence> sequences, Route route,
                        void (AttendCall::*attend)(LaunchSequences)) {
  const RoutedSequence* chosen[kMaxLaunchSequences];
  const WideWidths widths = hopper_tiled_wide(batch_.head, device_.shared_limit()).widths;
  size_t n = 0;
  size_t bytes = 0;
  for (const RoutedSequence& each : sequences) {
    if (each.route != route) continue;
    size_t more = 0;
    if (route == Route::kPrefill) more = prefill_.bytes_of_tiles(tiles_of(*each.sequence, batch_.kv_heads));
    if (route == Route::kWideTiles) more = wide_tile_bytes(widths, *each.sequence, batch_.kv_heads);
    if (n == kMaxLaunchSequences || (n > 0 && bytes + more > kTileMemory)) {
      (this->*attend)({chosen, n});
      n = bytes = 0;
    }
    chosen[n++] = &each;
    bytes += more;
  }
  if (n > 0) (this->*attend)({chosen, n});
}

void AttendCall::set_sequences(LaunchSequences sequences) {
  int32_t n = 0;
  for (const RoutedSequence* each : sequences) {
    const AttendSequence& sequence = *each->sequence;
    arguments_.sequences[n++] = {each->view, sequence.query_begin, sequence.query_count,
                                 last_position(batch_, sequence)};
  }
  arguments_.n_sequences = n;
  arguments_.query_positions = batch_.newest_queries ? nullptr : positions();
}

const int32_t* AttendCall::positions() {
  if (batch_.recorded) return batch_.query_positions.data();
  if (positions_ == nullptr) {
    positions_ = static_cast<int32_t*>(device_.staging().take(batch_.query_positions.size_bytes()));
    std::copy(batch_.query_positions.begin(), batch_.query_positions.end(), positions_);
  }
  return positions_;
}

void AttendCall::done() {
  if (positions_ != nullptr) device_.staging().done(call_.stream());
}

CudaAttention::CudaAttention(Device& device) : device_(device) {
  const Call call(device_);
  check(prepare_attend(device_.shared_limit()), "cudaFuncSetAttribute");
  check(prepare_commvq_attention(device_.shared_limit()), "cudaFuncSetAttribute");
  check(prepare_decode_lists(device_.shared_limit()), "cudaFuncSetAttribute");
}

Owned<Workspace> CudaAttention::make_workspace(Allocator& allocator) {
  return make_owned<AttendWorkspace>(allocator, device_, allocator);
}

uint64_t CudaAttention::workspace_bytes(std::span<const ExpectedCall> calls) {
  int32_t sequences = 0;
  for (const ExpectedCall& call : calls) sequences = std::max(sequences, call.sequences);
  return sizeof(AttendWorkspace) + static_cast<uint64_t>(sequences) * sizeof(RoutedSequence);
}

void CudaAttention::reserve(const ExpectedCall& call, Workspace& workspace) {
  static_cast<AttendWorkspace&>(workspace).routed().reserve(static_cast<size_t>(call.sequences));
}

void CudaAttention::require_known_sizes(int32_t queries) const {
  fail(KVQ_E_UNSUPPORTED, "queries is %d, must be 0 on a CUDA context: the size of its workspace depends on the device",
       queries);
}

void CudaAttention::attend(const AttendBatch& batch, Workspace& workspace) {
  const Call call(device_);
  auto& space = static_cast<AttendWorkspace&>(workspace);
  Vector<RoutedSequence>& routed = space.routed();
  routed.clear();
  for (const AttendSequence& sequence : batch.sequences) {
    auto* table = static_cast<PageTable*>(sequence.mirror);
    if (batch.recorded) {
      table->require_published();
    } else {
      table->catch_up(sequence.pages, sequence.page_counts);
    }
    SequenceView view = table->view();
    view.scales = sequence.scales;
    routed.push_back({&sequence, view, route_of(device_, batch, sequence)});
  }
  AttendCall attention(device_, call, batch, space);
  attention.run(routed);
  attention.done();
  attend_decoded(device_, call, batch, space, routed);
}

}  // namespace kvq::cuda
