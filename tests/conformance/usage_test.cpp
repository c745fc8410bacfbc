#include "conversation.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>
#include <string>

namespace conformance::usage_test {

using kvq_test::Cache;
using kvq_test::Context;
using kvq_test::Sequence;

namespace {

// Bytes of one side of a sealed page of 32 tokens without padding: codes; for integers an FP16 scale and minimum per
// key channel and per value group; for gain-shape codes one byte per token's gain, the largest gain in FP16, and the
// mean of keys in bytes with its scale.
double sealed_side_bytes(const PageFormat& format, bool of_keys, int group, int32_t head_dim) {
  const double codes = kPageSlots * head_dim * format.bits / 8.0;
  const int groups = (head_dim + group - 1) / group;
  if (format.integer()) return codes + (of_keys ? 4.0 * head_dim : 4.0 * kPageSlots * groups);
  if (format.gain_shape()) return codes + kPageSlots + 2.0 + (of_keys && format.page_mean ? head_dim + 2.0 : 0.0);
  return codes;
}

double sealed_page_bytes(const Storage& storage, int32_t head_dim) {
  return sealed_side_bytes(PageFormat::parse(storage.keys), true, storage.group, head_dim) +
         sealed_side_bytes(PageFormat::parse(storage.values), false, storage.group, head_dim);
}

// Largest padding of a page with head size 128 so that the next side is aligned: none for integers and FP16; for
// gain-shape codes less than 8 bytes per side, or less than a cache line if the other side begins at one.
double page_padding(const Storage& storage) {
  const bool of_keys = PageFormat::parse(storage.keys).gain_shape();
  const bool of_values = PageFormat::parse(storage.values).gain_shape();
  return of_keys && of_values ? 2.0 * 7.0 : of_keys || of_values ? 2.0 * 63.0 : 0.0;
}

kvq_usage usage_after(const Storage& storage, const Shape& shape, int32_t n, int32_t chunk) {
  const Context context = kvq_test::make_context();
  const Cache cache = make_cache(context, shape.options(), storage);
  Sequence sequence(cache);
  Text(shape, n, 1).append(sequence, 0, n, chunk);
  return sequence.usage();
}

// Allocations that the hooks see.
struct Counters {
  std::atomic<uint64_t> allocated{0};  // in total
  std::atomic<int64_t> live{0};
  std::atomic<int64_t> peak{0};
};

void* count_allocation(void* user, size_t bytes, size_t alignment) {
  auto* counters = static_cast<Counters*>(user);
  counters->allocated += bytes;
  const int64_t live = counters->live += static_cast<int64_t>(bytes);
  if (live > counters->peak) counters->peak = live;
  return ::operator new (bytes, std::align_val_t{alignment}, std::nothrow);
}

void count_free(void* user, void* pointer, size_t bytes, size_t alignment) {
  static_cast<Counters*>(user)->live -= static_cast<int64_t>(bytes);
  ::operator delete (pointer, std::align_val_t{alignment});
}

}  // namespace

TEST_CASE("the pages of a 128-channel head take the published number of bytes") {
  CHECK_EQ(sealed_page_bytes(Storage::uniform("int4"), 128), 5120.0);
  CHECK_EQ(sealed_page_bytes(Storage::uniform("int2"), 128), 3072.0);
  CHECK_EQ(sealed_page_bytes(Storage::uniform("fp16"), 128), 16384.0);
  CHECK_EQ(sealed_page_bytes(Storage::uniform("gs2+nocentre"), 128), 2 * (1024.0 + 34.0));
  CHECK_EQ(sealed_page_bytes(Storage::uniform("gt1"), 128), 2 * (512.0 + 34.0) + 130.0);
  const Shape shape{.head_dim = 128, .n_layers = 1};
  for (const Storage& storage : all_storages()) {
    if (storage.sealed_pages(320) == 0) continue;
    CAPTURE(storage.name());
    const kvq_usage usage = usage_after(storage, shape, 320, 320);
    CHECK(static_cast<double>(usage.sealed_bytes) <=
          static_cast<double>(usage.sealed_pages) * (sealed_page_bytes(storage, 128) + page_padding(storage)));
  }
}

// An FP16 side may pad the channels of each slot to whole vectors of 16.
TEST_CASE("sealed pages of any head size are padded by a cache line per part at most") {
  for (const int32_t head_dim : {8, 24, 64, 80, 96, 200, 256}) {
    for (const Storage& storage : all_storages()) {
      if (storage.sealed_pages(100) == 0) continue;
      CAPTURE(storage.name());
      CAPTURE(head_dim);
      const kvq_usage usage = usage_after(storage, {.head_dim = head_dim, .n_layers = 1}, 100, 100);
      const bool has_fp16_side = storage.keys == "fp16" || storage.values == "fp16";
      const double row_padding = has_fp16_side ? 2.0 * kPageSlots * ((head_dim + 15) / 16 * 16 - head_dim) : 0.0;
      const double bytes = static_cast<double>(usage.sealed_bytes) / static_cast<double>(usage.sealed_pages);
      CHECK(bytes >= sealed_page_bytes(storage, head_dim));
      CHECK(bytes <= sealed_page_bytes(storage, head_dim) + row_padding + 6 * 64);
    }
  }
}

// Pages in their final format may be preallocated, by at most an eighth; others may not. Each page also has 32
// positions of 4 bytes and a record of at most 128 bytes.
TEST_CASE("bits per scalar are those of the pages, plus positions and lists") {
  const Shape shape{.kv_heads = 2, .head_dim = 128, .n_layers = 2};
  constexpr int32_t kTokens = 2048;
  for (const Storage& storage : all_storages()) {
    for (const int32_t chunk : {kTokens, 100}) {
      CAPTURE(storage.name());
      CAPTURE(chunk);
      const kvq_usage usage = usage_after(storage, shape, kTokens, chunk);
      const double lists = shape.kv_heads * shape.n_layers;
      const double n_sealed = lists * storage.sealed_pages(kTokens);
      const double n_fp16 = lists * (kTokens / kPageSlots) - n_sealed;
      CHECK_EQ(static_cast<double>(usage.sealed_pages), n_sealed);
      CHECK_EQ(static_cast<double>(usage.fp16_pages), n_fp16);
      CHECK_EQ(usage.scalars, int64_t{2} * 128 * kTokens * shape.kv_heads * shape.n_layers);
      const double sealed_bytes = n_sealed * sealed_page_bytes(storage, 128);
      const double fp16_bytes = n_fp16 * 16384.0;
      const double ahead =
          n_sealed == 0 ? fp16_bytes / 8 : (sealed_bytes + n_sealed * page_padding(storage)) * 9 / 8 - sealed_bytes;
      CHECK(static_cast<double>(usage.sealed_bytes) >= sealed_bytes);
      CHECK(static_cast<double>(usage.sealed_bytes) <= sealed_bytes + (n_sealed == 0 ? 0.0 : ahead));
      CHECK(static_cast<double>(usage.fp16_bytes) >= fp16_bytes);
      CHECK(static_cast<double>(usage.fp16_bytes) <= fp16_bytes + (n_sealed == 0 ? ahead : 0.0));
      const double scalars = static_cast<double>(usage.scalars);
      CHECK(usage.bits_per_scalar >= 8.0 * (sealed_bytes + fp16_bytes) / scalars);
      CHECK(usage.bits_per_scalar <= 8.0 * (sealed_bytes + fp16_bytes + ahead) / scalars + 8.0 * 256.0 / 8192.0);
    }
  }
}

TEST_CASE("usage grows with every token and never with reading") {
  const Shape shape;
  const Context context = kvq_test::make_context();
  for (const std::string& policy : all_policies()) {
    CAPTURE(policy);
    const Cache cache = make_cache(context, shape.options(), policy);
    Sequence sequence(cache);
    const Text text(shape, 300, 1);
    kvq_usage previous = sequence.usage();
    CHECK_EQ(previous.scalars, 0);
    CHECK_EQ(previous.bits_per_scalar, 0.0);
    for (int32_t n = 0; n < 300; n += 10) {
      text.append(sequence, n, n + 10);
      const kvq_usage now = sequence.usage();
      CHECK(now.scalars - previous.scalars == int64_t{20} * 64 * shape.kv_heads * shape.n_layers);
      CHECK(now.sealed_bytes >= previous.sealed_bytes);
      CHECK(now.sealed_pages >= previous.sealed_pages);
      CHECK(now.sealed_pages + now.fp16_pages ==
            static_cast<uint64_t>((n + 10 + 31) / 32 * shape.kv_heads * shape.n_layers));
      const std::vector<float> q = queries(shape, 1);
      attend_last(shape, cache, {sequence}, 1, q);
      CHECK(sequence.usage().total_bytes == now.total_bytes);
      previous = now;
    }
  }
}

TEST_CASE("guessing and rolling back again and again takes no more memory") {
  const Shape shape{.n_layers = 1};
  const Context context = kvq_test::make_context();
  for (const char* policy : {"fp16", "version: 1\nkeys: int4\nvalues: int4\nrecent: 3\n"}) {
    CAPTURE(policy);
    const Cache cache = make_cache(context, shape.options(), policy);
    Sequence sequence(cache);
    const Text text(shape, 400, 1);
    text.append(sequence, 0, 330);
    uint64_t first_rounds = 0;
    for (int round = 0; round < 500; ++round) {
      const int32_t guess = 330 + 1 + round % 37;
      text.append(sequence, 330, guess);
      const uint64_t bytes = cache.usage().total_bytes;
      if (round < 100) {
        first_rounds = std::max(first_rounds, bytes);
      } else {
        REQUIRE(bytes <= first_rounds);
      }
      sequence.truncate(330);
    }
  }
}

// Appending to a long sequence must not copy stored tokens: total allocations grow in proportion to tokens.
TEST_CASE("a sequence of 131072 tokens is not copied while it grows") {
  constexpr int32_t kChunk = 512;
  constexpr int32_t kTokens = 131072;
  const Shape shape{.q_heads = 1, .kv_heads = 1, .head_dim = 64, .n_layers = 1};
  Counters counters;
  auto options = kvq_test::initialised<kvq_context_options>();
  options.allocate = count_allocation;
  options.free = count_free;
  options.allocator_user = &counters;
  {
    const Context context(options);
    const Cache cache = kvq_test::make_cache(context, shape.options(), "int4");
    Sequence sequence(cache);
    const std::vector<float> k = kvq_test::normal_tensor(kChunk * shape.token_scalars(), 1);
    const std::vector<float> v = kvq_test::normal_tensor(kChunk * shape.token_scalars(), 2);
    uint64_t at_half = 0;
    for (int32_t n = 0; n < kTokens; n += kChunk) {
      if (n == kTokens / 2) at_half = counters.allocated;
      kvq_test::append(sequence, 0, kChunk, k.data(), v.data());
    }
    const uint64_t first_half = at_half;
    const uint64_t second_half = counters.allocated - at_half;
    CHECK(static_cast<double>(second_half) <= 1.25 * static_cast<double>(first_half));
    // A page is allocated in FP16 and again when it is sealed; lists and positions are small in comparison. Each call
    // works on one page in FP16 and on one of its sides in floats.
    const double page = 32 * 64 * 4.0 + sealed_page_bytes(Storage::uniform("int4"), 64);
    const double work = 32 * 64 * 4.0 + 32 * 64 * 4.0;
    CHECK(static_cast<double>(counters.allocated) <= 1.25 * page * (kTokens / kPageSlots) + work * (kTokens / kChunk));
    // Peak: the memory kept in the end plus one chunk of FP16 pages.
    CHECK(static_cast<double>(counters.peak) <=
          1.1 * static_cast<double>(counters.live) + 2.0 * kChunk * 64 * 4.0 + 65536.0);
    CHECK_EQ(sequence.length(0), kTokens);
    const kvq_test::Decoded last = kvq_test::decode(sequence, 0, 0, kTokens - 1, 1, 64);
    CHECK_EQ(last.positions[0], kTokens - 1);
  }
  CHECK_EQ(counters.live.load(), 0);
}

}  // namespace conformance::usage_test
