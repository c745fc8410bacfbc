#include "backend/cpu/pool/block_pools.h"

#include "core/error.h"
#include "core/sizes.h"

#include <algorithm>
#include <cstring>
#include <optional>

namespace kvq::cpu {
namespace {

int32_t pages_for(int32_t tokens) { return static_cast<int32_t>((int64_t{tokens} + kPageSlots - 1) / kPageSlots); }

/// Pages that so many new tokens of so many sequences touch, at most: each of these begins and ends within one.
int32_t most_pages_written(int32_t tokens, int32_t sequences) {
  return static_cast<int32_t>(std::min<int64_t>(tokens / kPageSlots + int64_t{2} * sequences, INT32_MAX));
}

/// A sequence of the batch that has tokens.
struct PlannedSequence {
  int32_t index;
  int32_t query_begin;
  int32_t query_count;
  int32_t length;
  int32_t tail;         // −1: none
  size_t first_block;   // of its numbers among those of all sequences
  size_t first_record;  // of its pages' records for a layer of one head
  int32_t first_work;   // of its work pages

  int32_t before() const { return length - query_count; }
  int32_t pages() const { return pages_for(length); }
  /// The page of the first new token, and the one of the last.
  int32_t first_written() const { return before() / kPageSlots; }
  int32_t last_written() const { return pages() - 1; }
  /// New tokens touch more pages than a tail holds.
  bool needs_work() const { return last_written() - first_written() > 1; }
  int32_t slots_of(int32_t page) const { return std::min(length - page * kPageSlots, kPageSlots); }
  int32_t kept_of(int32_t page) const { return std::max(before() - page * kPageSlots, 0); }
};

class HostPlan final : public PoolPlan {
 public:
  HostPlan(Allocator& allocator, Pages& pages, Attention& attention, Parallel& parallel, const BlockPool& pool,
           const PoolMaxima& maxima)
      : allocator_(allocator),
        pages_(pages),
        attention_(attention),
        parallel_(parallel),
        pool_(pool),
        maxima_(maxima),
        workspace_(attention.make_workspace(allocator)),
        scratch_(allocator, 0, "pool plan"),
        sequences_(allocator),
        blocks_(allocator),
        positions_(allocator),
        numbers_(allocator),
        writes_(allocator),
        work_(allocator),
        records_(allocator),
        pointers_(allocator),
        lists_(allocator),
        counts_(allocator),
        attended_(allocator) {
    for (const PooledLayer& layer : pool.layers) most_heads_ = std::max(most_heads_, layer.kv_heads);
    const auto n = static_cast<size_t>(maxima.sequences);
    sequences_.reserve(n);
    blocks_.reserve(size(n, maxima.blocks));
    attended_.reserve(n);
    lists_.reserve(size(n, most_heads_));
    counts_.reserve(size(n, most_heads_));
    positions_.reserve(static_cast<size_t>(maxima.tokens));
    const int32_t written = most_pages_written(maxima.tokens, maxima.sequences);
    numbers_.reserve(static_cast<size_t>(std::max(written, maxima.sequences)));
    writes_.reserve(size(written, most_heads_));
    size_t work_bytes = 0;
    for (const PooledLayer& layer : pool.layers) {
      if (layer.has_tails()) work_bytes = std::max(work_bytes, size(layer.kv_heads, layer.float16->bytes()));
    }
    work_.resize(size(written, work_bytes));
    reserve_calls();
  }

  void plan(const PooledBatch& batch) override {
    check(batch);
    list(batch);
    make_records();
  }

  void run(const PooledCall& call) override {
    const PooledLayer& layer = pool_.layers[static_cast<size_t>(call.layer)];
    if (call.tokens != nullptr) store(layer, *call.tokens);
    if (call.queries != nullptr) attend(layer, *call.queries, call.tokens != nullptr);
    if (call.tokens != nullptr) seal(layer, *call.tokens);
  }

 private:
  /// Memory for calls of the maxima: every sequence with few queries, and one with all others.
  void reserve_calls() {
    const int32_t average = maxima_.tokens / maxima_.sequences + 1;
    attention_.reserve({.layers = pool_.queries,
                        .sequences = maxima_.sequences,
                        .queries = std::min(average, maxima_.queries),
                        .pages = maxima_.blocks * pool_.block_pages,
                        .weighed = std::nullopt,
                        .more_queries = maxima_.queries},
                       *workspace_);
    uint64_t bytes = 0;
    for (size_t i = 0; i < pool_.layers.size(); ++i) {
      const PageFormat* formats[] = {pool_.layers[i].format};
      TokenBatch tokens = pool_.tokens[i];
      tokens.n = maxima_.tokens;
      bytes = std::max(bytes, pages_.append_bytes({tokens, formats, maxima_.sequences, 1}));
    }
    scratch_.keep_block(bytes);
  }

  void check(const PooledBatch& batch) const {
    const int32_t* starts = batch.query_starts;
    if (starts[0] != 0) fail(KVQ_E_ARGUMENT, "batch->query_starts[0] is %d, must be 0", starts[0]);
    for (int32_t i = 0; i < batch.n_sequences; ++i) {
      const int64_t count = int64_t{starts[i + 1]} - starts[i];
      if (count < 0 || count > batch.max_queries) {
        fail(KVQ_E_ARGUMENT,
             "batch->query_starts[%d] is %d, must be in [%d, %lld]: a sequence has at most %d new tokens", i + 1,
             starts[i + 1], starts[i], static_cast<long long>(starts[i]) + batch.max_queries, batch.max_queries);
      }
      if (starts[i + 1] > batch.n_tokens) {
        fail(KVQ_E_ARGUMENT, "batch->query_starts[%d] is %d, must be at most batch->n_tokens, %d", i + 1, starts[i + 1],
             batch.n_tokens);
      }
      if (batch.lengths[i] < count || batch.lengths[i] > batch.max_length) {
        fail(KVQ_E_ARGUMENT, "batch->lengths[%d] is %d, must be in [%lld, %d]: new tokens are included", i,
             batch.lengths[i], static_cast<long long>(count), batch.max_length);
      }
      const int32_t block_tokens = pool_.block_pages * kPageSlots;
      for (int32_t block = 0; int64_t{block} * block_tokens < batch.lengths[i]; ++block) {
        const int32_t number = batch.block_table[i * batch.table_stride + block];
        if (number >= 0 && number < pool_.n_blocks) continue;
        fail(KVQ_E_ARGUMENT, "batch->block_table has block %d for tokens %d and on of sequence %d, must be in [0, %d]",
             number, block * block_tokens, i, pool_.n_blocks - 1);
      }
      if (batch.tails == nullptr || (count == 0 && batch.lengths[i] % kPageSlots == 0)) continue;
      if (batch.tails[i] < 0 || batch.tails[i] >= pool_.n_tails) {
        fail(KVQ_E_ARGUMENT, "batch->tails[%d] is %d, must be in [0, %d]", i, batch.tails[i], pool_.n_tails - 1);
      }
    }
  }

  /// Two sequences that write to the same memory would destroy each other's tokens.
  void require_different(const char* what) {
    std::sort(numbers_.begin(), numbers_.end());
    const auto twice = std::adjacent_find(numbers_.begin(), numbers_.end());
    if (twice == numbers_.end()) return;
    fail(KVQ_E_ARGUMENT, "batch gives new tokens of two sequences to %s %d", what, *twice);
  }

  void list(const PooledBatch& batch) {
    sequences_.clear();
    blocks_.clear();
    positions_.clear();
    n_tokens_ = batch.query_starts[batch.n_sequences];
    size_t records = 0;
    int32_t work = 0;
    for (int32_t i = 0; i < batch.n_sequences; ++i) {
      PlannedSequence planned{.index = i,
                              .query_begin = batch.query_starts[i],
                              .query_count = batch.query_starts[i + 1] - batch.query_starts[i],
                              .length = batch.lengths[i],
                              .tail = batch.tails != nullptr ? batch.tails[i] : -1,
                              .first_block = blocks_.size(),
                              .first_record = records,
                              .first_work = work};
      if (planned.length == 0) continue;
      const int32_t* row = batch.block_table + i * batch.table_stride;
      blocks_.insert(blocks_.end(), row, row + (planned.pages() + pool_.block_pages - 1) / pool_.block_pages);
      for (int32_t token = planned.before(); token < planned.length; ++token) positions_.push_back(token);
      records += static_cast<size_t>(planned.pages());
      if (planned.query_count > 0 && planned.needs_work()) work += planned.last_written() - planned.first_written() + 1;
      sequences_.push_back(planned);
    }
    n_records_ = records;
    check_written();
  }

  void check_written() {
    numbers_.clear();
    for (const PlannedSequence& each : sequences_) {
      if (each.query_count == 0) continue;
      const int32_t last = each.last_written() / pool_.block_pages;
      for (int32_t block = each.first_written() / pool_.block_pages; block <= last; ++block) {
        numbers_.push_back(blocks_[each.first_block + static_cast<size_t>(block)]);
      }
    }
    require_different("block");
    numbers_.clear();
    for (const PlannedSequence& each : sequences_) {
      if (each.query_count > 0 && each.tail >= 0) numbers_.push_back(each.tail);
    }
    require_different("tail");
  }

  /// Pages of all heads; calls fill them in.
  void make_records() {
    const size_t needed = size(n_records_, most_heads_);
    if (records_.size() >= needed) return;
    Vector<Page> records(needed, allocator_);
    Vector<const Page*> pointers(needed, nullptr, allocator_);
    for (size_t i = 0; i < needed; ++i) pointers[i] = &records[i];
    records_.swap(records);
    pointers_.swap(pointers);
  }

  std::byte* block_page(const PooledLayer& layer, const PlannedSequence& sequence, int32_t head, int32_t page) const {
    const int32_t number = blocks_[sequence.first_block + static_cast<size_t>(page / pool_.block_pages)];
    return layer.block(number) + layer.page_offset(head, page % pool_.block_pages, pool_.block_pages);
  }
  std::byte* work_page(const PooledLayer& layer, const PlannedSequence& sequence, int32_t head, int32_t page) {
    const int32_t of_sequence = sequence.first_work + page - sequence.first_written();
    return work_.data() +
           (static_cast<size_t>(of_sequence) * static_cast<size_t>(layer.kv_heads) + static_cast<size_t>(head)) *
               layer.float16->bytes();
  }
  /// Where a page that takes new tokens holds them in FP16 during the call.
  std::byte* open_page(const PooledLayer& layer, const PlannedSequence& sequence, int32_t head, int32_t page) {
    if (!layer.has_tails()) return block_page(layer, sequence, head, page);
    if (sequence.needs_work()) return work_page(layer, sequence, head, page);
    return layer.tail(sequence.tail, head, page);
  }
  /// Where the kept slots of such a page are.
  std::byte* kept_page(const PooledLayer& layer, const PlannedSequence& sequence, int32_t head, int32_t page) const {
    return layer.has_tails() ? layer.tail(sequence.tail, head, page) : block_page(layer, sequence, head, page);
  }

  TokenBatch complete(const TokenBatch& given) const {
    TokenBatch tokens = given;
    tokens.n = n_tokens_;
    tokens.positions = positions_;
    return tokens;
  }

  template <typename Add>
  void for_each_written(const PooledLayer& layer, const Add& add) {
    writes_.clear();
    for (int32_t head = 0; head < layer.kv_heads; ++head) {
      for (const PlannedSequence& each : sequences_) {
        if (each.query_count == 0) continue;
        for (int32_t page = each.first_written(); page <= each.last_written(); ++page) add(each, head, page);
      }
    }
  }

  /// Writes the new tokens in FP16.
  void store(const PooledLayer& layer, const TokenBatch& given) {
    for_each_written(layer, [&](const PlannedSequence& each, int32_t head, int32_t page) {
      const int32_t kept = each.kept_of(page);
      writes_.push_back({.source = kept > 0 ? kept_page(layer, each, head, page) : nullptr,
                         .kept = kept,
                         .head = head,
                         .token_begin = each.query_begin + std::max(page * kPageSlots - each.before(), 0),
                         .token_count = each.slots_of(page) - kept,
                         .target = open_page(layer, each, head, page),
                         .format = layer.float16,
                         .index = page,
                         .first_position = page * kPageSlots,
                         .sequence = each.index,
                         .scales = layer.scales});
    });
    if (!writes_.empty()) pages_.append(complete(given), PageWrites(writes_, 1), {}, scratch_);
  }

  /// Encodes the pages that are full now, and keeps the newest two in FP16.
  void seal(const PooledLayer& layer, const TokenBatch& given) {
    if (!layer.has_tails()) return;
    for_each_written(layer, [&](const PlannedSequence& each, int32_t head, int32_t page) {
      if (each.slots_of(page) < kPageSlots) return;
      writes_.push_back({.source = open_page(layer, each, head, page),
                         .kept = kPageSlots,
                         .head = head,
                         .target = block_page(layer, each, head, page),
                         .format = layer.format,
                         .index = page,
                         .first_position = page * kPageSlots,
                         .sequence = each.index,
                         .scales = layer.scales});
    });
    if (!writes_.empty()) pages_.append(complete(given), PageWrites(writes_, 1), {}, scratch_);
    for (const PlannedSequence& each : sequences_) {
      if (each.query_count == 0 || !each.needs_work()) continue;
      for (int32_t page = each.last_written() - 1; page <= each.last_written(); ++page) {
        for (int32_t head = 0; head < layer.kv_heads; ++head) {
          std::memcpy(layer.tail(each.tail, head, page), work_page(layer, each, head, page), layer.float16->bytes());
        }
      }
    }
  }

  /// `given`: new tokens are read as they were given.
  void attend(const PooledLayer& layer, const AttendBatch& queries, bool given) {
    sealed_.format = layer.format;
    open_.format = layer.float16;
    lists_.clear();
    counts_.clear();
    attended_.clear();
    const auto heads = static_cast<size_t>(layer.kv_heads);
    for (const PlannedSequence& each : sequences_) {
      if (each.query_count == 0) continue;
      const size_t first_list = lists_.size();
      for (size_t head = 0; head < heads; ++head) {
        lists_.push_back(pointers_.data() + each.first_record * heads + head * static_cast<size_t>(each.pages()));
        counts_.push_back(each.pages());
      }
      attended_.push_back({.mirror = nullptr,
                           .pages = lists_.data() + first_list,
                           .page_counts = counts_.data() + first_list,
                           .query_begin = each.query_begin,
                           .query_count = each.query_count,
                           .scales = layer.scales,
                           .first_masked = each.length - queries.mask_slots});
    }
    if (attended_.empty()) return;
    const auto lists = static_cast<int32_t>(sequences_.size() * heads);
    parallel_.run(lists, [&](int32_t i) noexcept {
      const auto at = static_cast<size_t>(i);
      fill_records(layer, sequences_[at / heads], static_cast<int32_t>(at % heads), given);
    });
    AttendBatch batch = queries;
    batch.sequences = attended_;
    batch.query_positions = positions_;
    batch.newest_queries = true;
    attention_.attend(batch, *workspace_);
  }

  void fill_records(const PooledLayer& layer, const PlannedSequence& sequence, int32_t head, bool given) noexcept {
    Page* records = records_.data() + sequence.first_record * static_cast<size_t>(layer.kv_heads) +
                    static_cast<size_t>(head) * static_cast<size_t>(sequence.pages());
    for (int32_t page = 0; page < sequence.pages(); ++page) {
      Page& record = records[page];
      record.first_position = page * kPageSlots;
      record.count = sequence.slots_of(page);
      const bool is_new = given && page >= sequence.first_written();
      const bool is_sealed = record.count == kPageSlots && !is_new;
      record.run = is_sealed ? &sealed_ : &open_;
      record.data = is_sealed ? block_page(layer, sequence, head, page)
                    : is_new  ? open_page(layer, sequence, head, page)
                              : kept_page(layer, sequence, head, page);
    }
  }

  Allocator& allocator_;
  Pages& pages_;
  Attention& attention_;
  Parallel& parallel_;
  const BlockPool& pool_;
  const PoolMaxima maxima_;
  Owned<Workspace> workspace_;
  Allocator scratch_;  // of appends, while they run
  int32_t most_heads_ = 1;
  // Of the batch.
  int32_t n_tokens_ = 0;
  size_t n_records_ = 0;
  Vector<PlannedSequence> sequences_;
  Vector<int32_t> blocks_;     // numbers of all sequences
  Vector<int32_t> positions_;  // of new tokens
  Vector<int32_t> numbers_;    // that must differ
  // Of a call.
  Vector<PageWrite> writes_;
  AlignedBytes work_;  // FP16 pages of new tokens
  PageRun sealed_{};
  PageRun open_{};
  Vector<Page> records_;  // [sequences][heads][pages]
  Vector<const Page*> pointers_;
  Vector<const Page* const*> lists_;
  Vector<int32_t> counts_;
  Vector<AttendSequence> attended_;
};

}  // namespace

Owned<PoolPlan> CpuBlockPools::make_plan(Allocator& allocator, const BlockPool& pool, const PoolMaxima& maxima) {
  return make_owned<HostPlan>(allocator, allocator, pages_, attention_, parallel_, pool, maxima);
}

}  // namespace kvq::cpu
