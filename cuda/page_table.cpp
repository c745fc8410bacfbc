#include "page_table.h"

#include "cuda_backend.h"
#include "cuda_error.h"
#include "page_order.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace kvq::cuda {
namespace {

size_t counts_bytes(size_t heads) { return (heads * sizeof(int32_t) + 255) / 256 * 256; }

}  // namespace

PageTable::PageTable(CudaBackend& backend, Allocator& allocator, int32_t kv_heads)
    : backend_(backend),
      allocator_(allocator),
      heads_(static_cast<size_t>(kv_heads), Head{}, StlAllocator<Head>(allocator)) {}

PageTable::~PageTable() {
  const size_t positions_bytes = heads_.size() * static_cast<size_t>(capacity_) * kSlots * sizeof(int32_t);
  backend_.release_device(allocator_, memory_, memory_bytes_);
  backend_.release_device(allocator_, positions_, positions_bytes);
}

void PageTable::invalidate(int32_t head, int32_t first_page) noexcept {
  Head& of = heads_[static_cast<size_t>(head)];
  of.valid = std::min(of.valid, first_page);
  of.count = -1;
}

uint64_t PageTable::bytes() const noexcept {
  return sizeof(PageTable) + heads_.capacity() * sizeof(Head) + memory_bytes_ +
         (positions_ != nullptr ? heads_.size() * static_cast<size_t>(capacity_) * kSlots * sizeof(int32_t) : 0);
}

void PageTable::reserve(int32_t pages) {
  if (pages <= capacity_) return;
  const size_t heads = heads_.size();
  const int32_t capacity = std::max(pages + pages / 4, 16);
  const size_t bytes = counts_bytes(heads) + heads * static_cast<size_t>(capacity) * sizeof(DevicePage);
  void* memory = backend_.allocate_device(allocator_, bytes);
  auto* counts = static_cast<int32_t*>(memory);
  auto* table = reinterpret_cast<DevicePage*>(static_cast<std::byte*>(memory) + counts_bytes(heads));
  int32_t* positions = nullptr;
  const auto row = [](int32_t n) { return static_cast<size_t>(n) * kSlots * sizeof(int32_t); };
  try {
    const cudaStream_t stream = backend_.stream();
    if (memory_ == nullptr) {
      check(cudaMemsetAsync(counts, 0, counts_bytes(heads), stream), "cudaMemsetAsync");
    } else {
      check(cudaMemcpyAsync(counts, counts_, counts_bytes(heads), cudaMemcpyDeviceToDevice, stream), "cudaMemcpyAsync");
      const size_t used = static_cast<size_t>(capacity_) * sizeof(DevicePage);
      check(cudaMemcpy2DAsync(table, static_cast<size_t>(capacity) * sizeof(DevicePage), pages_, used, used, heads,
                              cudaMemcpyDeviceToDevice, stream),
            "cudaMemcpy2DAsync");
    }
    if (positions_ != nullptr) {
      positions = static_cast<int32_t*>(backend_.allocate_device(allocator_, heads * row(capacity)));
      check(cudaMemcpy2DAsync(positions, row(capacity), positions_, row(capacity_), row(capacity_), heads,
                              cudaMemcpyDeviceToDevice, stream),
            "cudaMemcpy2DAsync");
    }
  } catch (...) {
    backend_.release_device(allocator_, memory, bytes);
    if (positions != nullptr) backend_.release_device(allocator_, positions, heads * row(capacity));
    throw;
  }
  backend_.release_device(allocator_, std::exchange(memory_, memory), std::exchange(memory_bytes_, bytes));
  backend_.release_device(allocator_, std::exchange(positions_, positions), heads * row(capacity_));
  counts_ = counts;
  pages_ = table;
  capacity_ = capacity;
}

void PageTable::entered(int32_t head, int32_t index, bool ends_list) noexcept {
  Head& of = heads_[static_cast<size_t>(head)];
  if (index <= of.valid) of.valid = std::max(of.valid, index + 1);
  if (ends_list) of.count = index + 1;
}

void PageTable::catch_up(const Page* const* const* lists, const int32_t* counts) {
  const auto heads = static_cast<int32_t>(heads_.size());
  reserve(std::max(*std::max_element(counts, counts + heads), 1));  // an empty list has a count, too
  for (int32_t head = 0; head < heads; ++head) {
    Head& of = heads_[static_cast<size_t>(head)];
    if (of.valid < counts[head]) upload(head, lists[head], counts[head]);
    if (of.count == counts[head]) continue;
    auto* staged = static_cast<int32_t*>(backend_.staging().take(sizeof(int32_t)));
    *staged = counts[head];
    check(cudaMemcpyAsync(counts_ + head, staged, sizeof(int32_t), cudaMemcpyHostToDevice, backend_.stream()),
          "cudaMemcpyAsync");
    backend_.staging().done(backend_.stream());
    of.count = counts[head];
  }
}

void PageTable::upload(int32_t head, const Page* const* list, int32_t count) {
  Head& of = heads_[static_cast<size_t>(head)];
  const int32_t first = of.valid;
  const auto n = static_cast<size_t>(count - first);
  const bool gaps = std::any_of(list + first, list + count, [](const Page* page) { return page->has_gaps(); });
  if (gaps) make_positions();
  const size_t position_bytes = gaps ? n * kSlots * sizeof(int32_t) : 0;
  auto* staged = static_cast<DevicePage*>(backend_.staging().take(n * sizeof(DevicePage) + position_bytes));
  auto* positions = reinterpret_cast<int32_t*>(staged + n);
  for (size_t i = 0; i < n; ++i) {
    const Page& page = *list[static_cast<size_t>(first) + i];
    staged[i] = {reinterpret_cast<uint64_t>(page.data), page.first_position,
                 static_cast<uint16_t>(format_code(*page.format).bits), static_cast<uint8_t>(page.count),
                 static_cast<uint8_t>(page.has_gaps() ? 1 : 0)};
    for (int32_t slot = 0; gaps && slot < kSlots; ++slot) {
      positions[i * kSlots + static_cast<size_t>(slot)] = slot < page.count ? page.position(slot) : 0;
    }
  }
  const size_t at = static_cast<size_t>(head) * static_cast<size_t>(capacity_) + static_cast<size_t>(first);
  const cudaStream_t stream = backend_.stream();
  check(cudaMemcpyAsync(pages_ + at, staged, n * sizeof(DevicePage), cudaMemcpyHostToDevice, stream),
        "cudaMemcpyAsync");
  if (gaps) {
    check(cudaMemcpyAsync(positions_ + at * kSlots, positions, position_bytes, cudaMemcpyHostToDevice, stream),
          "cudaMemcpyAsync");
  }
  backend_.staging().done(stream);
  of.valid = count;
}

void PageTable::make_positions() {
  if (positions_ != nullptr) return;
  const size_t bytes = heads_.size() * static_cast<size_t>(capacity_) * kSlots * sizeof(int32_t);
  positions_ = static_cast<int32_t*>(backend_.allocate_device(allocator_, bytes));
}

}  // namespace kvq::cuda
