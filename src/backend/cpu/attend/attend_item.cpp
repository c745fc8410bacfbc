#include "backend/cpu/attend/attend_item.h"

#include "core/window.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

namespace kvq::cpu {
namespace {

/// Slots [begin, end) of a page.
struct SlotRange {
  int32_t begin;
  int32_t end;
};

/// Slots of a page that a query at `position` sees; positions ascend within a page.
SlotRange visible_slots(const Page& page, int32_t position, int32_t window) {
  const int64_t after = newest_hidden(position, window);
  SlotRange range{0, page.count};
  if (page.last_position() > position) {
    while (range.end > 0 && page.position(range.end - 1) > position) --range.end;
  }
  if (page.first_position <= after) {
    while (range.begin < range.end && page.position(range.begin) <= after) ++range.begin;
  }
  return range;
}

/// Bits [begin, end) of 32.
uint32_t bits_of(SlotRange range) {
  const auto below = [](int32_t n) { return static_cast<uint32_t>((uint64_t{1} << static_cast<uint32_t>(n)) - 1); };
  return below(range.end) & ~below(range.begin);
}

/// Bits [at, at + 32) of `bits` bits from the first of `words` on; those outside are 0.
uint32_t bits_at(const uint32_t* words, int32_t bits, int64_t at) {
  const int64_t first = at >= 0 ? at / 32 : -((31 - at) / 32);
  const auto shift = static_cast<uint32_t>(at - first * 32);
  const auto word = [words, bits](int64_t index) {
    if (index < 0 || index * 32 >= bits) return uint32_t{0};
    return words[index] & bits_of({0, static_cast<int32_t>(std::min<int64_t>(bits - index * 32, 32))});
  };
  return shift == 0 ? word(first) : word(first) >> shift | word(first + 1) << (32 - shift);
}

/// A page of a latent's values in FP16: no format takes more.
size_t latent_bytes(const HeadShape& head) { return side_plane(Side::kValues, 16, head.values).bytes(); }

/// Execution of one item: tiles of pages, blocks of rows.
class ItemRun {
 public:
  ItemRun(const AttendBatch& batch, const AttendItem& item, const ItemQueries& queries, const KernelTable& kernels,
          float* partial, std::byte* work)
      : batch_(batch),
        item_(item),
        queries_(queries),
        kernels_(kernels),
        layout_(batch, kernels),
        states_(layout_.states(partial)),
        plain_(layout_.plain_output(partial, item.row_count)),
        rotated_(layout_.rotated_output(partial, item.row_count)),
        sums_(layout_.sums_of(partial, item.row_count)),
        context_item_{.batch = batch,
                      .kernels = kernels,
                      .lists = batch.sequences[static_cast<size_t>(item.sequence)].pages,
                      .head = item.head,
                      .end = batch.sequences[static_cast<size_t>(item.sequence)].page_counts[item.head],
                      .queries = queries.keys.plain,
                      .rotated_queries = queries.keys.rotated,
                      .rounded_queries = queries.keys.rounded,
                      .rows = item.row_count,
                      .sums = sums_,
                      .plain = plain_,
                      .rotated = rotated_},
        latents_(work) {
    if (const ContextCodec* codec = kernels.codec(batch.context)) {
      context_ = codec->attend(context_item_, item.path, work);
    }
    for (int32_t row = 0; row < item.row_count; ++row) {
      row_positions_[static_cast<size_t>(row)] = queries.positions[(queries.first_row + row) / queries.group];
    }
    const AttendSequence& sequence = batch.sequences[static_cast<size_t>(item.sequence)];
    pages_ = sequence.pages[item.head] + item.page_begin;
    list_end_ = sequence.pages[item.head] + sequence.page_counts[item.head];
    if (batch.mask != nullptr) {
      first_masked_ = sequence.first_masked;
      mask_ = batch.mask + static_cast<size_t>(sequence.query_begin) * batch.mask_words();
    }
  }

  void attend() {
    // Masks need the places of pages.
    const bool may_sort = context_ == nullptr && mask_ == nullptr;
    if (batch_.routed && may_sort && item_.page_count <= kSplitPages) group_by_format();
    clear();
    for_each_block([this](const Page* const* pages, int32_t count, int32_t row, int32_t rows) {
      for (int32_t i = 0; i < rows; ++i) normalise(row + i, i, count * kPageSlots);
      for (int32_t page = 0; page < count;) page += add_values(pages + page, page, count - page, row, rows);
    });
  }

  void measure() {
    clear();
    for_each_block([this](const Page* const* /*pages*/, int32_t count, int32_t row, int32_t rows) {
      for (int32_t i = 0; i < rows; ++i) softmax(i, count * kPageSlots, states_[row + i]);
    });
  }

  void weigh(const SlotWeights& weights) {
    for_each_block([this, &weights](const Page* const* pages, int32_t count, int32_t row, int32_t rows) {
      for (int32_t i = 0; i < rows; ++i) {
        SoftmaxState state = states_[row + i];  // the whole row's state: probabilities are relative to its maximum
        softmax(i, count * kPageSlots, state);
        add_weights(weights, pages, count, row + i, scores_.data() + i * kTileSlots);
      }
    });
  }

 private:
  void clear() {
    std::fill_n(reinterpret_cast<float*>(states_), layout_.item_floats(item_.row_count), 0.0F);
    for (int32_t row = 0; row < item_.row_count; ++row) states_[row].maximum = kMinusInfinity;
  }

  /// Sorts pages by format: pages of one format are neighbours in memory, so prefetching runs along them. The softmax
  /// does not depend on the order.
  void group_by_format() {
    std::array<const PageFormat*, kSplitPages> formats;  // null once the page is placed
    for (int32_t i = 0; i < item_.page_count; ++i) formats[static_cast<size_t>(i)] = pages_[i]->format();
    auto next = grouped_.begin();
    for (int32_t first = 0; first < item_.page_count; ++first) {
      const PageFormat* format = formats[static_cast<size_t>(first)];
      for (int32_t i = first; format != nullptr && i < item_.page_count; ++i) {
        if (formats[static_cast<size_t>(i)] != format) continue;
        *next++ = pages_[i];
        formats[static_cast<size_t>(i)] = nullptr;
      }
    }
    pages_ = grouped_.data();
    list_end_ = pages_ + item_.page_count;
  }

  /// Calls use(pages, count, row, rows) with the scores of a tile's pages for up to four rows in `scores_`.
  template <typename Use>
  void for_each_block(const Use& use) {
    prefetch_first_tile();
    for (int32_t tile = 0; tile < item_.page_count; tile += kTilePages) {
      const int32_t pages = std::min(kTilePages, item_.page_count - tile);
      prepare(pages_ + tile, pages);
      for (int32_t row = 0; row < item_.row_count; row += kBlockRows) {
        const Page* const* seen = pages_ + tile;
        int32_t count = pages;
        const int32_t rows = std::min(kBlockRows, item_.row_count - row);
        narrow(seen, count, row, rows);
        if (count == 0) continue;
        for (int32_t page = 0; page < count;) page += score_pages(seen + page, page, count - page, row, rows);
        use(seen, count, row, rows);
      }
    }
  }

  int32_t position(int32_t row) const { return row_positions_[static_cast<size_t>(row)]; }

  /// Drops pages at both ends that no row sees.
  void narrow(const Page* const*& pages, int32_t& count, int32_t row, int32_t rows) const {
    for (; count > 0 && !any_visible(pages, row, rows); --count) ++pages;
    while (count > 0 && !any_visible(pages + count - 1, row, rows)) --count;
  }

  /// Work done once for all rows of the item.
  void prepare(const Page* const* pages, int32_t count) {
    if (context_ == nullptr && !batch_.head.is_latent) return;
    tile_ = pages;
    narrow(pages, count, 0, item_.row_count);
    if (context_ != nullptr) return context_->prepare(place(pages), count);
    for (int32_t i = 0; i < count; ++i) write_as_keys(pages + i);
  }

  /// Values of a page of the tile as keys.
  std::byte* latent(const Page* const* page) const {
    return latents_ + static_cast<size_t>(page - tile_) * latent_bytes(batch_.head);
  }

  SideShape value_shape(const SideFormat& format) const { return {batch_.head.values, format.group, false}; }

  void write_as_keys(const Page* const* page) const {
    const PageFormat& format = *(*page)->format();
    kernels_.side(format.values)
        .as_keys(value_shape(format.values), (*page)->data + format.key_bytes(), latent(page),
                 latents_ + kTilePages * latent_bytes(batch_.head));
  }

  /// Adds what the first channels of keys contribute to the scores of a page.
  void add_latent(const Page* const* page, int32_t row, int32_t rows, float* scores) {
    const SideFormat& format = (*page)->format()->values;
    const SideData keys{latent(page), latent(page)};
    kernels_.plain(kernels_.side(format).keys_code)
        .keys(value_shape(format), &keys, 1, rows, query_rows(queries_.latent, format, row), latent_scores_.data());
    for (int32_t i = 0; i < rows; ++i) {
      float* of_row = scores + i * kTileSlots;
      const float* more = latent_scores_.data() + i * kTileSlots;
      const float bias = queries_.biases[row + i];
      for (int32_t slot = 0; slot < kPageSlots; ++slot) of_row[slot] += more[slot] + bias;
    }
  }

  /// Whether the mask covers slots of a page.
  bool is_masked(const Page* const* at) const {
    return mask_ != nullptr && (place(at) + 1) * kPageSlots > first_masked_;
  }

  /// Slots of a masked page that a row sees, a bit each.
  uint32_t masked_slots(const Page* const* at, int32_t row) const {
    const Page& page = **at;
    const int64_t first = place(at) * kPageSlots;
    const int32_t query = (queries_.first_row + row) / queries_.group;
    const uint32_t* mask = mask_ + static_cast<size_t>(query) * batch_.mask_words();
    uint32_t slots = bits_at(mask, batch_.mask_slots, first - first_masked_) & bits_of({0, page.count});
    if (first >= first_masked_ && batch_.window == 0) return slots;
    const int32_t position = this->position(row);
    const int64_t after = newest_hidden(position, batch_.window);
    for (int32_t slot = 0; slot < page.count; ++slot) {
      const bool is_older = first + slot < first_masked_;
      const bool sees = page.position(slot) > after && (!is_older || page.position(slot) <= position);
      if (is_older && sees) slots |= 1U << static_cast<uint32_t>(slot);
      if (!sees) slots &= ~(1U << static_cast<uint32_t>(slot));
    }
    return slots;
  }

  bool any_visible(const Page* const* at, int32_t row, int32_t rows) const {
    if (is_masked(at)) {
      for (int32_t i = row; i < row + rows; ++i) {
        if (masked_slots(at, i) != 0) return true;
      }
      return false;
    }
    const Page& page = **at;
    for (int32_t i = row; i < row + rows; ++i) {
      const int64_t after = newest_hidden(position(i), batch_.window);
      if (page.first_position <= position(i) && page.last_position() > after) return true;
    }
    return false;
  }

  /// Fast path for almost all pages: every row sees all 32 tokens.
  bool all_visible(const Page& page, int32_t row, int32_t rows) const {
    const int32_t last = page.last_position();
    bool all = page.count == kPageSlots;
    for (int32_t i = row; i < row + rows; ++i) {
      all = all && last <= position(i);
      all = all && page.first_position > newest_hidden(position(i), batch_.window);
    }
    return all;
  }

  /// Page to prefetch while this one is read; its record was prefetched one tile earlier.
  const Page& later(const Page* const* page) const {
    const bool exists = list_end_ - page > kTilePages;
    return exists && page[kTilePages]->format() == (*page)->format() ? *page[kTilePages] : **page;
  }

  /// Prefetches the record `ahead` pages further, within the list.
  void prefetch_record(const Page* const* page, ptrdiff_t ahead) const {
    if (list_end_ - page > ahead) prefetch(page[ahead]);
  }

  /// No earlier tile prefetched the first one.
  void prefetch_first_tile() const {
    const ptrdiff_t pages = std::min(item_.page_count, kTilePages);
    for (ptrdiff_t i = 0; i < pages + kTilePages; ++i) prefetch_record(pages_, i);
    for (ptrdiff_t i = 0; i < pages; ++i) {
      const size_t bytes = pages_[i]->format()->bytes();
      for (size_t offset = 0; offset < bytes; offset += kDataAlignment) prefetch(pages_[i]->data + offset);
    }
  }

  /// Scores consecutive pages of one format; returns their number.
  int32_t score_pages(const Page* const* at, int32_t index, int32_t count, int32_t row, int32_t rows) {
    const SideFormat& format = at[0]->format()->keys;
    float* scores = scores_.data() + index * kPageSlots;
    std::array<SideData, kTilePages> sides;
    int32_t length = 0;
    for (; length < count && at[length]->format()->keys == format; ++length) {
      sides[static_cast<size_t>(length)] = {at[length]->data, later(at + length).data};
    }
    if (const KeyKernel kernel = kernels_.side(format).keys; kernel == nullptr) {
      context_->score(place(at), length, row, rows, scores);
    } else {
      kernel({batch_.head.keys, format.group, format.centre == Centre::kPageMean}, sides.data(), length, rows,
             query_rows(queries_.keys, format, row), scores);
      for (int32_t i = 0; batch_.head.is_latent && i < length; ++i) {
        add_latent(at + i, row, rows, scores + i * kPageSlots);
      }
    }
    for (int32_t page = 0; page < length; ++page) {
      prefetch_record(at + page, 2 * kTilePages);
      mask(at + page, scores + page * kPageSlots, row, rows);
    }
    return length;
  }

  static QueryRows query_rows(const ItemRows& queries, const SideFormat& format, int32_t row) {
    const int32_t words = RoundedQueries::words_of(queries.dim);
    const bool rounded = queries.rounded != nullptr;
    return {(format.is_rotated() ? queries.rotated : queries.plain) + row * queries.dim,
            {rounded ? queries.rounded + row * RoundedQueries::stride_of(words) : nullptr, words}};
  }

  void mask(const Page* const* at, float* scores, int32_t row, int32_t rows) const {
    const Page& page = **at;
    if (is_masked(at)) {
      for (int32_t i = 0; i < rows; ++i) {
        const uint32_t slots = masked_slots(at, row + i);
        for (int32_t slot = 0; slot < kPageSlots; ++slot) {
          if ((slots >> static_cast<uint32_t>(slot) & 1) == 0) scores[i * kTileSlots + slot] = kMinusInfinity;
        }
      }
      return;
    }
    if (all_visible(page, row, rows)) return;
    for (int32_t i = 0; i < rows; ++i) {
      const SlotRange range = visible_slots(page, position(row + i), batch_.window);
      float* of_row = scores + i * kTileSlots;
      std::fill(of_row, of_row + range.begin, kMinusInfinity);
      std::fill(of_row + range.end, of_row + kPageSlots, kMinusInfinity);
    }
  }

  /// Replaces the scores of a block's row by probabilities; returns the factor for earlier sums.
  float softmax(int32_t block_row, int32_t slots, SoftmaxState& state) {
    return kernels_.softmax(scores_.data() + block_row * kTileSlots, slots, batch_.softcap, &state);
  }

  /// Adds the weights of one row. The row of a query's last head resets the largest weights.
  void add_weights(const SlotWeights& weights, const Page* const* pages, int32_t count, int32_t row,
                   const float* probabilities) const {
    const float sum = states_[row].sum;
    const float inverse = sum > 0.0F ? 1.0F / sum : 0.0F;
    float* mass = weights.mass + place(pages) * kPageSlots;
    const int32_t slots = (count - 1) * kPageSlots + pages[count - 1]->count;
    if (weights.group == Pooling::kMean) {
      const float factor = inverse / static_cast<float>(queries_.group);
      for (int32_t slot = 0; slot < slots; ++slot) mass[slot] += factor * probabilities[slot];
      return;
    }
    float* largest = weights.largest + place(pages) * kPageSlots;
    for (int32_t slot = 0; slot < slots; ++slot) {
      largest[slot] = std::max(largest[slot], inverse * probabilities[slot]);
    }
    if ((queries_.first_row + row) % queries_.group != queries_.group - 1) return;
    for (int32_t slot = 0; slot < slots; ++slot) mass[slot] += std::exchange(largest[slot], 0.0F);
  }

  void normalise(int32_t row, int32_t block_row, int32_t slots) {
    const float factor = softmax(block_row, slots, states_[row]);
    if (factor == 1.0F) return;
    scale(plain_, layout_.width, row, factor);
    if (layout_.rotated) scale(rotated_, layout_.width, row, factor);
    if (layout_.sums > 0) scale(sums_, layout_.sums, row, factor);
  }

  void scale(float* rows, size_t width, int32_t row, float factor) const {
    float* of_row = rows + static_cast<size_t>(row) * width;
    kernels_.blend(of_row, factor, of_row, 0.0F, static_cast<int32_t>(width));
  }

  /// Place in the head's list.
  ptrdiff_t place(const Page* const* at) const { return item_.page_begin + (at - pages_); }

  /// Adds the values of the run of equal formats that starts at `pages`; returns its length.
  int32_t add_values(const Page* const* pages, int32_t first, int32_t count, int32_t row, int32_t rows) {
    const SideFormat& format = pages[0]->format()->values;
    const ValueKernel kernel = kernels_.side(format).values;
    if (kernel == nullptr) {
      int32_t length = 1;
      while (length < count && pages[length]->format() == pages[0]->format()) ++length;
      context_->add_values(place(pages), length, row, rows, scores_.data() + first * kPageSlots);
      return length;
    }
    const size_t offset = pages[0]->format()->key_bytes();
    std::array<SideData, kTilePages> sides;
    int32_t length = 0;
    for (; length < count && pages[length]->format() == pages[0]->format(); ++length) {
      sides[static_cast<size_t>(length)] = {pages[length]->data + offset, later(pages + length).data + offset};
    }
    float* output = (format.is_rotated() ? rotated_ : plain_) + row * static_cast<int32_t>(layout_.width);
    kernel(value_shape(format), sides.data(), length, rows, scores_.data() + first * kPageSlots, output);
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
  std::array<int32_t, kItemRows> row_positions_;
  const Page* const* pages_;
  std::array<const Page*, kSplitPages> grouped_;
  const uint32_t* mask_ = nullptr;  // of the sequence's first query; null: none
  int64_t first_masked_ = 0;        // slot
  const Page* const* list_end_;     // end of the whole list: prefetching runs ahead into the next item
  ContextItem context_item_;
  ContextAttentionPointer context_;  // null: no page needs its layer's context
  std::byte* latents_;               // [kTilePages] values as keys, and room to write them
  const Page* const* tile_ = nullptr;
  alignas(kDataAlignment) std::array<float, static_cast<size_t>(kBlockRows* kTileSlots)> scores_{};
  alignas(kDataAlignment) std::array<float, static_cast<size_t>(kBlockRows* kTileSlots)> latent_scores_;
};

}  // namespace

size_t latent_work_bytes(const HeadShape& head) { return head.is_latent ? (kTilePages + 1) * latent_bytes(head) : 0; }

void run_item(const AttendBatch& batch, const AttendItem& item, const ItemQueries& queries, const KernelTable& kernels,
              float* partial, std::byte* work) {
  ItemRun(batch, item, queries, kernels, partial, work).attend();
}

void measure_item(const AttendBatch& batch, const AttendItem& item, const ItemQueries& queries,
                  const KernelTable& kernels, float* partial, std::byte* work) {
  ItemRun(batch, item, queries, kernels, partial, work).measure();
}

void weigh_item(const AttendBatch& batch, const AttendItem& item, const ItemQueries& queries,
                const KernelTable& kernels, float* partial, std::byte* work, const SlotWeights& weights) {
  ItemRun(batch, item, queries, kernels, partial, work).weigh(weights);
}

}  // namespace kvq::cpu
