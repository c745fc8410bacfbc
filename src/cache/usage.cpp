// Usage of sequences and caches.
#include "cache/forget.h"
#include "cache/observations.h"
#include "cache/reserve.h"
#include "cache/sequence.h"
#include "core/error.h"

#include <algorithm>
#include <array>
#include <climits>
#include <initializer_list>

namespace kvq {
namespace {

void finish(kvq_usage& usage, int64_t scalars) {
  usage.scalars = scalars;
  usage.plain_fp16_bytes = 2 * static_cast<uint64_t>(usage.scalars);
  const uint64_t held = usage.sealed_bytes + usage.fp16_bytes + usage.metadata_bytes;
  usage.total_bytes = held + usage.workspace_bytes + usage.transient_bytes + usage.state_bytes;
  usage.bits_per_scalar =
      usage.scalars == 0 ? 0.0 : 8.0 * static_cast<double>(held) / static_cast<double>(usage.scalars);
}

void add_run(kvq_usage& usage, const PageRun* run) {
  (run->format->is_float16() ? usage.fp16_bytes : usage.sealed_bytes) += run->data_bytes();
  usage.metadata_bytes += run->record_bytes();
}

}  // namespace

kvq_usage usage(const Sequence& sequence) {
  kvq_usage result = {};
  int64_t scalars = 0;
  result.metadata_bytes = Sequence::record_bytes(sequence.cache, *sequence.storage, !sequence.mirrors.empty()) +
                          sequence.reserves.capacity() * sizeof(Owned<Reserve>) + sequence.append_memory.bytes() +
                          sequence.seal_memory.bytes();
  result.metadata_bytes += sequence.states.list_bytes();
  result.state_bytes = sequence.states.bytes();
  if (sequence.observations != nullptr) result.metadata_bytes += sequence.observations->bytes();
  if (sequence.calibration != nullptr) result.metadata_bytes += sequence.calibration->bytes();
  for (const Owned<LayerMirror>& mirror : sequence.mirrors) result.metadata_bytes += mirror->bytes();
  for (size_t i = 0; i < sequence.lists.size(); ++i) {
    const Sequence::PageList& pages = sequence.lists[i];
    result.metadata_bytes += pages.capacity() * sizeof(Page*);
    // The last counted ones: a router alternates between runs, and so does a recoded list around pages of a fork.
    std::array<const PageRun*, 2 * (kMaxExperts + 1)> long_runs{};
    size_t counted_runs = 0;
    const auto count_page = [&](const Page* page) {
      (page->is_float16() ? result.fp16_pages : result.sealed_pages) += 1;
      result.shared_pages += page->is_shared() ? 1 : 0;
      result.metadata_bytes += page->positions != nullptr ? sizeof(int32_t) * kPageSlots : 0;
      scalars += int64_t{page->count} * page->format()->head.sum();
      if (std::ranges::find(long_runs, page->run) != long_runs.end()) return;
      add_run(result, page->run);
      if (page->run->capacity > 1) long_runs[counted_runs++ % long_runs.size()] = page->run;
    };
    for (const Page* page : pages) count_page(page);
    const Reserve* reserve = sequence.reserve(sequence.layer_of(i));
    const int32_t head = sequence.head_of(i);
    const auto finals = reserve != nullptr ? std::span<Page* const>(reserve->finals(head)) : std::span<Page* const>();
    const auto open = reserve != nullptr ? std::span<Page* const>(reserve->open(head)) : std::span<Page* const>();
    for (const PageRun* current : sequence.runs_of(i)) {
      const auto in_current = [current](const Page* page) { return page != nullptr && page->run == current; };
      const bool counted =
          current == nullptr || std::ranges::any_of(pages, in_current) || std::ranges::any_of(finals, in_current);
      if (!counted) add_run(result, current);
    }
    for (const std::span<Page* const> made : {finals, open}) {
      for (const Page* page : made) {
        if (page != nullptr) count_page(page);
      }
    }
  }
  for (const Owned<Reserve>& reserve : sequence.reserves) result.metadata_bytes += reserve->record_bytes();
  finish(result, scalars);
  return result;
}

kvq_usage usage(const Cache& cache) {
  kvq_usage result = {};
  result.sealed_bytes = cache.account.sealed_bytes;
  result.fp16_bytes = cache.account.float16_bytes;
  result.sealed_pages = cache.account.sealed_pages;
  result.fp16_pages = cache.account.float16_pages;
  result.shared_pages = cache.account.shared_pages;
  result.workspace_bytes = cache.fixed_bytes();
  result.state_bytes = cache.state_allocator.bytes();
  result.metadata_bytes =
      cache.total_bytes() - result.sealed_bytes - result.fp16_bytes - result.workspace_bytes - result.state_bytes;
  finish(result, cache.account.scalars);
  return result;
}

namespace {

/// Bounds that keep all sums here far below 2^64.
constexpr uint64_t kMostPages = uint64_t{1} << 36;
constexpr uint64_t kMostRows = INT32_MAX;

uint64_t product(std::initializer_list<int32_t> factors) {
  uint64_t product = 1;
  for (const int32_t factor : factors) {
    if (__builtin_mul_overflow(product, static_cast<uint64_t>(factor), &product)) return UINT64_MAX;
  }
  return product;
}

void check_numbers(const Cache& cache, int32_t sequences, int32_t tokens, int32_t queries) {
  if (cache.training.router != nullptr) {
    fail(KVQ_E_UNSUPPORTED,
         "tokens is %d: a router of the cache chooses the formats of pages, so their sizes cannot be predicted",
         tokens);
  }
  const int32_t pages = tokens / kPageSlots + 1;
  if (product({sequences, cache.n_layers, cache.most_kv_heads(), pages}) > kMostPages) {
    fail(KVQ_E_ARGUMENT, "sequences is %d and tokens %d: %d layers of %d heads would have more than 2^36 pages",
         sequences, tokens, cache.n_layers, cache.most_kv_heads());
  }
  if (product({sequences, queries, cache.most_q_heads()}) > kMostRows) {
    fail(KVQ_E_ARGUMENT, "sequences is %d and queries %d: with %d heads these are more than 2^31 rows", sequences,
         queries, cache.most_q_heads());
  }
}

/// Pages of a list that is to receive `pages` pages.
int32_t pages_of_layer(const Cache& cache, int32_t layer, int32_t pages) {
  return std::min(pages, most_pages(cache.layer(layer), *cache.storage, kPageSlots));
}

/// The same of the longest list.
int32_t longest_list(const Cache& cache, int32_t pages) {
  int32_t longest = 0;
  for (int32_t layer = 0; layer < cache.n_layers; ++layer) {
    longest = std::max(longest, pages_of_layer(cache, layer, pages));
  }
  return longest;
}

/// Layer of one sequence with preallocated pages: all heads are alike.
void add_layer(kvq_usage& usage, const Cache& cache, int32_t layer, int32_t pages, uint64_t sequences) {
  const Storage& storage = *cache.storage;
  pages = pages_of_layer(cache, layer, pages);
  const LayerShape& shape = cache.layer(layer);
  const ReservePlaces places(storage, layer, shape.window != 0, pages, ReservePlaces::ring_of(storage, pages));
  const uint64_t lists = sequences * static_cast<uint64_t>(shape.kv_heads);
  const auto add_pages = [&](const PageFormat& format, int32_t n, int32_t runs) {
    const uint64_t n_pages = lists * static_cast<uint64_t>(n);
    (format.is_float16() ? usage.fp16_pages : usage.sealed_pages) += n_pages;
    (format.is_float16() ? usage.fp16_bytes : usage.sealed_bytes) += n_pages * format.bytes();
    usage.metadata_bytes += n_pages * sizeof(Page) + lists * static_cast<uint64_t>(runs) * sizeof(PageRun);
  };
  const auto runs_of = [](int32_t n) { return (n + kMaxRunPages - 1) / kMaxRunPages; };
  const int32_t rest = places.finals - places.sinks;
  add_pages(*shape.float16, places.sinks, runs_of(places.sinks));
  add_pages(*storage.layer_at(layer).formats.front(), rest, runs_of(rest));
  add_pages(*shape.float16, places.open, places.open);
  const uint64_t finals = static_cast<uint64_t>(shape.kv_heads) * static_cast<uint64_t>(places.finals);
  const uint64_t record = Reserve::record_bytes(shape.kv_heads, finals, places.ring);
  usage.metadata_bytes +=
      sequences * (sizeof(Owned<Reserve>) + record) + lists * static_cast<uint64_t>(pages) * sizeof(Page*);
}

/// FP16 pages that wait for scales beyond the places of a reserve: those of sequences with so many tokens.
struct WaitingPages {
  uint64_t pages = 0;
  uint64_t bytes = 0;
  uint64_t metadata = 0;
};

WaitingPages waiting_pages(const Cache& cache, int32_t pages, int32_t waiting, uint64_t sequences) {
  const Storage& storage = *cache.storage;
  WaitingPages result;
  if (!finds_own_scales(cache, storage)) return result;
  for (int32_t layer = 0; layer < cache.n_layers; ++layer) {
    if (storage.layer_at(layer).stays_float16()) continue;
    const int32_t of_list = pages_of_layer(cache, layer, pages);
    const bool forgets = cache.layer(layer).window != 0;
    const ReservePlaces places(storage, layer, forgets, of_list, ReservePlaces::ring_of(storage, of_list));
    const int32_t beyond = std::max(std::min(waiting, pages) - places.sinks - places.open, 0);
    const LayerShape& shape = cache.layer(layer);
    const uint64_t pages_of_layer = sequences * static_cast<uint64_t>(shape.kv_heads) * static_cast<uint64_t>(beyond);
    result.pages += pages_of_layer;
    result.bytes += pages_of_layer * shape.float16->bytes();
  }
  result.metadata = result.pages * PageRun::bytes_for(1);
  return result;
}

/// Work space of calls, one at a time.
uint64_t workspace_bytes(const Cache& cache, int32_t sequences, int32_t queries, int32_t pages) {
  Attention& attention = cache.backend.attention();
  if (queries > 0) attention.require_known_sizes(queries);
  const Vector<AttendBatch> layers = cache.attend_batches(cache.allocator.parent());
  Vector<ExpectedCall> calls(cache.allocator.parent());
  uint64_t scratch = 0;
  // reserve() makes room for one query of each sequence and appends of a page.
  if (pages > 0) {
    const ExpectedBatch reserved = ExpectedBatch::of_pages(sequences, pages);
    calls.push_back(expected_call(cache, layers, reserved));
    scratch = scratch_bytes(cache, reserved);
  }
  const ExpectedBatch expected{sequences, int64_t{sequences} * queries, queries, pages};
  if (queries > 0) calls.push_back(expected_call(cache, layers, expected));
  const uint64_t most = calls.empty() ? 0 : static_cast<uint64_t>(sequences);
  const uint64_t rows = most * static_cast<uint64_t>(std::max(queries, 1));
  return sizeof(CallSpace) + attention.workspace_bytes(calls) + CallSpace::bytes_of(most, rows, cache.most_kv_heads()) +
         scratch;
}

template <typename Bytes>
uint64_t most_of_layers(const Cache& cache, const Bytes& bytes) {
  uint64_t most = 0;
  for (const LayerShape& layer : cache.layers()) most = std::max(most, bytes(layer));
  return most;
}

/// What an extension by more than a page takes while it runs: FP16 pages of the new tokens, and the call's own memory.
uint64_t transient_bytes(const Cache& cache, const ExpectedBatch& batch) {
  const int32_t pages = batch.queries / kPageSlots + 1;
  const auto sequences = static_cast<uint64_t>(batch.sequences);
  const auto runs = static_cast<uint64_t>(pages / kMaxRunPages + 1);
  const uint64_t most = most_of_layers(cache, [&](const LayerShape& layer) {
    const uint64_t of_list = static_cast<uint64_t>(pages) * layer.float16->bytes() +
                             runs * PageRun::bytes_for(std::min(pages, kMaxRunPages));
    return static_cast<uint64_t>(layer.kv_heads) * of_list;
  });
  return sequences * most + scratch_bytes(cache, batch);
}

/// What layers with windows keep of chunks of `queries` tokens until the next one, for one sequence.
uint64_t kept_chunk_bytes(const Cache& cache, int32_t pages, int32_t queries) {
  uint64_t bytes = 0;
  for (int32_t layer = 0; layer < cache.n_layers && queries > kPageSlots; ++layer) {
    const LayerShape& shape = cache.layer(layer);
    if (shape.window == 0) continue;
    const int32_t runs = 2 * Sequence::most_run_pages(shape);  // which are freed as a whole
    const int64_t most = std::min<int64_t>(pages, int64_t{most_pages(shape, *cache.storage, queries)} + runs);
    const int64_t more = std::max<int64_t>(most - pages_of_layer(cache, layer, pages), 0);
    const size_t bytes_of_page =
        cache.storage->layer_at(layer).formats.front()->bytes() + sizeof(Page) + sizeof(PageRun);
    bytes += static_cast<uint64_t>(shape.kv_heads) * static_cast<uint64_t>(more) * bytes_of_page;
  }
  return bytes;
}

/// A search for scales in one layer, while lists hold so many pages.
uint64_t search_bytes(const Cache& cache, int32_t pages) {
  return most_of_layers(cache, [pages](const LayerShape& layer) { return Calibrator::bytes_of(layer, pages); });
}

/// Mirrors of all layers of a sequence; 0 if the backend has none.
uint64_t mirrors_bytes(const Cache& cache, const Storage& storage, int32_t pages) {
  uint64_t bytes = 0;
  for (int32_t layer = 0; layer < cache.n_layers; ++layer) {
    const int32_t of_list = pages_of_layer(cache, layer, pages);
    const int32_t ring = ReservePlaces::ring_of(storage, of_list);
    bytes += cache.backend.pages().mirror_bytes(cache.layer(layer).kv_heads, of_list, ring);
  }
  return bytes;
}

}  // namespace

uint64_t sequence_bytes(const Cache& cache, const Storage& storage) {
  const uint64_t mirrors = mirrors_bytes(cache, storage, 0);
  return Sequence::record_bytes(cache, storage, mirrors > 0) + mirrors + Observations::bytes_of(cache, 0, 0) +
         Calibration::bytes_of(cache, storage, 0, 0) +
         AppendMemory::bytes_of(cache.most_kv_heads(), storage.runs_of_list(), kPagesOfOneAppend, kPageSlots) +
         AppendMemory::bytes_of(cache.most_kv_heads(), storage.runs_of_list(), kPagesOfOneAppend, 0);
}

kvq_usage predict_usage(const Cache& cache, int32_t sequences, int32_t tokens, int32_t queries) {
  check_numbers(cache, sequences, tokens, queries);
  const int32_t pages = (tokens + kPageSlots - 1) / kPageSlots;
  const Storage& storage = *cache.storage;
  const auto n = static_cast<uint64_t>(sequences);
  const uint64_t mirrors = mirrors_bytes(cache, storage, pages);
  kvq_usage result = {};
  result.metadata_bytes =
      n * (Sequence::record_bytes(cache, storage, mirrors > 0) + Observations::bytes_of(cache, tokens, queries) +
           Calibration::bytes_of(cache, storage, tokens, queries) +
           AppendMemory::bytes_of(cache.most_kv_heads(), storage.runs_of_list(), kPagesOfOneAppend, kPageSlots) +
           AppendMemory::bytes_of(cache.most_kv_heads(), storage.runs_of_list(), kPagesOfOneAppend, 0) + mirrors);
  for (int32_t layer = 0; layer < cache.n_layers && pages > 0; ++layer) add_layer(result, cache, layer, pages, n);
  result.workspace_bytes = cache.table_bytes() + workspace_bytes(cache, sequences, queries, longest_list(cache, pages));
  if (queries > kPageSlots) {
    result.transient_bytes =
        transient_bytes(cache, {sequences, int64_t{sequences} * queries, queries, std::max(pages, 1)});
  }
  result.transient_bytes += n * kept_chunk_bytes(cache, pages, queries);
  const bool searches = finds_own_scales(cache, storage);
  const bool counts = searches && queries > 0 && tokens > 0;
  // A call that counts queries keeps what was counted before.
  if (counts) result.transient_bytes += n * most_of_layers(cache, &QueryEnergies::bytes_of);
  if (tokens <= kCalibrationTokens) {
    // An extension to all of these finds scales.
    if (searches && tokens == kCalibrationTokens) result.transient_bytes += n * search_bytes(cache, pages);
    const WaitingPages waiting = waiting_pages(cache, pages, pages, n);
    result.fp16_pages += waiting.pages;
    result.fp16_bytes += waiting.bytes;
    result.metadata_bytes += waiting.metadata;
  } else if (searches) {
    // All wait for as many tokens as lack the last one and a call more, then find their scales layer by layer.
    for (const LayerShape& layer : cache.layers()) {
      if (counts) result.transient_bytes += n * QueryEnergies::bytes_of(layer);
    }
    const int64_t most = int64_t{kCalibrationTokens} - 1 + std::max(queries, kPageSlots);
    const auto waiting_of_list = static_cast<int32_t>(std::min<int64_t>((most + kPageSlots - 1) / kPageSlots, pages));
    const WaitingPages waiting = waiting_pages(cache, pages, waiting_of_list, n);
    result.transient_bytes += waiting.bytes + waiting.metadata + n * search_bytes(cache, waiting_of_list);
  }
  result.transient_bytes += n * kept_compress_room(cache, tokens);
  int64_t scalars = 0;
  for (const LayerShape& layer : cache.layers()) {
    scalars += slots_held(layer, storage, tokens) * int64_t{layer.kv_heads} * layer.head.sum();
  }
  finish(result, sequences * scalars);
  return result;
}

}  // namespace kvq
