#include "pages/page_table.h"

#include "append/append.h"
#include "core/error.h"
#include "pages/codecs.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace kvq::cuda {
namespace {

uint64_t address_of(const Page* page) { return page != nullptr ? reinterpret_cast<uint64_t>(page->data) : 0; }

int32_t capacity_for(int32_t pages) { return std::max(pages + pages / 4, 16); }

size_t table_bytes(size_t heads, int32_t capacity) {
  return head_state_bytes(heads) + heads * static_cast<size_t>(capacity) * sizeof(DevicePage);
}

size_t position_bytes(size_t heads, int32_t capacity) {
  return heads * static_cast<size_t>(capacity) * kSlots * sizeof(int32_t);
}

size_t reserve_bytes(size_t heads, int32_t capacity, int32_t ring) {
  return heads * (static_cast<size_t>(capacity + ring) * sizeof(uint64_t) + sizeof(int32_t));
}

}  // namespace

PageTable::PageTable(Device& device, Allocator& allocator, int32_t kv_heads)
    : device_(device), allocator_(allocator), heads_(static_cast<size_t>(kv_heads), Head{}, allocator) {}

void PageTable::invalidate(int32_t head, int32_t first_page) noexcept {
  Head& of = heads_[static_cast<size_t>(head)];
  of.valid = std::min(of.valid, first_page);
  of.count = -1;
}

uint64_t PageTable::bytes() const noexcept {
  return sizeof(PageTable) + heads_.capacity() * sizeof(Head) + memory_.bytes() + reserve_memory_.bytes() +
         positions_.bytes();
}

uint64_t PageTable::bytes_of(int32_t kv_heads, int32_t pages, int32_t ring) {
  const auto heads = static_cast<size_t>(kv_heads);
  const int32_t capacity = capacity_for(pages);
  return sizeof(PageTable) + heads * sizeof(Head) + table_bytes(heads, capacity) +
         (ring > 0 ? reserve_bytes(heads, pages, ring) : 0);
}

void PageTable::reserve(int32_t pages) {
  if (pages <= capacity_) return;
  require_movable();
  const size_t heads = heads_.size();
  const int32_t capacity = capacity_for(pages);
  const cudaStream_t stream = device_.stream();
  DeviceBlock memory(device_, allocator_, table_bytes(heads, capacity));
  int32_t used = 0;  // entries that were written
  for (const Head& head : heads_) used = std::max(used, head.valid);
  const auto copy_rows = [&](void* to, const void* from, size_t entry_bytes) {
    if (used == 0) return;
    const auto bytes = [entry_bytes](int32_t entries) { return static_cast<size_t>(entries) * entry_bytes; };
    check(cudaMemcpy2DAsync(to, bytes(capacity), from, bytes(capacity_), bytes(used), heads, cudaMemcpyDeviceToDevice,
                            stream),
          "cudaMemcpy2DAsync");
  };
  if (memory_.memory() == nullptr) {
    check(cudaMemsetAsync(memory.memory(), 0, head_state_bytes(heads), stream), "cudaMemsetAsync");
  } else {
    check(cudaMemcpyAsync(memory.memory(), states(), head_state_bytes(heads), cudaMemcpyDeviceToDevice, stream),
          "cudaMemcpyAsync");
    copy_rows(memory.memory() + head_state_bytes(heads), entries(), sizeof(DevicePage));
  }
  if (positions() != nullptr) {
    DeviceBlock larger(device_, allocator_, position_bytes(heads, capacity));
    copy_rows(larger.memory(), positions(), kSlots * sizeof(int32_t));
    positions_ = std::move(larger);
  }
  memory_ = std::move(memory);
  capacity_ = capacity;
}

void PageTable::entered(int32_t head, int32_t index, bool ends_list) noexcept {
  Head& of = heads_[static_cast<size_t>(head)];
  if (index <= of.valid) of.valid = std::max(of.valid, index + 1);
  if (ends_list) of.count = index + 1;
}

void PageTable::catch_up(const Page* const* const* lists, const int32_t* counts) {
  const auto heads = static_cast<int32_t>(heads_.size());
  reserve(std::max(*std::max_element(counts, counts + heads), 1));  // empty lists have states, too
  bool states_agree = true;
  for (int32_t head = 0; head < heads; ++head) {
    states_agree = states_agree && heads_[static_cast<size_t>(head)].count == counts[head];
  }
  // Lists that are alike, as they are without eviction, go in one copy.
  for (int32_t head = 0; head < heads;) {
    const int32_t valid = heads_[static_cast<size_t>(head)].valid;
    int32_t end = head + 1;
    while (end < heads && heads_[static_cast<size_t>(end)].valid == valid && counts[end] == counts[head]) ++end;
    if (valid < counts[head]) upload({head, end}, lists, counts[head]);
    head = end;
  }
  if (!states_agree) upload_states(counts);
}

void PageTable::upload_states(const int32_t* counts) {
  const size_t bytes = heads_.size() * sizeof(HeadState);
  auto* staged = static_cast<HeadState*>(device_.staging().take(bytes));
  for (size_t head = 0; head < heads_.size(); ++head) {
    staged[head] = {counts[head], state_.length, state_.next_position, state_.room};
    heads_[head].count = counts[head];
  }
  check(cudaMemcpyAsync(states(), staged, bytes, cudaMemcpyHostToDevice, device_.stream()), "cudaMemcpyAsync");
  device_.staging().done(device_.stream());
}

void PageTable::make_room(int32_t pages, int32_t ring) {
  const Call call(device_, Call::Reports::kNothing);
  recorded_ = false;  // earlier graphs are replayed no more
  reserve(pages);
  reserve_capacity_ = pages;
  const size_t bytes = reserve_bytes(heads_.size(), pages, ring);
  if (bytes > reserve_memory_.bytes()) {
    published_ = false;
    reserve_memory_ = DeviceBlock(device_, allocator_, bytes);
  }
}

void PageTable::publish(const Page* const* const* pages, const int32_t* counts, const LayerState& state,
                        const ReservedPages* reserve) {
  const Call call(device_, Call::Reports::kNothing);
  published_ = false;
  catch_up(pages, counts);
  set_state(state);
  upload_states(counts);
  if (reserve == nullptr) return;
  const auto heads = static_cast<int32_t>(heads_.size());
  auto* finals = reinterpret_cast<uint64_t*>(reserve_memory_.memory());
  auto* open = finals + heads_.size() * static_cast<size_t>(reserve_capacity_);
  auto* final_counts = reinterpret_cast<int32_t*>(open + heads_.size() * static_cast<size_t>(reserve->ring));
  reserve_ = {finals,          open,          final_counts,    reserve_capacity_,
              reserve->ring,   reserve->sink, reserve->recent, static_cast<int32_t>(format_code(*reserve->sealed).bits),
              reserve->window, reserve->step};
  if (reserve->window != 0) upload_words(reserve->final_counts, final_counts);
  takes(*reserve->sealed);
  upload_finals(*reserve, std::max(*std::min_element(counts, counts + heads) - reserve->recent, 0), finals);
  upload_open(pages, counts, *reserve, open);
  published_ = true;
}

/// Uploads a number for each head.
void PageTable::upload_words(const int32_t* numbers, int32_t* to) {
  const size_t bytes = heads_.size() * sizeof(int32_t);
  void* staged = device_.staging().take(bytes);
  std::memcpy(staged, numbers, bytes);
  check(cudaMemcpyAsync(to, staged, bytes, cudaMemcpyHostToDevice, device_.stream()), "cudaMemcpyAsync");
  device_.staging().done(device_.stream());
}

/// Uploads final pages from `first` on, the first that a list may still need.
void PageTable::upload_finals(const ReservedPages& reserve, int32_t first, uint64_t* finals) {
  const int32_t end = *std::max_element(reserve.final_counts, reserve.final_counts + heads_.size());
  if (end <= first) return;
  const auto width = static_cast<size_t>(end - first);
  auto* staged = static_cast<uint64_t*>(device_.staging().take(heads_.size() * width * sizeof(uint64_t)));
  for (size_t head = 0; head < heads_.size(); ++head) {
    for (int32_t i = first; i < end; ++i) {
      const Page* page = i < reserve.final_counts[head] ? reserve.finals[head][i] : nullptr;
      staged[head * width + static_cast<size_t>(i - first)] = address_of(page);
    }
  }
  check(cudaMemcpy2DAsync(finals + first, static_cast<size_t>(reserve_capacity_) * sizeof(uint64_t), staged,
                          width * sizeof(uint64_t), width * sizeof(uint64_t), heads_.size(), cudaMemcpyHostToDevice,
                          device_.stream()),
        "cudaMemcpy2DAsync");
  device_.staging().done(device_.stream());
}

/// Uploads the rings: pages that wait in them, and open pages of lists, which come back when they are sealed.
void PageTable::upload_open(const Page* const* const* pages, const int32_t* counts, const ReservedPages& reserve,
                            uint64_t* open) {
  const auto ring = static_cast<size_t>(reserve.ring);
  const size_t bytes = heads_.size() * ring * sizeof(uint64_t);
  auto* staged = static_cast<uint64_t*>(device_.staging().take(bytes));
  for (size_t head = 0; head < heads_.size(); ++head) {
    uint64_t* of_head = staged + head * ring;
    for (int32_t i = 0; i < reserve.ring; ++i) of_head[i] = address_of(reserve.open[head][i]);
    if (reserve.sealed->is_float16()) continue;
    for (int32_t i = std::max(counts[head] - reserve.recent, reserve.sink); i < counts[head]; ++i) {
      const Page& page = *pages[head][i];
      uint64_t& slot = of_head[i % reserve.ring];
      if (page.is_float16() && slot == 0) slot = address_of(&page);
    }
  }
  check(cudaMemcpyAsync(open, staged, bytes, cudaMemcpyHostToDevice, device_.stream()), "cudaMemcpyAsync");
  device_.staging().done(device_.stream());
}

void PageTable::agreed(const int32_t* counts) noexcept {
  for (size_t head = 0; head < heads_.size(); ++head) heads_[head] = {counts[head], counts[head]};
}

void PageTable::record_append(const TokenBatch& tokens, AppendKind kind) {
  cuda::record_append(device_, tokens, kind, *this);
}

void PageTable::require_recordable() {
  if (commvq_ != nullptr) {
    fail(KVQ_E_UNSUPPORTED,
         "a CUDA graph cannot use pages with CommVQ codes: append and attend outside of graphs, or store the layer in "
         "another format");
  }
  if (published_) return;
  fail(KVQ_E_STATE,
       "the preallocated pages are not on the device yet: call kvq_sequence_reserve before capturing a CUDA graph");
}

void PageTable::require_published() {
  require_recordable();
  recorded_ = true;
}

void PageTable::require_movable() const {
  if (!recorded_) return;
  fail(
      KVQ_E_STATE,
      "the memory that a CUDA graph uses for the sequence is too small: call kvq_sequence_reserve, then capture again");
}

/// Uploads the entries that some heads lack, all from the same one on, of lists of `count` pages.
void PageTable::upload(HeadRange heads, const Page* const* const* lists, int32_t count) {
  const int32_t first = heads_[static_cast<size_t>(heads.begin)].valid;
  const auto n = static_cast<size_t>(count - first);
  const auto rows = static_cast<size_t>(heads.end - heads.begin);
  const auto has_gaps = [&](const Page* const* list) {
    return std::any_of(list + first, list + count, [](const Page* page) { return page->has_gaps(); });
  };
  const bool gaps = std::any_of(lists + heads.begin, lists + heads.end, has_gaps);
  if (gaps) make_positions();
  const size_t entry_bytes = rows * n * sizeof(DevicePage);
  const size_t gap_bytes = gaps ? rows * n * kSlots * sizeof(int32_t) : 0;
  auto* staged = static_cast<DevicePage*>(device_.staging().take(entry_bytes + gap_bytes));
  auto* staged_positions = reinterpret_cast<int32_t*>(staged + rows * n);
  for (size_t row = 0; row < rows; ++row) {
    const Page* const* list = lists[static_cast<size_t>(heads.begin) + row] + first;
    for (size_t i = 0; i < n; ++i) {
      const Page& page = *list[i];
      takes(*page.format());
      staged[row * n + i] = {reinterpret_cast<uint64_t>(page.data), page.first_position,
                             DevicePage::state_of(format_code(*page.format()).bits, page.count, page.has_gaps())};
      for (int32_t slot = 0; gaps && slot < kSlots; ++slot) {
        staged_positions[(row * n + i) * kSlots + static_cast<size_t>(slot)] =
            slot < page.count ? page.position(slot) : 0;
      }
    }
  }
  const auto capacity = static_cast<size_t>(capacity_);
  const size_t at = static_cast<size_t>(heads.begin) * capacity + static_cast<size_t>(first);
  const cudaStream_t stream = device_.stream();
  const auto copy = [&](void* to, const void* from, size_t bytes) {
    check(cudaMemcpy2DAsync(to, capacity * bytes, from, n * bytes, n * bytes, rows, cudaMemcpyHostToDevice, stream),
          "cudaMemcpy2DAsync");
  };
  copy(entries() + at, staged, sizeof(DevicePage));
  if (gaps) copy(positions() + at * kSlots, staged_positions, kSlots * sizeof(int32_t));
  device_.staging().done(stream);
  for (int32_t head = heads.begin; head < heads.end; ++head) heads_[static_cast<size_t>(head)].valid = count;
}

void PageTable::takes(const PageFormat& format) noexcept {
  const FormatCode code = format_code(format);
  any_gains_ = any_gains_ || code.keys().has_gains() || code.values().has_gains();
  any_centres_ = any_centres_ || code.centred();
  if (has_codes(format)) commvq_ = &format;
  const bool both = format.keys.code.is_commvq() && format.values.code.is_commvq();
  any_others_ = any_others_ || (!both && !format.is_float16());
}

void PageTable::make_positions() {
  if (positions() != nullptr) return;
  require_movable();
  positions_ = DeviceBlock(device_, allocator_, position_bytes(heads_.size(), capacity_));
}

}  // namespace kvq::cuda
