// Weighs, selects and moves slots for eviction.
#include "evict/evict.h"

#include "attend/routes.h"
#include "commvq/decoded_lists.h"
#include "kernels/evict/select.h"
#include "kernels/evict/weigh.h"
#include "pages/codecs.h"
#include "pages/page_table.h"

#include <algorithm>
#include <bit>
#include <climits>
#include <cstring>
#include <numeric>
#include <utility>

namespace kvq::cuda {
namespace {

/// Queries that are weighed at a time: their outputs need memory although nobody reads them.
constexpr int32_t kQueriesTogether = 4096;

}  // namespace

CudaWeighing::CudaWeighing(Device& device) : device_(device) {
  const Call call(device_);
  check(prepare_weigh(device_.shared_limit()), "cudaFuncSetAttribute");
  check(prepare_move(), "cudaFuncSetAttribute");
}

void CudaWeighing::copy(void* to, const void* from, size_t bytes) noexcept {
  if (bytes == 0) return;
  device_.issue([=, this] { return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, device_.stream()); });
}

void CudaWeighing::clear(void* data, size_t bytes) {
  const Call call(device_, Call::Reports::kNothing);
  call.require(cudaMemsetAsync(data, 0, bytes, call.stream()), "cudaMemsetAsync");
}

void CudaWeighing::add(float* to, const float* from, size_t n) noexcept {
  if (n == 0) return;
  device_.issue([=, this] { return launch_add(to, from, n, device_.stream()); });
}

void CudaWeighing::keep_queries(const QueriesToKeep& queries) noexcept {
  const AttendBatch& batch = queries.batch;
  const KeepArguments arguments{.q = batch.q,
                                .strides = batch.q_strides,
                                .dtype = batch.q_dtype,
                                .first = queries.first,
                                .count = queries.count,
                                .q_heads = batch.q_heads,
                                .head_dim = batch.head.whole_key(),
                                .rows = queries.rows};
  device_.issue([&] { return launch_keep(arguments, device_.stream()); });
}

void CudaWeighing::read_queries(const KeptQueries& queries) {
  const Call call(device_, Call::Reports::kNothing);
  call.require(launch_read_kept(queries.rows, queries.n, queries.head_dim, queries.numbers, call.stream()),
               "kernel of kept queries");
}

void CudaWeighing::weigh(const AttendBatch& batch, Pooling group, Workspace& workspace,
                         std::span<float* const> masses) {
  const Call call(device_);
  const AttendSequence& whole = batch.sequences.front();
  static_cast<PageTable*>(whole.mirror)->catch_up(whole.pages, whole.page_counts);
  auto& space = static_cast<AttendWorkspace&>(workspace);
  SequenceView view = table_of(whole).view();
  view.scales = whole.scales;
  const Route route = route_of(device_, batch, whole);
  if (route != Route::kCommvq && route != Route::kDecoded) return weigh_lists(call, batch, view, group, space, masses);
  const RoutedSequence decoded{&whole, view, Route::kDecoded};  // the weighing kernel reads no CommVQ codes
  for_decoded_lists(device_, call, space, batch, {&decoded, 1}, [&](const DecodedLists& lists, int32_t first_head) {
    const auto heads = static_cast<size_t>(lists.batch().kv_heads);
    weigh_lists(call, lists.batch(), lists.sequences().front().view, group, space,
                masses.subspan(static_cast<size_t>(first_head), heads));
  });
}

void CudaWeighing::weigh_lists(const Call& call, const AttendBatch& batch, const SequenceView& view, Pooling group,
                               AttendWorkspace& space, std::span<float* const> masses) {
  const AttendSequence& whole = batch.sequences.front();
  const int32_t pages = *std::max_element(whole.page_counts, whole.page_counts + batch.kv_heads);
  const int32_t most = std::min(whole.query_count, kQueriesTogether);
  const size_t scalars = static_cast<size_t>(most) * static_cast<size_t>(batch.q_heads);
  const size_t lse_bytes = (scalars * sizeof(float) + 255) / 256 * 256;
  const size_t target_bytes = (masses.size_bytes() + 255) / 256 * 256;
  const DeviceBlock scratch(
      device_, space.allocator(),
      target_bytes + lse_bytes + scalars * static_cast<size_t>(batch.head.values) * sizeof(uint16_t));
  auto* staged = static_cast<float**>(device_.staging().take(masses.size_bytes()));
  std::copy(masses.begin(), masses.end(), staged);
  call.require(cudaMemcpyAsync(scratch.memory(), staged, masses.size_bytes(), cudaMemcpyHostToDevice, call.stream()),
               "cudaMemcpyAsync");
  device_.staging().done(call.stream());
  for (int32_t begin = 0; begin < whole.query_count; begin += most) {
    AttendSequence some = whole;
    some.query_begin = 0;
    some.query_count = std::min(most, whole.query_count - begin);
    const int32_t first = whole.query_begin + begin;
    AttendBatch part = batch;
    part.sequences = {&some, 1};
    part.query_positions =
        batch.query_positions.subspan(static_cast<size_t>(first), static_cast<size_t>(some.query_count));
    part.newest_queries = false;
    part.q = static_cast<const std::byte*>(batch.q) +
             static_cast<int64_t>(batch.q_strides.at(static_cast<size_t>(first), 0) * dtype_bytes(batch.q_dtype));
    part.lse = reinterpret_cast<float*>(scratch.memory() + target_bytes);
    part.out = scratch.memory() + target_bytes + lse_bytes;
    part.out_dtype = KVQ_F16;
    part.out_strides = {int64_t{batch.q_heads} * batch.head.values, batch.head.values};
    const RoutedSequence routed{&some, view, route_by_rows(device_, part, some)};
    AttendCall attention(device_, call, part, space);
    attention.run({&routed, 1});
    const WeighArguments weighing{.lse = part.lse,
                                  .masses = reinterpret_cast<float**>(scratch.memory()),
                                  .largest = group == Pooling::kMax ? 1 : 0,
                                  .rows = some.query_count * (batch.q_heads / batch.kv_heads),
                                  .ring_bytes = 0};
    call.require(launch_weigh(attention.arguments(), weighing, pages, device_.shared_limit(), call.stream()),
                 "weighing kernel");
    attention.done();
  }
}

namespace {

int32_t bits_for(int64_t numbers) { return static_cast<int32_t>(std::bit_width(static_cast<uint64_t>(numbers - 1))); }

/// Selects on the device which of one layer's tokens stay.
class DeviceSelection {
 public:
  DeviceSelection(Device& device, const Call& call, Allocator& allocator, const Selection& selection)
      : device_(device),
        call_(call),
        allocator_(allocator),
        eviction_(selection.eviction),
        heads_(allocator),
        most_(allocator),
        counts_(allocator) {
    int64_t begin = 0;
    outside_ = selection.total;
    for (size_t head = 0; head < selection.masses.size(); ++head) {
      const int32_t window = std::min(eviction_.window, selection.counts[head]);
      const int32_t n = selection.counts[head] - window;
      heads_.push_back({selection.masses[head], n, static_cast<int32_t>(begin)});
      most_.push_back(n);
      longest_ = std::max(longest_, n);
      outside_ -= window;
      if (!joined()) begin += n;
    }
    candidates_.total = joined() ? longest_ : static_cast<int32_t>(std::min<int64_t>(begin, INT32_MAX));
    candidates_.index_bits = bits_for(std::max(longest_, 1));
    candidates_.head_bits = joined() ? 0 : bits_for(std::ssize(heads_));
    fits_ = candidates_.bits() <= 64 && begin <= INT32_MAX / 2 && candidates_.total > 0;
  }

  /// Whether a candidate fits into 64 bits, as in all but the largest models.
  bool fits() const { return fits_; }

  /// Each head's indices that stay, in rising order; valid until the next call.
  const int32_t* run() {
    const auto n = static_cast<size_t>(candidates_.total);
    const size_t scratch = select_scratch(candidates_.total);
    const auto padded = [](size_t bytes) { return (bytes + 255) / 256 * 256; };
    const size_t heads_bytes = padded(heads_.size() * sizeof(SelectHead));
    const size_t counts_bytes = padded(heads_.size() * sizeof(int32_t));
    const DeviceBlock memory(device_, allocator_,
                             heads_bytes + counts_bytes + 2 * padded(8 * n) + padded(12 * n) + scratch);
    std::byte* next = memory.memory();
    const auto take = [&next](size_t bytes) { return std::exchange(next, next + bytes); };
    auto* heads = reinterpret_cast<SelectHead*>(take(heads_bytes));
    auto* counts = reinterpret_cast<int32_t*>(take(counts_bytes));
    candidates_.sorted = reinterpret_cast<uint64_t*>(take(padded(8 * n)));
    candidates_.other = reinterpret_cast<uint64_t*>(take(padded(8 * n)));
    auto* numbers = reinterpret_cast<int32_t*>(take(padded(12 * n)));
    candidates_.scratch = next;
    candidates_.scratch_bytes = scratch;
    upload(heads, heads_.data(), heads_.size() * sizeof(SelectHead));
    sort(heads);
    choose_counts(heads, counts);
    require(sort_by_heads(candidates_, stream()));
    upload(counts, counts_.data(), counts_.size() * sizeof(int32_t));
    const auto sorted_heads = joined() ? 1 : static_cast<int32_t>(heads_.size());
    int32_t* slots = numbers + 2 * n;
    require(launch_slots(heads, sorted_heads, longest_, counts, candidates_, numbers, slots, stream()));
    size_t kept = 0;
    for (int32_t head = 0; head < sorted_heads; ++head) kept += static_cast<size_t>(counts_[static_cast<size_t>(head)]);
    auto* staged = static_cast<int32_t*>(device_.staging().take(std::max(kept, size_t{1}) * sizeof(int32_t)));
    download(staged, slots, kept * sizeof(int32_t));
    return staged;
  }

  /// How many of run()'s indices are a head's; joined: all heads have the same ones.
  int32_t count(size_t head) const { return counts_[head]; }
  int32_t tokens(size_t head) const { return most_[head]; }
  bool joined() const { return eviction_.heads == HeadSplit::kTogether; }

 private:
  cudaStream_t stream() const { return call_.stream(); }
  void require(cudaError_t status) const { call_.require(status, "selecting kernels"); }
  void upload(void* to, const void* from, size_t bytes) {
    void* staged = device_.staging().take(bytes);
    std::memcpy(staged, from, bytes);
    require(cudaMemcpyAsync(to, staged, bytes, cudaMemcpyHostToDevice, stream()));
    device_.staging().done(stream());
  }
  void download(void* to, const void* from, size_t bytes) {
    require(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream()));
    require(cudaStreamSynchronize(stream()));
  }

  void sort(const SelectHead* heads) {
    require(launch_scores(eviction_, heads, static_cast<int32_t>(heads_.size()), longest_, joined(), candidates_,
                          stream()));
    require(sort_candidates(candidates_, stream()));
  }

  /// How many of the best `best` candidates each head has.
  void count_best(int64_t best, int32_t* counts) {
    const auto n = static_cast<int32_t>(heads_.size());
    require(launch_count(candidates_, static_cast<int32_t>(best), counts, n, stream()));
    auto* staged = static_cast<int32_t*>(device_.staging().take(heads_.size() * sizeof(int32_t)));
    download(staged, counts, heads_.size() * sizeof(int32_t));
    for (size_t head = 0; head < counts_.size(); ++head) counts_[head] += staged[head];
  }

  /// Splits the total among heads as split_heads does. Candidates are sorted before and after.
  void choose_counts(const SelectHead* heads, int32_t* counts) {
    counts_.assign(heads_.size(), 0);
    if (joined()) {
      std::fill(counts_.begin(), counts_.end(),
                static_cast<int32_t>(std::clamp<int64_t>(outside_ / std::ssize(heads_), 0, longest_)));
      return;
    }
    const int64_t total = std::clamp<int64_t>(outside_, 0, candidates_.total);
    if (eviction_.heads == HeadSplit::kReserved) {
      const int32_t reserved = reserved_of_head(eviction_, heads_.size(), total);
      require(sort_by_heads(candidates_, stream()));
      require(launch_reserve(heads, reserved, candidates_, stream()));
      require(sort_candidates(candidates_, stream()));
      int64_t left = total;
      for (size_t head = 0; head < counts_.size(); ++head) left -= counts_[head] = std::min(reserved, most_[head]);
      count_best(left, counts);
      return sort(heads);
    }
    if (eviction_.heads == HeadSplit::kAdaptive) count_best(total, counts);
    blend_heads(allocator_, eviction_, most_, total, counts_);
  }

  Device& device_;
  const Call& call_;
  Allocator& allocator_;
  const Eviction& eviction_;
  Vector<SelectHead> heads_;
  Vector<int32_t> most_;
  Vector<int32_t> counts_;
  Candidates candidates_{};
  int32_t longest_ = 0;
  int64_t outside_ = 0;  // tokens to keep of those that may go
  bool fits_ = false;
};

}  // namespace

void CudaWeighing::select_on_host(const Call& call, Allocator& allocator, const Selection& selection,
                                  std::span<Vector<int32_t>> slots) {
  size_t total = 0;
  for (const int32_t count : selection.counts) total += static_cast<size_t>(count);
  auto* staged = static_cast<float*>(device_.staging().take(std::max(total, size_t{1}) * sizeof(float)));
  Vector<HeadScores> masses(allocator);
  for (size_t head = 0; head < selection.masses.size(); ++head) {
    masses.emplace_back(staged, static_cast<size_t>(selection.counts[head]));
    call.require(cudaMemcpyAsync(staged, selection.masses[head], masses[head].size_bytes(), cudaMemcpyDeviceToHost,
                                 call.stream()),
                 "cudaMemcpyAsync");
    staged += masses[head].size();
  }
  call.require(cudaStreamSynchronize(call.stream()), "cudaStreamSynchronize");
  select_slots(allocator, selection.eviction, masses, selection.total, slots);
}

void CudaWeighing::select(Allocator& allocator, const Selection& selection, std::span<Vector<int32_t>> slots) {
  const Call call(device_);
  DeviceSelection selected(device_, call, allocator, selection);
  if (!selected.fits()) return select_on_host(call, allocator, selection, slots);
  const int32_t* indices = selected.run();
  for (size_t head = 0; head < slots.size(); ++head) {
    const int32_t kept = selected.count(head);
    const int32_t window = selection.counts[head] - selected.tokens(head);
    slots[head].resize(static_cast<size_t>(kept + window));
    std::copy_n(indices, kept, slots[head].begin());
    std::iota(slots[head].begin() + kept, slots[head].end(), selected.tokens(head));
    if (!selected.joined()) indices += kept;
  }
}

void CudaWeighing::take(float* to, const float* from, std::span<const int32_t> slots) {
  if (slots.empty()) return;
  const Call call(device_, Call::Reports::kNothing);
  auto* staged = static_cast<int32_t*>(device_.staging().take(slots.size_bytes()));
  std::copy(slots.begin(), slots.end(), staged);
  call.require(launch_take(to, from, staged, static_cast<int32_t>(slots.size()), call.stream()), "gathering kernel");
  device_.staging().done(call.stream());
}

bool CudaWeighing::moves(const PageFormat& format) const {
  return cuda::knows(format) && !has_codes(format) && !format_code(format).centred();
}

void CudaWeighing::move(const SlotMoves& moves) {
  if (moves.moves.empty()) return;
  const Call call(device_, Call::Reports::kNothing);
  auto* staged = static_cast<DeviceMove*>(device_.staging().take(moves.moves.size() * sizeof(DeviceMove)));
  std::transform(moves.moves.begin(), moves.moves.end(), staged, [&moves](const SlotMove& each) {
    const Page& page = *moves.lists[each.head][each.index];
    return DeviceMove{.page = reinterpret_cast<uint64_t>(page.data),
                      .target = reinterpret_cast<uint64_t>(moves.targets[static_cast<size_t>(each.head)]),
                      .slots = each.slots,
                      .rank = each.rank,
                      .format = format_code(*page.format()).bits,
                      .padding = 0};
  });
  const MoveArguments arguments{.moves = staged, .n = static_cast<int32_t>(moves.moves.size()), .head = moves.head};
  call.require(launch_move(arguments, device_.multiprocessors(), call.stream()), "moving kernel");
  device_.staging().done(call.stream());
}

}  // namespace kvq::cuda
