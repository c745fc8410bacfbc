#include "backend/cpu/attend_item.h"

#include <algorithm>
#include <array>
#include <limits>

namespace kvq::cpu {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

/// Slots [begin, end) of a page.
struct SlotRange {
  int32_t begin;
  int32_t end;
};

/// The slots of a page at positions in (position − window, position]; positions ascend within a page.
SlotRange visible_slots(const Page& page, int32_t position, int32_t window) {
  const int64_t after = window > 0 ? static_cast<int64_t>(position) - window : -1;
  SlotRange range{0, page.count};
  if (page.last_position() > position) {
    while (range.end > 0 && page.position(range.end - 1) > position) --range.end;
  }
  if (page.first_position <= after) {
    while (range.begin < range.end && page.position(range.begin) <= after) ++range.begin;
  }
  return range;
}

/// One item at work: tiles of pages, blocks of rows.
class ItemRun {
 public:
  ItemRun(const AttendBatch& batch, const AttendItem& item, const ItemQueries& queries, const KernelTable& kernels,
          float* partial)
      : batch_(batch),
        item_(item),
        queries_(queries),
        kernels_(kernels),
        layout_(batch),
        states_(layout_.states(partial)),
        plain_(layout_.plain_output(partial, item.row_count)),
        rotated_(layout_.rotated_output(partial, item.row_count)),
        sums_(layout_.bit_sums(partial, item.row_count)),
        coded_(batch, kernels) {
    std::fill_n(partial, layout_.item_floats(item.row_count), 0.0F);
    for (int32_t row = 0; row < item.row_count; ++row) {
      states_[row].maximum = kMinusInfinity;
      row_positions_[static_cast<size_t>(row)] = queries.positions[(queries.first_row + row) / queries.group];
    }
    const AttendSequence& sequence = batch.sequences[static_cast<size_t>(item.sequence)];
    lists_ = sequence.pages;
    pages_ = sequence.pages[item.head] + item.page_begin;
    list_end_ = sequence.pages[item.head] + sequence.page_counts[item.head];
  }

  void run() {
    prefetch_first_tile();
    for (int32_t tile = 0; tile < item_.page_count; tile += kTilePages) {
      const int32_t pages = std::min(kTilePages, item_.page_count - tile);
      for (int32_t row = 0; row < item_.row_count; row += kBlockRows) {
        run_block(pages_ + tile, pages, row, std::min(kBlockRows, item_.row_count - row));
      }
    }
  }

 private:
  int32_t position(int32_t row) const { return row_positions_[static_cast<size_t>(row)]; }

  /// Scores, softmax and weighted values of one tile for up to four rows.
  void run_block(const Page* const* pages, int32_t count, int32_t row, int32_t rows) {
    int32_t begin = 0;  // pages before this one are behind every row's window
    while (begin < count && !any_visible(*pages[begin], row, rows)) ++begin;
    int32_t end = count;
    while (end > begin && !any_visible(*pages[end - 1], row, rows)) --end;
    if (begin == end) return;
    pages += begin;
    count = end - begin;
    for (int32_t page = 0; page < count; ++page) score_page(pages + page, page, row, rows);
    for (int32_t i = 0; i < rows; ++i) normalise(row + i, i, count * kPageSlots);
    for (int32_t page = 0; page < count;) page += add_values(pages + page, page, count - page, row, rows);
  }

  bool any_visible(const Page& page, int32_t row, int32_t rows) const {
    for (int32_t i = row; i < row + rows; ++i) {
      const int64_t after = batch_.window > 0 ? static_cast<int64_t>(position(i)) - batch_.window : -1;
      if (page.first_position <= position(i) && page.last_position() > after) return true;
    }
    return false;
  }

  /// The page to prefetch while this one is read. Its record was asked for a tile earlier.
  const Page& later(const Page* const* page) const {
    const bool exists = list_end_ - page > kTilePages;
    return exists && page[kTilePages]->format() == (*page)->format() ? *page[kTilePages] : **page;
  }

  /// Ask for the record `ahead` pages after one of the list, if the list is that long.
  void prefetch_record(const Page* const* page, ptrdiff_t ahead) const {
    if (list_end_ - page > ahead) prefetch(page[ahead]);
  }

  /// The first tile has no earlier one to be prefetched from.
  void prefetch_first_tile() const {
    const ptrdiff_t pages = std::min(item_.page_count, kTilePages);
    for (ptrdiff_t i = 0; i < pages + kTilePages; ++i) prefetch_record(pages_, i);
    for (ptrdiff_t i = 0; i < pages; ++i) {
      const size_t bytes = pages_[i]->format()->bytes();
      for (size_t offset = 0; offset < bytes; offset += kDataAlignment) prefetch(pages_[i]->data + offset);
    }
  }

  void score_page(const Page* const* at, int32_t index, int32_t row, int32_t rows) {
    const Page& page = **at;
    prefetch_record(at, 2 * kTilePages);
    const SideFormat& format = page.format()->keys;
    const float* q = (format.hadamard ? queries_.rotated : queries_.plain) + row * batch_.head_dim;
    float* scores = scores_.data() + index * kPageSlots;
    if (format.codec == Codec::kCommvq) {
      coded_.score(place(at), rows, q, scores);
    } else {
      kernels_.keys(format)({batch_.head_dim, format.group}, {page.data, later(at).data}, rows, q, scores);
    }
    for (int32_t i = 0; i < rows; ++i) {
      const SlotRange range = visible_slots(page, position(row + i), batch_.window);
      float* of_row = scores + i * kTileSlots;
      std::fill(of_row, of_row + range.begin, kMinusInfinity);
      std::fill(of_row + range.end, of_row + kPageSlots, kMinusInfinity);
    }
  }

  void normalise(int32_t row, int32_t block_row, int32_t slots) {
    const float factor =
        kernels_.softmax(scores_.data() + block_row * kTileSlots, slots, batch_.softcap, &states_[row]);
    if (factor == 1.0F) return;
    scale(plain_, layout_.width, row, factor);
    if (layout_.rotated) scale(rotated_, layout_.width, row, factor);
    if (layout_.sums.bits > 0) scale(sums_, layout_.sums.width(), row, factor);
  }

  void scale(float* rows, size_t width, int32_t row, float factor) const {
    float* of_row = rows + static_cast<size_t>(row) * width;
    kernels_.blend(of_row, factor, of_row, 0.0F, static_cast<int32_t>(width));
  }

  PagePlace place(const Page* const* at) const { return {lists_, item_.head, at - lists_[item_.head]}; }

  /// Values of the run of equal formats that starts at `pages`; returns its length.
  int32_t add_values(const Page* const* pages, int32_t first, int32_t count, int32_t row, int32_t rows) {
    const SideFormat& format = pages[0]->format()->values;
    if (format.codec == Codec::kCommvq) {
      coded_.add_values(place(pages), rows, scores_.data() + first * kPageSlots, layout_.sums,
                        sums_ + static_cast<size_t>(row) * layout_.sums.width());
      return 1;
    }
    const size_t offset = pages[0]->format()->key_bytes();
    std::array<SideData, kTilePages> sides;
    int32_t length = 0;
    for (; length < count && pages[length]->format() == pages[0]->format(); ++length) {
      sides[static_cast<size_t>(length)] = {pages[length]->data + offset, later(pages + length).data + offset};
    }
    float* output = (format.hadamard ? rotated_ : plain_) + row * static_cast<int32_t>(layout_.width);
    kernels_.values(format)({batch_.head_dim, format.group}, sides.data(), length, rows,
                            scores_.data() + first * kPageSlots, output);
    return length;
  }

  const AttendBatch& batch_;
  const AttendItem& item_;
  const ItemQueries& queries_;
  const KernelTable& kernels_;
  PartialLayout layout_;
  SoftmaxState* states_;
  float* plain_;
  float* rotated_;
  float* sums_;
  CodedAttention coded_;
  std::array<int32_t, kItemRows> row_positions_;
  const Page* const* const* lists_;
  const Page* const* pages_;
  const Page* const* list_end_;  // of the whole list: prefetching runs ahead into the next item
  alignas(kDataAlignment) std::array<float, static_cast<size_t>(kBlockRows* kTileSlots)> scores_{};
};

}  // namespace

void run_item(const AttendBatch& batch, const AttendItem& item, const ItemQueries& queries, const KernelTable& kernels,
              float* partial) {
  ItemRun(batch, item, queries, kernels, partial).run();
}

}  // namespace kvq::cpu
