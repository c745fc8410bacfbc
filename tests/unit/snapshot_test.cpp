// The loader behind the checksum: damaged snapshots with a corrected checksum.
#include <doctest/doctest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "io/snapshot_layout.h"
#include "kvq.h"

namespace snapshot_test {
namespace {

constexpr int32_t kTokens = 70;
constexpr int32_t kHeadDim = 16;

struct Bench {
  kvq_context* context = nullptr;
  kvq_policy* policy = nullptr;
  kvq_cache* cache = nullptr;

  int32_t head_dim;

  explicit Bench(const char* format = "int4", int32_t dim = kHeadDim) : head_dim(dim) {
    REQUIRE(kvq_context_create(nullptr, &context, nullptr) == KVQ_OK);
    REQUIRE(kvq_policy_load(context, format, std::strlen(format), &policy, nullptr) == KVQ_OK);
    kvq_cache_options options;
    kvq_cache_options_init(&options, sizeof(options));
    options.n_layers = options.kv_heads = 1;
    options.q_heads = 2;
    options.head_dim = head_dim;
    REQUIRE(kvq_cache_create(context, &options, policy, &cache, nullptr) == KVQ_OK);
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;
  ~Bench() {
    kvq_cache_destroy(cache);
    kvq_policy_destroy(policy);
    kvq_context_destroy(context);
  }

  std::vector<std::byte> snapshot() const {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    std::vector<float> k(size_t{kTokens} * static_cast<size_t>(head_dim));
    for (float& x : k) x = normal(random);
    std::vector<int32_t> positions(kTokens);
    for (int32_t i = 0; i < kTokens; ++i) positions[static_cast<size_t>(i)] = 2 * i;
    kvq_sequence* sequence = nullptr;
    REQUIRE(kvq_sequence_create(cache, &sequence, nullptr) == KVQ_OK);
    REQUIRE(kvq_append(cache, sequence, 0, kTokens, k.data(), k.data(), KVQ_F32, positions.data(), nullptr) == KVQ_OK);
    size_t size = 0;
    REQUIRE(kvq_sequence_save(cache, sequence, nullptr, 0, &size, nullptr) == KVQ_OK);
    std::vector<std::byte> bytes(size);
    REQUIRE(kvq_sequence_save(cache, sequence, bytes.data(), size, &size, nullptr) == KVQ_OK);
    kvq_sequence_destroy(sequence);
    return bytes;
  }

  /// Status of loading; a loaded sequence must attend, and save the same bytes.
  kvq_status load(const std::vector<std::byte>& bytes, std::string* message = nullptr) const {
    kvq_sequence* sequence = nullptr;
    kvq_error error;
    kvq_error_init(&error, sizeof(error));
    const kvq_status status = kvq_sequence_load(cache, bytes.data(), bytes.size(), &sequence, &error);
    if (status != KVQ_OK) {
      CHECK(sequence == nullptr);
      if (message != nullptr) *message = error.message;
      return status;
    }
    const kvq_sequence* sequences[] = {sequence};
    const std::vector<float> q(size_t{2} * static_cast<size_t>(head_dim), 0.5F);
    std::vector<float> out(q.size());
    kvq_attend_batch batch;
    kvq_attend_batch_init(&batch, sizeof(batch));
    batch.n_sequences = 1;
    batch.sequences = sequences;
    batch.q = q.data();
    batch.output = out.data();
    CHECK(kvq_attend(cache, 0, &batch, nullptr) == KVQ_OK);
    std::vector<std::byte> saved(bytes.size());
    size_t size = 0;
    CHECK(kvq_sequence_save(cache, sequence, saved.data(), saved.size(), &size, nullptr) == KVQ_OK);
    CHECK(size == bytes.size());
    CHECK((saved == bytes));
    kvq_sequence_destroy(sequence);
    return status;
  }
};

void mend_checksum(std::vector<std::byte>& bytes) {
  const size_t end = bytes.size() - sizeof(uint64_t);
  const uint64_t sum = kvq::checksum(std::span<const std::byte>(bytes).first(end));
  std::memcpy(bytes.data() + end, &sum, sizeof(sum));
}

template <typename T>
std::vector<std::byte> with(std::vector<std::byte> bytes, size_t offset, T value) {
  std::memcpy(bytes.data() + offset, &value, sizeof(value));
  mend_checksum(bytes);
  return bytes;
}

constexpr size_t kLayerRecord = sizeof(kvq::io::SnapshotHeader);
constexpr size_t kPageCount = kLayerRecord + sizeof(kvq::io::LayerRecord);
constexpr size_t kFirstPage = kPageCount + sizeof(int64_t);

}  // namespace

TEST_CASE("a snapshot of another version is refused as such") {
  const Bench bench;
  std::vector<std::byte> bytes = bench.snapshot();
  const uint32_t other = kvq::io::kSeveralSequences + 1;
  CHECK(bench.load(with(bytes, offsetof(kvq::io::SnapshotHeader, version), other)) == KVQ_E_MISMATCH);
  CHECK(bench.load(bytes) == KVQ_OK);
}

TEST_CASE("fields that contradict each other are refused although the checksum is right") {
  const Bench bench;
  const std::vector<std::byte> bytes = bench.snapshot();
  using kvq::io::PageRecord;
  CHECK(bench.load(with<int32_t>(bytes, kLayerRecord, kTokens + 1)) == KVQ_E_MISMATCH);  // as if one had been evicted
  CHECK(bench.load(with<int32_t>(bytes, kLayerRecord, -1)) == KVQ_E_FORMAT);
  CHECK(bench.load(with<int64_t>(bytes, kPageCount, -1)) == KVQ_E_FORMAT);
  CHECK(bench.load(with<int64_t>(bytes, kPageCount, int64_t{1} << 62)) == KVQ_E_FORMAT);
  CHECK(bench.load(with<int64_t>(bytes, kPageCount, 2)) == KVQ_E_MISMATCH);  // the same
  CHECK(bench.load(with<int32_t>(bytes, kFirstPage + offsetof(PageRecord, count), 0)) == KVQ_E_FORMAT);
  CHECK(bench.load(with<int32_t>(bytes, kFirstPage + offsetof(PageRecord, count), 33)) == KVQ_E_FORMAT);
  CHECK(bench.load(with<int32_t>(bytes, kFirstPage + offsetof(PageRecord, first_position), -5)) == KVQ_E_FORMAT);
  CHECK(bench.load(with<uint32_t>(bytes, kFirstPage + offsetof(PageRecord, has_positions), 2)) == KVQ_E_FORMAT);
  CHECK(bench.load(with<uint8_t>(bytes, kFirstPage + offsetof(PageRecord, keys), 9)) == KVQ_E_MISMATCH);
  // The second position of the first page, made equal to the first.
  CHECK(bench.load(with<int32_t>(bytes, kFirstPage + sizeof(PageRecord) + sizeof(int32_t), 0)) == KVQ_E_FORMAT);
}

TEST_CASE("pages rotated in blocks of channels are refused as such where kvq rotates across them") {
  for (const char* const format : {"int4+hadamard", "gs4+nocentre"}) {
    CAPTURE(format);
    const Bench bench(format, 24);
    std::vector<std::byte> bytes = bench.snapshot();
    CHECK(bench.load(bytes) == KVQ_OK);
    bytes[kFirstPage + offsetof(kvq::io::PageRecord, keys) + offsetof(kvq::io::SideRecord, flags)] = std::byte{1};
    mend_checksum(bytes);
    std::string message;
    CHECK(bench.load(bytes, &message) == KVQ_E_MISMATCH);
    CHECK(message.find("rotated in blocks of 8 channels") != std::string::npos);
    CHECK(message.find("heads of 24") != std::string::npos);
  }
}

TEST_CASE("any word of a snapshot of several sequences may be wrong: it is refused, or means what it says") {
  const Bench bench("gs4");
  const std::vector<std::byte> one = bench.snapshot();
  kvq_sequence* saved[2] = {};
  REQUIRE(kvq_sequence_load(bench.cache, one.data(), one.size(), &saved[0], nullptr) == KVQ_OK);
  const uint32_t state[] = {7, 5, 3};
  REQUIRE(kvq_sequence_put_state(bench.cache, saved[0], 0, 32, state, 12, nullptr) == KVQ_OK);
  REQUIRE(kvq_sequence_fork(bench.cache, saved[0], &saved[1], nullptr) == KVQ_OK);
  REQUIRE(kvq_sequence_put_state(bench.cache, saved[1], 0, 33, state, 8, nullptr) == KVQ_OK);
  const std::vector<float> k(size_t{5} * kHeadDim, 0.25F);
  REQUIRE(kvq_append(bench.cache, saved[1], 0, 5, k.data(), k.data(), KVQ_F32, nullptr, nullptr) == KVQ_OK);
  const auto save = [&bench](kvq_sequence* const* sequences) {
    size_t size = 0;
    REQUIRE(kvq_cache_save(bench.cache, sequences, 2, nullptr, 0, &size, nullptr) == KVQ_OK);
    std::vector<std::byte> bytes(size);
    REQUIRE(kvq_cache_save(bench.cache, sequences, 2, bytes.data(), size, &size, nullptr) == KVQ_OK);
    return bytes;
  };
  const std::vector<std::byte> good = save(saved);
  CHECK(bench.load(good) == KVQ_E_MISMATCH);
  int refused = 0;
  for (size_t at = 0; at + sizeof(uint32_t) <= good.size() - sizeof(uint64_t); at += sizeof(uint32_t)) {
    for (const uint32_t word : {0U, 1U, 2U, 3U, 33U, 0x7FFFFFFFU, 0xFFFFFFFFU}) {
      const std::vector<std::byte> bytes = with(good, at, word);
      kvq_sequence* loaded[2] = {};
      if (kvq_cache_load(bench.cache, bytes.data(), bytes.size(), loaded, 2, nullptr, nullptr) != KVQ_OK) {
        CHECK((loaded[0] == nullptr && loaded[1] == nullptr));
        ++refused;
        continue;
      }
      CHECK_MESSAGE((save(loaded) == bytes), "at ", at, " word ", word);
      for (kvq_sequence* each : loaded) kvq_sequence_destroy(each);
    }
  }
  CHECK(refused > 300);
  for (kvq_sequence* each : saved) kvq_sequence_destroy(each);
}

TEST_CASE(
    "any word of a snapshot may be replaced: it is refused or gives a sequence that works and is saved the same") {
  const Bench bench;
  const std::vector<std::byte> bytes = bench.snapshot();
  int refused = 0;
  for (size_t offset = 0; offset + sizeof(uint64_t) < bytes.size(); offset += 2) {
    for (const uint16_t value : {uint16_t{0}, uint16_t{0x0101}, uint16_t{0x7FFF}, uint16_t{0xFFFF}}) {
      refused += bench.load(with(bytes, offset, value)) != KVQ_OK ? 1 : 0;
    }
  }
  CHECK(refused > 0);
}

}  // namespace snapshot_test
