// How the host has a batch attended to: sequences with few rows a KV head by one kernel, those with many by way of
// tiles.
#include "kernels/attend/attend.h"
#include "attend/attend_call.h"
#include "commvq/decoded_lists.h"
#include "commvq/device_codebook.h"
#include "device/device_block.h"
#include "kernels/prefill/prefill.h"
#include "pages/codecs.h"
#include "pages/device_centres.h"
#include "pages/page_table.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

namespace kvq::cuda {
namespace {

constexpr float kLog2E = 1.4426950408889634F;

bool consecutive(std::span<const int32_t> positions) {
  return positions.empty() ||
         positions.back() - positions.front() == static_cast<int64_t>(positions.size()) - 1;  // they ascend
}

/// Position of a sequence's last query if its queries are at consecutive positions, otherwise −1.
int32_t last_position(const AttendBatch& batch, const AttendSequence& sequence) {
  if (batch.recorded) return -1;
  const auto positions = batch.query_positions.subspan(static_cast<size_t>(sequence.query_begin),
                                                       static_cast<size_t>(sequence.query_count));
  return batch.newest_queries && consecutive(positions) ? positions.back() : -1;
}

}  // namespace

/// Sequences of one launch.
class ChosenSequences {
 public:
  void add(const AttendSequence& sequence) { sequences_[count_++] = &sequence; }
  bool full() const { return count_ == kMaxLaunchSequences; }
  std::span<const AttendSequence* const> list() const { return {sequences_, static_cast<size_t>(count_)}; }

  bool any(bool (PageTable::*of_table)() const) const {
    return std::any_of(list().begin(), list().end(),
                       [of_table](const AttendSequence* sequence) { return (table_of(*sequence).*of_table)(); });
  }

 private:
  const AttendSequence* sequences_[kMaxLaunchSequences] = {};
  int32_t count_ = 0;
};

namespace {

/// The number of pages that every list has, or −1.
int32_t uniform_pages(const ChosenSequences& chosen, int32_t kv_heads) {
  const int32_t pages = chosen.list()[0]->page_counts[0];
  for (const AttendSequence* sequence : chosen.list()) {
    const std::span<const int32_t> counts(sequence->page_counts, static_cast<size_t>(kv_heads));
    if (std::any_of(counts.begin(), counts.end(), [pages](int32_t count) { return count != pages; })) return -1;
  }
  return pages;
}

/// Tiles of the longest of a sequence's lists.
int32_t tiles_of(const AttendSequence& sequence, int32_t kv_heads) {
  const int32_t pages = *std::max_element(sequence.page_counts, sequence.page_counts + kv_heads);
  return (pages + kTilePages - 1) / kTilePages;
}

size_t bytes_of_tiles(int32_t tiles, int32_t head_dim) {
  return static_cast<size_t>(tiles) * (2 * tile_bytes(head_dim) + sizeof(TileTokens));
}

}  // namespace

CudaBackend::AttendCall::AttendCall(CudaBackend& backend, const Call& call, const AttendBatch& batch,
                                    AttendWorkspace& space, std::span<const SequenceView> views)
    : backend_(backend), call_(call), batch_(batch), space_(space), views_(views) {
  arguments_.q_heads = batch_.q_heads;
  arguments_.kv_heads = batch_.kv_heads;
  arguments_.head_dim = batch_.head_dim;
  arguments_.q = batch_.q;
  arguments_.q_strides = batch_.q_strides;
  arguments_.out = batch_.out;
  arguments_.out_strides = batch_.out_strides;
  arguments_.lse = batch_.lse;
  arguments_.sinks = batch_.sinks;
  arguments_.q_dtype = batch_.q_dtype;
  arguments_.out_dtype = batch_.out_dtype;
  arguments_.scale = batch_.scale * kLog2E;
  arguments_.softcap = batch_.softcap * kLog2E;
  arguments_.window = batch_.window;
  arguments_.rope_pairing = batch_.rope->pairing;
  arguments_.rotary_dim = batch_.rope->rotary_dim;
  arguments_.inv_freq = space_.inv_freq(*batch_.rope, batch_.recorded);
  arguments_.hadamard_keys = batch_.any_hadamard_keys ? 1 : 0;
  arguments_.hadamard_values = batch_.any_hadamard_values ? 1 : 0;
  if (const CentreContext* centres = centre_context(batch_.context)) arguments_.centres = centres->rows();
}

void CudaBackend::AttendCall::run() {
  const auto is_plain = [this](const AttendSequence& sequence) { return !views_.empty() || !has_codes(sequence); };
  for_some([&](const AttendSequence& sequence) { return is_plain(sequence) && !has_many_rows(sequence); }, SIZE_MAX,
           [this](const ChosenSequences& chosen) { attend_pages(chosen); });
  for_some([&](const AttendSequence& sequence) { return is_plain(sequence) && has_many_rows(sequence); }, kTileMemory,
           [this](const ChosenSequences& chosen) { attend_tiles(chosen); });
  for_some([&](const AttendSequence& sequence) { return !is_plain(sequence) && takes_codes(sequence); }, SIZE_MAX,
           [this](const ChosenSequences& chosen) { attend_codes(chosen); });
}

bool CudaBackend::AttendCall::needs_decoding(const AttendSequence& sequence) const {
  return has_codes(sequence) && !takes_codes(sequence);
}

bool CudaBackend::AttendCall::takes_codes(const AttendSequence& sequence) const {
  if (!table_of(sequence).only_codes()) return false;
  const CodebookContext& context = codebook_context(batch_.context);
  const int32_t rows = sequence.query_count * (batch_.q_heads / batch_.kv_heads);
  return commvq_warps(context.tables(), context.key_bytes(), rows, backend_.shared_limit_) > 0;
}

void CudaBackend::AttendCall::done() {
  if (positions_ != nullptr) backend_.staging_->done(backend_.stream_);
}

bool CudaBackend::AttendCall::has_many_rows(const AttendSequence& sequence) const {
  return !batch_.recorded && has_prefill(backend_.compute_capability_) && has_prefill_of(batch_.head_dim) &&
         int64_t{sequence.query_count} * batch_.q_heads >= int64_t{kManyRows} * batch_.kv_heads &&
         !table_of(sequence).any_centres();
}

/// Launch for all sequences that are `wanted`, some at a time: of many, only as many as one head's tiles of all fit
/// into `tile_memory`.
template <typename Wanted, typename Launch>
void CudaBackend::AttendCall::for_some(const Wanted& wanted, size_t tile_memory, const Launch& launch) const {
  ChosenSequences chosen;
  size_t bytes = 0;
  for (const AttendSequence& sequence : batch_.sequences) {
    if (!wanted(sequence)) continue;
    const size_t more = bytes_of_tiles(tiles_of(sequence, batch_.kv_heads), batch_.head_dim);
    if (chosen.full() || (!chosen.list().empty() && bytes + more > tile_memory)) {
      launch(chosen);
      chosen = ChosenSequences();
      bytes = 0;
    }
    chosen.add(sequence);
    bytes += more;
  }
  if (!chosen.list().empty()) launch(chosen);
}

SequenceView CudaBackend::AttendCall::view_of(const AttendSequence& sequence) const {
  if (views_.empty()) return table_of(sequence).view();
  return views_[static_cast<size_t>(&sequence - batch_.sequences.data())];
}

/// What both ways ask of some sequences.
void CudaBackend::AttendCall::take(const ChosenSequences& chosen) {
  int32_t n = 0;
  for (const AttendSequence* sequence : chosen.list()) {
    arguments_.sequences[n++] = {view_of(*sequence), sequence->query_begin, sequence->query_count,
                                 last_position(batch_, *sequence)};
  }
  arguments_.n_sequences = n;
  arguments_.query_positions = batch_.newest_queries ? nullptr : positions();
}

void CudaBackend::AttendCall::attend_pages(const ChosenSequences& chosen) {
  take(chosen);
  arguments_.any_gains = chosen.any(&PageTable::any_gains) ? 1 : 0;
  arguments_.any_centres = chosen.any(&PageTable::any_centres) ? 1 : 0;
  const int32_t even_pages = uniform_pages(chosen, batch_.kv_heads);
  arguments_.uniform_pages = batch_.recorded ? -1 : even_pages;
  const AttendPlan plan = plan_attend(arguments_, even_pages, backend_.multiprocessors_, backend_.shared_limit_);
  space_.reserve(plan, batch_.recorded);
  call_.require(launch_attend(plan, arguments_, space_.partials(), space_.tickets(), backend_.stream_),
                "attention kernel");
}

void CudaBackend::AttendCall::attend_tiles(const ChosenSequences& chosen) {
  take(chosen);
  const auto sequences = std::span(arguments_.sequences).first(chosen.list().size());
  if (std::any_of(sequences.begin(), sequences.end(), [](const auto& each) { return each.last_position < 0; })) {
    arguments_.query_positions = positions();  // tables would be walked for every query
  }
  const auto group = static_cast<uint32_t>(batch_.q_heads / batch_.kv_heads);
  arguments_.group = divisor(group);
  arguments_.one_row_block = 0;
  arguments_.uniform_pages = -1;
  Tiles tiles{};
  int32_t of_a_head = 0;
  int32_t longest = 0;
  for (size_t i = 0; i < chosen.list().size(); ++i) {
    const AttendSequence& sequence = *chosen.list()[i];
    tiles.counts[i] = tiles_of(sequence, batch_.kv_heads);
    of_a_head += tiles.counts[i];
    longest = std::max(longest, tiles.counts[i]);
    tiles.row_blocks += (sequence.query_count * static_cast<int32_t>(group) + kBlockRows - 1) / kBlockRows;
  }
  const size_t bytes_of_head = std::max(bytes_of_tiles(of_a_head, batch_.head_dim), size_t{1});
  const auto heads_together =
      static_cast<int32_t>(std::clamp<size_t>(kTileMemory / bytes_of_head, 1, static_cast<size_t>(batch_.kv_heads)));
  tiles.heads = heads_together;
  tiles.parts = parts_of(tiles, longest);
  const int32_t most = of_a_head * heads_together;
  const size_t side = static_cast<size_t>(most) * tile_bytes(batch_.head_dim);
  const size_t units = static_cast<size_t>(tiles.row_blocks) * static_cast<size_t>(tiles.heads);
  const size_t partials = tiles.parts > 1 ? units * static_cast<size_t>(tiles.parts) : 0;
  const size_t partial_bytes = partials * prefill_partial_floats(batch_.head_dim) * sizeof(float);
  const size_t all_tiles = bytes_of_tiles(most, batch_.head_dim);
  const DeviceBlock memory(backend_, space_.allocator(), std::max(all_tiles + partial_bytes, size_t{1}));
  tiles.keys = memory.memory();
  tiles.values = memory.memory() + side;
  tiles.tokens = reinterpret_cast<TileTokens*>(memory.memory() + 2 * side);
  tiles.partials = reinterpret_cast<float*>(memory.memory() + all_tiles);
  for (tiles.first_head = 0; tiles.first_head < batch_.kv_heads; tiles.first_head += heads_together) {
    tiles.heads = std::min(heads_together, batch_.kv_heads - tiles.first_head);
    tiles.total = 0;
    for (size_t i = 0; i < chosen.list().size(); ++i) {
      tiles.begins[i] = tiles.total;
      tiles.total += tiles.counts[i] * tiles.heads;
    }
    if (tiles.total > 0) {
      call_.require(launch_unpack(arguments_, tiles, backend_.multiprocessors_, backend_.stream_), "unpacking kernel");
    }
    call_.require(launch_prefill(arguments_, tiles, backend_.stream_), "attention kernel");
  }
}

void CudaBackend::AttendCall::attend_codes(const ChosenSequences& chosen) {
  take(chosen);
  arguments_.group = divisor(static_cast<uint32_t>(batch_.q_heads / batch_.kv_heads));
  const CodebookContext& context = codebook_context(batch_.context);
  const PageFormat& format = *table_of(*chosen.list()[0]).coded();
  CommvqAttention coded{};
  coded.tables = context.tables();
  coded.bytes = context.key_bytes();
  coded.format = format_code(format).bits;
  coded.values_at = coded_values_at(format);
  int32_t pages = 1;
  for (const AttendSequence* sequence : chosen.list()) {
    coded.rows = std::max(coded.rows, sequence->query_count * static_cast<int32_t>(arguments_.group.number));
    pages = std::max(pages, *std::max_element(sequence->page_counts, sequence->page_counts + batch_.kv_heads));
  }
  coded.tokens = pages * kSlots;
  coded.warps = commvq_warps(coded.tables, coded.bytes, coded.rows, backend_.shared_limit_);
  // As many blocks as there are multiprocessors, of each kernel, unless lists are short.
  const auto sequences = static_cast<int32_t>(chosen.list().size());
  const auto ceiling = [](int32_t a, int32_t b) { return (a + b - 1) / b; };
  const auto parts = [&](int32_t units, int32_t of_list) {
    return std::clamp(backend_.multiprocessors_ / std::max(units * sequences, 1), 1, of_list);
  };
  coded.parts = parts(batch_.kv_heads, ceiling(pages, coded.warps));
  const int32_t bit_blocks = ceiling(coded.tables.values.bits, kBlockBits);
  coded.sum_parts = coded.page_warps() *
                    parts(coded.vectors() * bit_blocks * ceiling(coded.vector_rows(), 32), ceiling(pages, kSumPages));
  const auto all_rows = static_cast<size_t>(sequences * coded.all_rows());
  const auto units = static_cast<size_t>(sequences * batch_.kv_heads);
  const size_t sizes[] = {
      all_rows * static_cast<size_t>(coded.tokens), all_rows * static_cast<size_t>(coded.parts),
      all_rows * static_cast<size_t>(coded.sum_parts) * static_cast<size_t>(coded.tables.values.bits),
      all_rows * static_cast<size_t>(coded.sum_parts) * 2,
      units * static_cast<size_t>(coded.output_blocks() * coded.rows * kCommvqDim)};
  AttendPlan plan{};
  plan.partial_floats = std::accumulate(std::begin(sizes), std::end(sizes), size_t{0});
  plan.tickets = units;
  space_.reserve(plan, false);
  float* next = space_.partials();
  float** const arrays[] = {&coded.scores, &coded.maxima, &coded.sums, &coded.weights, &coded.outputs};
  for (size_t i = 0; i < std::size(sizes); ++i) *arrays[i] = std::exchange(next, next + sizes[i]);
  coded.tickets = space_.tickets();
  call_.require(launch_commvq_attention(arguments_, coded, backend_.stream_), "attention kernel");
}

/// Few blocks share each unit's tiles.
int32_t CudaBackend::AttendCall::parts_of(const Tiles& tiles, int32_t longest) const {
  constexpr int32_t kLeastTiles = 4;
  const int32_t units = std::max(tiles.row_blocks * tiles.heads, 1);
  return std::clamp(longest / kLeastTiles, 1, std::max(backend_.multiprocessors_ / units, 1));
}

/// The positions of all queries where kernels read them.
const int32_t* CudaBackend::AttendCall::positions() {
  if (positions_ == nullptr) {
    positions_ = static_cast<int32_t*>(backend_.staging_->take(batch_.query_positions.size_bytes()));
    std::copy(batch_.query_positions.begin(), batch_.query_positions.end(), positions_);
  }
  return positions_;
}

void CudaBackend::attend(const AttendBatch& batch, Workspace& workspace) {
  const Call call(*this);
  auto& space = static_cast<AttendWorkspace&>(workspace);
  for (const AttendSequence& sequence : batch.sequences) {
    auto* table = static_cast<PageTable*>(sequence.mirror);
    if (batch.recorded) {
      table->require_published();
    } else {
      table->catch_up(sequence.pages, sequence.page_counts);
    }
  }
  AttendCall attention(*this, call, batch, space);
  attention.run();
  attention.done();
  for_decoded_lists(
      *this, call, space, batch, [&](const AttendSequence& sequence) { return attention.needs_decoding(sequence); },
      [&](const DecodedLists& lists, int32_t first_head) { attend_decoded(call, batch, space, lists, first_head); });
}

/// Some heads of sequences with codes by way of pages with halves.
void CudaBackend::attend_decoded(const Call& call, const AttendBatch& batch, AttendWorkspace& space,
                                 const DecodedLists& lists, int32_t first_head) {
  const auto attend_to = [&](const AttendBatch& some) {
    AttendCall attention(*this, call, some, space, lists.views());
    attention.run();
    attention.done();
  };
  AttendBatch some = lists.batch();
  if (batch.lse == nullptr || some.lse != nullptr) return attend_to(some);
  const auto row = [](int32_t heads) { return static_cast<size_t>(heads) * sizeof(float); };
  const DeviceBlock lse(*this, space.allocator(), batch.query_positions.size() * row(some.q_heads));
  some.lse = reinterpret_cast<float*>(lse.memory());
  attend_to(some);
  const int32_t group = batch.q_heads / batch.kv_heads;
  for (const AttendSequence& sequence : some.sequences) {
    const auto first = static_cast<size_t>(sequence.query_begin);
    call.require(cudaMemcpy2DAsync(batch.lse + first * static_cast<size_t>(batch.q_heads) + first_head * group,
                                   row(batch.q_heads), some.lse + first * static_cast<size_t>(some.q_heads),
                                   row(some.q_heads), row(some.q_heads), static_cast<size_t>(sequence.query_count),
                                   cudaMemcpyDeviceToDevice, stream_),
                 "cudaMemcpy2DAsync");
  }
}

}  // namespace kvq::cuda
