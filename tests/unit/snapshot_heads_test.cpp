// Snapshots with pages that span heads, assembled from several snapshots: the checksum is right, but the heads' lists
// do not match.
#include <doctest/doctest.h>

#include <cstring>
#include <string>
#include <vector>

#include "io/snapshot_layout.h"
#include "support/codebook.h"
#include "support/handles.h"
#include "support/random.h"

namespace snapshot_heads_test {
namespace {

using kvq_test::Cache;
using kvq_test::Sequence;
using kvq_test::Snapshot;

constexpr int32_t kTokens = 70;  // two pages with codes and one of FP16, after a gap of positions
constexpr int32_t kHeads = 2;
constexpr int32_t kHeadDim = 16;
constexpr size_t kFirstList = sizeof(kvq::io::SnapshotHeader) + sizeof(kvq::io::LayerRecord);

struct Bench {
  explicit Bench(kvq_scope scope, const std::string& policy = "commvq")
      : context(kvq_test::make_context()),
        cache(kvq_test::make_cache(context, kvq_test::cache_options(kHeads, kHeads, kHeadDim), policy,
                                   {.stages = 2, .codes = 8, .bits = 1, .scope = scope, .norms = scope})) {}

  Snapshot snapshot() const {
    Sequence sequence(cache);
    const std::vector<float> x = kvq_test::normal_tensor(size_t{kTokens} * kHeads * kHeadDim, 1);
    std::vector<int32_t> positions(kTokens);
    for (int32_t i = 0; i < kTokens; ++i) positions[static_cast<size_t>(i)] = i < 64 ? i : 100 + i;
    kvq_test::append(sequence, 0, kTokens, x.data(), x.data(), KVQ_F32, positions);
    return sequence.save();
  }

  kvq_status load(const Snapshot& bytes, std::string* message = nullptr) const {
    try {
      static_cast<void>(kvq_test::Sequence::load(cache, bytes));
      return KVQ_OK;
    } catch (const kvq_test::Error& failure) {
      if (message != nullptr) *message = failure.what();
      return failure.status();
    }
  }

  kvq_test::Context context;
  Cache cache;
};

Snapshot mended(Snapshot bytes) {
  const uint64_t size = bytes.size();
  std::memcpy(bytes.data() + offsetof(kvq::io::SnapshotHeader, total_bytes), &size, sizeof(size));
  const size_t end = bytes.size() - sizeof(uint64_t);
  const uint64_t sum = kvq::checksum(std::span<const std::byte>(bytes).first(end));
  std::memcpy(bytes.data() + end, &sum, sizeof(sum));
  return bytes;
}

// The two heads' lists have the same size.
size_t list_bytes(const Snapshot& bytes) { return (bytes.size() - kFirstList - sizeof(uint64_t)) / kHeads; }

Snapshot with_second_list_of(const Snapshot& bytes, const Snapshot& other) {
  Snapshot result(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(kFirstList + list_bytes(bytes)));
  result.insert(result.end(), other.begin() + static_cast<ptrdiff_t>(kFirstList + list_bytes(other)), other.end());
  return mended(result);
}

// The record of the second head's page 1 has another first position.
Snapshot with_moved_page(Snapshot bytes, size_t page_bytes, int32_t position) {
  const size_t record = kFirstList + list_bytes(bytes) + sizeof(int64_t) + sizeof(kvq::io::PageRecord) + page_bytes;
  const size_t place = record + offsetof(kvq::io::PageRecord, first_position);
  int32_t found = 0;
  std::memcpy(&found, bytes.data() + place, sizeof(found));
  REQUIRE(found == 32);
  std::memcpy(bytes.data() + place, &position, sizeof(position));
  return mended(bytes);
}

// Two stages of 64 indices of 3 bits, 16 channels of 32 bits, and the numbers of a page twice.
constexpr size_t page_bytes(kvq_scope scope) { return 2 * 24 + 64 + (scope == KVQ_SCOPE_LAYER ? 2 * 32 : 2 * 64); }

}  // namespace

TEST_CASE("pages that span heads are refused unless all heads have them at the same positions") {
  const Bench bench(KVQ_SCOPE_LAYER);
  const Snapshot bytes = bench.snapshot();
  std::string message;
  CHECK(bench.load(mended(bytes)) == KVQ_OK);
  CHECK(bench.load(with_moved_page(bytes, page_bytes(KVQ_SCOPE_LAYER), 32)) == KVQ_OK);
  CHECK(bench.load(with_moved_page(bytes, page_bytes(KVQ_SCOPE_LAYER), 40), &message) == KVQ_E_FORMAT);
  CHECK(message.find("head 1") != std::string::npos);

  const Bench of_heads(KVQ_SCOPE_HEAD);  // which pages need not agree
  CHECK(of_heads.load(with_moved_page(of_heads.snapshot(), page_bytes(KVQ_SCOPE_HEAD), 40)) == KVQ_OK);
}

TEST_CASE("pages that span heads are refused unless all heads have them in the same format") {
  const std::string policy = "version: 1\nkeys: commvq\nvalues: commvq\nsink: 1\n";
  const Snapshot coded = Bench(KVQ_SCOPE_LAYER).snapshot();
  const Snapshot with_sink = Bench(KVQ_SCOPE_LAYER, policy).snapshot();
  const Bench bench(KVQ_SCOPE_LAYER);
  CHECK(bench.load(with_second_list_of(coded, coded)) == KVQ_OK);
  CHECK(bench.load(with_second_list_of(with_sink, with_sink)) == KVQ_OK);
  CHECK(bench.load(with_second_list_of(coded, with_sink)) == KVQ_E_FORMAT);
  CHECK(bench.load(with_second_list_of(with_sink, coded)) == KVQ_E_FORMAT);

  const Bench of_heads(KVQ_SCOPE_HEAD);
  const Snapshot plain = Bench(KVQ_SCOPE_HEAD, policy).snapshot();
  CHECK(of_heads.load(with_second_list_of(of_heads.snapshot(), plain)) == KVQ_OK);
}

TEST_CASE("any word of a snapshot with codes may be replaced: it is refused or gives a sequence that works") {
  const Bench bench(KVQ_SCOPE_LAYER);
  const Snapshot bytes = bench.snapshot();
  const std::vector<float> q(size_t{kHeads} * kHeadDim, 0.5F);
  int refused = 0;
  for (size_t offset = sizeof(kvq::io::SnapshotHeader); offset + sizeof(uint64_t) < bytes.size(); offset += 2) {
    for (const uint16_t value : {uint16_t{0}, uint16_t{0x0101}, uint16_t{0x7FFF}, uint16_t{0xFFFF}}) {
      Snapshot changed = bytes;
      std::memcpy(changed.data() + offset, &value, sizeof(value));
      changed = mended(changed);
      if (bench.load(changed) != KVQ_OK) {
        ++refused;
        continue;
      }
      Sequence sequence = kvq_test::Sequence::load(bench.cache, changed);
      const kvq_sequence* list[] = {sequence};
      std::vector<float> out(q.size());
      auto batch = kvq_test::initialised<kvq_attend_batch>();
      batch.n_sequences = 1;
      batch.sequences = list;
      batch.q = q.data();
      batch.output = out.data();
      kvq_test::attend(bench.cache, 0, batch);
      CHECK(sequence.save() == changed);
    }
  }
  CHECK(refused > 0);
}

}  // namespace snapshot_heads_test
