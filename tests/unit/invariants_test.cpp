// Sequences and caches with one invariant broken at a time, and the resulting message.
#include "cache/invariants.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <climits>
#include <string>
#include <utility>
#include <vector>

#include "api/handles.h"
#include "cache/reserve.h"
#include "core/error.h"
#include "support/handles.h"
#include "support/random.h"

namespace invariants_test {
namespace {

using namespace std::chrono_literals;
using kvq::Page;

constexpr int32_t kHeads = 2;
constexpr int32_t kHeadDim = 16;
constexpr int32_t kLayers = 2;
constexpr int32_t kTokens = 150;
// Each list has 5 pages: the first stays FP16, two are sealed, one is FP16 and full, and one with 22 slots is open. All
// lists together have 12 FP16 pages, of 16 · 32 · 2 · 2 bytes, and 8 are sealed, of 2 · 256 bytes of codes, and 4 bytes
// for each of 16 channels and 32 tokens.
constexpr const char* kMixed = "{version: 1, keys: int4, values: int4, sink: 1, recent: 2}";
constexpr const char* kSpanning =
    "{version: 1, keys: commvq, values: commvq, eviction: {score: streaming, heads: together, budget: 64}}";

template <typename Check>
std::string message_of(const Check& check) {
  try {
    check();
    return "";
  } catch (const kvq::Error& error) {
    CHECK(error.status() == KVQ_E_INTERNAL);
    return error.what();
  }
}
std::string complaint(const kvq::Sequence& sequence, kvq::Sealing sealing = kvq::Sealing::kByPolicy) {
  return message_of([&] { kvq::check_invariants(sequence, sealing, 0ms); });
}
std::string complaint(const kvq::Cache& cache) {
  return message_of([&] { kvq::check_invariants(cache, 0ms); });
}

/// The message while `place` holds `value`.
template <typename Object, typename Place, typename Value>
std::string complaint_with(const Object& object, Place& place, Value value) {
  const Value kept = place;
  place = value;
  std::string said = complaint(object);
  place = kept;
  return said;
}

/// A cache and one of its sequences.
struct Bench {
  explicit Bench(const std::string& policy = kMixed, int32_t step = 1)
      : context(kvq_test::make_context()),
        handle(make_cache(context, policy)),
        sequence_handle(filled(step)),
        pointer(sequence_handle) {}

  static kvq_test::Cache make_cache(kvq_context* context, const std::string& policy) {
    const kvq_cache_options options = kvq_test::cache_options(kHeads, kHeads, kHeadDim, kLayers);
    if (policy.find("commvq") == std::string::npos) return kvq_test::make_cache(context, options, policy);
    return kvq_test::make_cache(
        context, options, policy,
        {.stages = 2, .codes = 8, .bits = 1, .scope = KVQ_SCOPE_LAYER, .norms = KVQ_SCOPE_LAYER});
  }
  /// Every `step`-th position.
  kvq_test::Sequence filled(int32_t step) const {
    kvq_test::Sequence made(handle);
    const std::vector<float> x = kvq_test::normal_tensor(size_t{kTokens} * kHeads * kHeadDim, 1);
    std::vector<int32_t> positions(kTokens);
    for (int32_t i = 0; i < kTokens; ++i) positions[static_cast<size_t>(i)] = step * i;
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      kvq_test::append(made, layer, kTokens, x.data(), x.data(), KVQ_F32, positions);
    }
    return made;
  }

  kvq::Cache& cache() const { return *handle; }
  kvq::Storage& storage() const { return const_cast<kvq::Storage&>(*cache().storage); }
  kvq::Sequence& sequence() const { return *pointer; }
  kvq::Sequence::PageList& list(int32_t layer = 0, int32_t head = 0) const { return sequence().list(layer, head); }
  Page& page(size_t index, int32_t layer = 0, int32_t head = 0) const { return *list(layer, head)[index]; }
  kvq::PageRun& run(int32_t layer = 0, int32_t head = 0) const {
    return *sequence().runs_of(sequence().list_index(layer, head)).front();
  }

  /// The message about the sequence while `place` holds `value`.
  template <typename Place, typename Value>
  std::string with(Place& place, Value value) const {
    return complaint_with(sequence(), place, value);
  }

  kvq_test::Context context;
  kvq_test::Cache handle = nullptr;
  kvq_test::Sequence sequence_handle = nullptr;
  kvq_sequence* pointer;  // tests modify const contents
};

/// A reserve for 100 more tokens whose places tests can modify.
struct ReservedBench : Bench {
  ReservedBench() { kvq::reserve(sequence(), 100); }

  kvq::Reserve& reserve() const { return *sequence().reserve(0); }
  Page*& final_page(size_t index) const { return const_cast<Page*&>(reserve().finals(0)[index]); }
  Page*& open_page(size_t index) const { return const_cast<Page*&>(reserve().open(0)[index]); }
  /// The place in the ring whose page is not the list's open one.
  size_t waiting() const {
    const auto& ring = reserve().open(0);
    return static_cast<size_t>(
        std::find_if(ring.begin(), ring.end(), [](const Page* page) { return page != nullptr; }) - ring.begin());
  }
};

}  // namespace

TEST_CASE("everything holds of sequences that operations have left") {
  for (const char* policy : {"fp16", "int4", kMixed, kSpanning, "int2+streaming:64"}) {
    CAPTURE(policy);
    for (const int32_t step : {1, 3}) {
      CAPTURE(step);
      const Bench bench(policy, step);
      CHECK(complaint(bench.sequence()) == "");
      kvq_test::Sequence fork = bench.sequence_handle.fork();
      CHECK(complaint(*fork) == "");
      if (bench.cache().eviction.budget > 0) {
        kvq_test::checked(kvq_compress, bench.handle, bench.pointer, nullptr);
        CHECK(complaint(bench.sequence()) == "");
      }
      fork.truncate(130);
      CHECK(complaint(*fork) == "");
      CHECK(complaint(*kvq_test::Sequence::load(bench.handle, fork.save()).get()) == "");
      kvq::reserve(*fork, 100);
      CHECK(complaint(*fork) == "");
      CHECK(complaint(bench.sequence()) == "");
      CHECK(complaint(bench.cache()) == "");
    }
  }
}

TEST_CASE("pages are full but for an open one, and their slots add up") {
  const Bench bench;
  CHECK(bench.with(bench.page(1).count, 31) == "layer 0, head 0, page 1: slots is 31, must be at least 32");
  CHECK(bench.with(bench.page(3).count, 31) == "layer 0, head 0, page 3: slots is 31, must be at least 32");
  CHECK(bench.with(bench.page(4).count, 0) == "layer 0, head 0, page 4: slots is 0, must be at least 1");
  CHECK(bench.with(bench.page(4, 1, 1).count, 33) == "layer 1, head 1, page 4: slots is 33, must be at most 32");
  CHECK(bench.with(bench.page(4).count, 21) == "layer 0, head 0, page 4: slots up to here is 149, must be 150");
  kvq::Sequence::Layer& layer = bench.sequence().layers[1];
  CHECK(bench.with(layer.length, 149) == "layer 1, head 0, page 4: slots up to here is 150, must be 149");
  CHECK(bench.with(layer.length, -1) == "layer 1, head 0, page 4: length of the layer is -1, must be at least 0");

  kvq::truncate(bench.sequence(), 96);
  CHECK(bench.with(bench.page(2).count, 20) == "layer 0, head 0, page 2: slots is 20, must be at least 32");
}

TEST_CASE("positions rise and end where the layer says") {
  const Bench bench;
  CHECK(bench.with(bench.page(2).first_position, 63) ==
        "layer 0, head 0, page 2: first position is 63, must be at least 64");
  CHECK(bench.with(bench.page(0).first_position, -1) ==
        "layer 0, head 0, page 0: first position is -1, must be at least 0");
  CHECK(bench.with(bench.page(4).first_position, INT32_MAX) ==
        "layer 0, head 0, page 4: last position is 2147483668, must be at most 2147483647");
  CHECK(bench.with(bench.page(4).first_position, 129) == "layer 0, head 0, page 4: last position is 150, must be 149");
  int32_t& last = bench.sequence().layers[1].last_position;
  CHECK(bench.with(last, 150) == "layer 1, head 0, page 4: last position is 149, must be 150");
  CHECK(bench.with(last, 148) == "layer 1, head 0, page 4: last position of the layer is 148, must be at least 149");

  const Bench with_gaps(kMixed, 2);
  CHECK(with_gaps.with(with_gaps.page(1).positions[0], 65) ==
        "layer 0, head 0, page 1: position of the first slot is 65, must be 64");
  CHECK(with_gaps.with(with_gaps.page(1).positions[7], 76) ==
        "layer 0, head 0, page 1: position of a slot is 76, must be at least 77");
  CHECK(with_gaps.with(with_gaps.page(4).positions, static_cast<int32_t*>(nullptr)) ==
        "layer 0, head 0, page 4: last position is 277, must be 298");

  kvq::truncate(with_gaps.sequence(), 0);
  CHECK(with_gaps.with(with_gaps.sequence().layers[0].last_position, 5) ==
        "layer 0, head 0, page -1: last position of the empty layer is 5, must be -1");
}

TEST_CASE("lists of a policy that evicts may be short, but only a cut lets them end early") {
  const Bench bench("int4+streaming:64");
  Page* last = bench.list(0, 1).back();
  bench.list(0, 1).pop_back();
  CHECK(complaint(bench.sequence()) == "");
  CHECK(bench.with(bench.sequence().layers[0].last_position, 150) ==
        "layer 0, head 0, page 4: last position is 149, must be 150");
  bench.list(0, 1).push_back(last);
  CHECK(bench.with(bench.sequence().layers[1].length, 149) ==
        "layer 1, head 0, page 4: slots up to here is 150, must be at most 149");
}

TEST_CASE("pages are sealed where the policy says, unless they come from another one") {
  const Bench bench;
  CHECK(bench.with(bench.storage().sink, 0) == "layer 0, head 0, page 0: times that it is sealed is 0, must be 1");
  CHECK(bench.with(bench.storage().sink, 2) == "layer 0, head 0, page 1: times that it is sealed is 1, must be 0");
  CHECK(bench.with(bench.storage().recent, 1) == "layer 0, head 0, page 3: times that it is sealed is 0, must be 1");
  bench.storage().sink = 0;
  CHECK(kvq::sealing_of(bench.sequence()) == kvq::Sealing::kAny);
  CHECK(complaint(bench.sequence(), kvq::Sealing::kAny) == "");
  bench.storage().sink = 1;
  CHECK(kvq::sealing_of(bench.sequence()) == kvq::Sealing::kByPolicy);
}

TEST_CASE("a page lies in a run of a format that its layer has") {
  const Bench bench;
  Page& page = bench.page(2);
  CHECK(bench.with(bench.list()[2], static_cast<Page*>(nullptr)) ==
        "layer 0, head 0, page 2: address is 0, must be at least 1");
  CHECK(bench.with(page.run, static_cast<kvq::PageRun*>(nullptr)) ==
        "layer 0, head 0, page 2: address of the run is 0, must be at least 1");
  CHECK(bench.with(page.run, bench.page(2, 0, 1).run).find("page 2: offset ") != std::string::npos);
  CHECK(bench.with(page.run->capacity, 1) == "layer 0, head 0, page 2: offset in the run's records is " +
                                                 std::to_string(sizeof(Page)) + ", must be at most 0");
  CHECK(bench.with(page.data, bench.page(1).data).find("page 2: offset in the run's data is 0, must be ") !=
        std::string::npos);
  const kvq::PageFormat other = *page.format();
  CHECK(bench.with(page.run->format, &other) ==
        "layer 0, head 0, page 1: number of the layer's formats that it has is 0, must be 1");
  CHECK(bench.with(bench.page(3).run->capacity, 2) ==
        "layer 0, head 0, page 3: pages in the run of an FP16 page to be sealed is 2, must be 1");
  struct {
    kvq::PageRun run;
    std::byte gap[8];
    Page page;
  } shifted;
  shifted.run.format = bench.cache().layer(0).float16;
  shifted.run.capacity = 2;
  shifted.page.run = &shifted.run;
  CHECK(bench.with(bench.list()[0], &shifted.page) ==
        "layer 0, head 0, page 0: offset beyond a record is 8, must be 0");
}

TEST_CASE("every page and run is held once, by one list, and counted") {
  const Bench bench;
  CHECK(bench.with(bench.page(2).references, 0) == "layer 0, head 0, page 2: references is 0, must be at least 1");
  CHECK(bench.with(bench.list(0, 1)[2], &bench.page(2)) ==
        "layer 0, head 1, page 2: times that the sequence holds it is 2, must be 1");
  CHECK(bench.with(bench.page(3).run->references, 0) ==
        "layer 0, head 0, page 3: references of the run is 0, must be at least 1");
  std::swap(bench.list(0, 0)[2], bench.list(0, 1)[2]);
  CHECK(complaint(bench.sequence()).find("list that holds the run is ") != std::string::npos);
  std::swap(bench.list(0, 0)[2], bench.list(0, 1)[2]);
  std::swap(bench.sequence().runs[0], bench.sequence().runs[1]);
  CHECK(complaint(bench.sequence()).find("list that holds the run is ") != std::string::npos);
  std::swap(bench.sequence().runs[0], bench.sequence().runs[1]);
  CHECK(complaint(bench.sequence()) == "");
}

TEST_CASE("the run that a list fills has its format and knows how far it is filled") {
  const Bench bench;
  REQUIRE(bench.run().used == 2);
  const int32_t references = bench.run().references;
  CHECK(bench.with(bench.run().references, references - 1) ==
        "layer 0, head 0, run before page 5: references of the run is 2, must be at least 3");
  CHECK(bench.with(bench.run().references, references + 1) ==
        "layer 0, head 0, page 2: references of the run is 4, must be at most 3");
  CHECK(bench.with(bench.run().used, 1) == "layer 0, head 0, page 2: pages of the run in use is 1, must be at least 2");
  const int32_t capacity = bench.run().capacity;
  CHECK(bench.with(bench.run().used, capacity + 1) == "layer 0, head 0, page 2: pages of the run in use is " +
                                                          std::to_string(capacity + 1) + ", must be at most " +
                                                          std::to_string(capacity));
  kvq::truncate(bench.sequence(), 0);
  CHECK(bench.with(bench.run().capacity, 0) ==
        "layer 0, head 0, run before page 0: capacity of the run is 0, must be at least 1");
  CHECK(bench.with(bench.run().capacity, 257) ==
        "layer 0, head 0, run before page 0: capacity of the run is 257, must be at most 256");
  CHECK(bench.with(bench.run().used, 0) ==
        "layer 0, head 0, run before page 0: pages of the run in use is 0, must be at least 1");
  CHECK(bench.with(bench.run().format, std::as_const(bench.cache()).layer(0).float16) ==
        "layer 0, head 0, run before page 0: format of the run is 1, must be 0");
}

TEST_CASE("heads agree where pages span them") {
  const Bench bench(kSpanning, 2);
  CHECK(bench.with(bench.page(1, 0, 1).positions[5], 75) ==
        "layer 0, head 1, spanning page 1: position is 75, must be 74");

  const Bench dense(kSpanning);
  CHECK(dense.with(dense.page(4, 0, 1).count, 21) == "layer 0, head 1, spanning page 4: slots is 21, must be 22");
  Page* last = dense.list(0, 1).back();
  dense.list(0, 1).pop_back();
  CHECK(complaint(dense.sequence()) == "layer 0, head 1, spanning page 3: number of pages is 4, must be 5");
  dense.list(0, 1).push_back(last);

  Page* page = dense.cache().make_page(dense.cache().layer(0).float16, false);
  dense.cache().set_count(page, kvq::kPageSlots);
  std::swap(page, dense.list(0, 1)[0]);
  // With the codebook a sealed page has 2 · 24 + 64 bytes and 2 · 32 of numbers.
  CHECK(complaint(dense.sequence(), kvq::Sealing::kAny) ==
        "layer 0, head 1, spanning page 0: bytes is 2048, must be 176");
  std::swap(page, dense.list(0, 1)[0]);
  dense.cache().release(page);
  CHECK(complaint(dense.sequence()) == "");
}

TEST_CASE("pages made ahead are nobody else's, empty, and in the place that they are for") {
  const ReservedBench bench;
  Page& page = *bench.final_page(4);
  CHECK(bench.with(page.references, 2) == "layer 0, head 0, reserved page 4: references is 2, must be 1");
  CHECK(bench.with(page.count, 3) == "layer 0, head 0, reserved page 4: slots is 3, must be 0");
  int32_t positions = 0;
  CHECK(bench.with(page.positions, &positions).find("reserved page 4: address of positions is ") != std::string::npos);
  CHECK(bench.with(page.data, bench.page(1).data).find("reserved page 4: offset in the run's data is ") !=
        std::string::npos);
  const size_t waiting = bench.waiting();
  const std::string in_ring = "layer 0, head 0, page of the ring " + std::to_string(waiting) + ": ";
  CHECK(bench.with(bench.open_page(waiting)->references, 2) == in_ring + "references is 2, must be 1");
  CHECK(bench.with(bench.final_page(4), bench.final_page(3)) ==
        "layer 0, head 0, reserved page 4: times that the sequence holds it is 2, must be 1");
  CHECK(bench.with(bench.final_page(2), bench.final_page(3)) ==
        "layer 0, head 0, reserved page 2: pages for its place is 2, must be 1");
  CHECK(bench.with(bench.final_page(3), bench.open_page(waiting)) ==
        "layer 0, head 0, reserved page 3: bytes is 2048, must be 704");
}

TEST_CASE("what there is room for has its pages") {
  const ReservedBench bench;
  CHECK(bench.with(bench.open_page(bench.waiting()), static_cast<Page*>(nullptr)) ==
        "layer 0, head 0, page within the room 5: pages of the ring is 0, must be 1");
  kvq::Sequence::PageList& list = bench.list();
  kvq::Sequence::PageList tight(list.get_allocator());
  tight.reserve(list.size());
  tight.assign(list.begin(), list.end());
  list.swap(tight);
  CHECK(complaint(bench.sequence()) ==
        "layer 0, head 0, page within the room 7: pages that the list has memory for is 5, must be at least 8");
  list.swap(tight);
  CHECK(complaint(bench.sequence()) == "");
}

TEST_CASE("a sequence has one of everything for each layer, list and run, and nothing left of an append") {
  const ReservedBench bench;
  const auto without_last = [&bench](auto& vector) {
    auto last = std::move(vector.back());
    vector.pop_back();
    std::string said = complaint(bench.sequence());
    vector.push_back(std::move(last));
    return said;
  };
  const auto with_one_more = [&bench](auto& vector) {
    vector.emplace_back();
    std::string said = complaint(bench.sequence());
    vector.pop_back();
    return said;
  };
  kvq::Sequence& sequence = bench.sequence();
  CHECK(without_last(sequence.layers) == "sequence: number of layers is 1, must be 2");
  CHECK(without_last(sequence.lists) == "sequence: number of lists is 3, must be 4");
  CHECK(without_last(sequence.runs) == "sequence: number of runs that lists fill is 3, must be 4");
  CHECK(without_last(sequence.reserves) == "sequence: number of reserves is 1, must be 2");
  CHECK(with_one_more(sequence.published_lists) == "sequence: number of published lists is 1, must be 0");
  CHECK(with_one_more(sequence.published_counts) == "sequence: number of published counts is 1, must be 0");
  CHECK(with_one_more(sequence.append_memory.changes) ==
        "sequence: number of things left of an append is 1, must be 0");
  CHECK(bench.with(bench.cache().eviction.budget, 64) == "sequence: number of observations is 0, must be 1");
  kvq::Allocator& allocator = bench.cache().allocator;
  sequence.mirrors.emplace_back(nullptr, kvq::Deleter<kvq::LayerMirror>(allocator, 0, 0));
  CHECK(complaint(sequence) == "sequence: number of mirrors is 1, must be 2");
  sequence.mirrors.clear();
  CHECK(complaint(sequence) == "");
}

TEST_CASE("what a sequence holds is part of what its cache says") {
  const Bench bench;
  kvq::Cache::Account& account = bench.cache().account;
  CHECK(bench.with(account.scalars, int64_t{600} * 32 - 1) ==
        "sequence: number of scalars is 19200, must be at most 19199");
  CHECK(bench.with(account.float16_pages, uint64_t{11}) == "sequence: number of FP16 pages is 12, must be at most 11");
  CHECK(bench.with(account.sealed_pages, uint64_t{7}) == "sequence: number of sealed pages is 8, must be at most 7");
  CHECK(bench.with(account.float16_bytes, uint64_t{100}) ==
        "sequence: bytes of FP16 pages is 24576, must be at most 100");
  CHECK(bench.with(account.sealed_bytes, uint64_t{100}) ==
        "sequence: bytes of sealed pages is 5632, must be at most 100");
  const kvq_test::Sequence fork = bench.sequence_handle.fork();
  CHECK(bench.with(account.shared_pages, uint64_t{19}) == "sequence: number of shared pages is 20, must be at most 19");
}

TEST_CASE("a cache's numbers fit each other and the memory that was taken") {
  const Bench bench;
  kvq::Cache::Account& account = bench.cache().account;
  CHECK(complaint(bench.cache()) == "");
  CHECK(complaint_with(bench.cache(), account.sealed_bytes, uint64_t{5633}) ==
        "cache: bytes of pages is 30209, must be at most 30208");
  CHECK(complaint_with(bench.cache(), account.sealed_bytes, uint64_t{5631}) ==
        "cache: bytes allocated for pages is 30208, must be at most 30207");
  CHECK(complaint_with(bench.cache(), account.float16_pages, uint64_t{13}) ==
        "cache: bytes of FP16 pages in use is 26624, must be at most 24576");
  CHECK(complaint_with(bench.cache(), account.sealed_pages, uint64_t{9}) ==
        "cache: bytes of sealed pages in use is 6336, must be at most 5632");
  CHECK(complaint_with(bench.cache(), account.shared_pages, uint64_t{21}) ==
        "cache: number of shared pages is 21, must be at most 20");
  CHECK(complaint_with(bench.cache(), account.scalars, int64_t{640} * 32 + 1) ==
        "cache: number of scalars is 20481, must be at most 20480");
  kvq::Allocator& allocator = bench.cache().allocator;
  const uint64_t beside_pages = allocator.bytes() - bench.cache().page_allocator.bytes();
  allocator.unreserve(beside_pages + 1);
  CHECK(complaint(bench.cache()).find("cache: bytes for pages and work space is ") == 0);
  allocator.reserve(beside_pages + 1);
  CHECK(complaint_with(bench.cache(), account.scalars, int64_t{-1}) ==
        "cache: number of scalars too many given back is 1, must be at most 0");
}

TEST_CASE("functions of the C API report what is broken, in builds that look") {
  const Bench bench;
  kvq_cache* cache = bench.handle;
  kvq_sequence* sequence = bench.pointer;
  const auto reported = [](kvq_status otherwise) { return kvq::kChecksInvariants ? KVQ_E_INTERNAL : otherwise; };
  bench.sequence().layers[0].last_position = 200;
  kvq_sequence* fork = nullptr;
  CHECK(kvq_sequence_reserve(cache, sequence, 0, nullptr) == reported(KVQ_OK));
  CHECK(kvq_sequence_truncate(cache, sequence, 1000, nullptr) == reported(KVQ_E_ARGUMENT));
  CHECK(kvq_sequence_fork(cache, sequence, &fork, nullptr) == reported(KVQ_OK));
  CHECK((fork == nullptr) == kvq::kChecksInvariants);
  kvq_sequence_destroy(fork);
}

}  // namespace invariants_test
