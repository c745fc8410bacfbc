// Pages with trained centres sealed on a GPU, against those sealed on a CPU from the same tokens. Angles may differ in
// a float's last bit, so an FP16 key differs now and then, and with it a code or a gain; a wrong centre, position or
// offset would change half of the bytes.
#include "conversation.h"
#include "gpu.h"

#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

namespace conformance::centred_cuda_test {
namespace {

using kvq_test::CentreCounts;
using kvq_test::Snapshot;

constexpr double kMostDifferent = 0.004;  // share of differing bytes

// How tokens arrive.
struct Way {
  std::string name;
  int32_t tokens;
  int32_t chunk;  // tokens per call
  bool gaps = false;
};

const std::vector<Way> kWays = {{"a prompt", 700, 700},
                                {"one by one", 140, 1},
                                {"odd chunks", 500, 77},
                                {"a prompt with gaps", 700, 700, true},
                                {"chunks with gaps", 400, 13, true}};

Snapshot sealed(const char* isa, const kvq_cache_options& options, const std::string& policy,
                const CentreCounts& counts, const Way& way, kvq_dtype dtype = KVQ_F32) {
  const kvq_test::Context context = kvq_test::make_context(isa);
  const kvq_test::Cache cache = kvq_test::make_cache(context, options, policy, counts);
  kvq_test::Sequence sequence(cache);
  const auto scalars = static_cast<size_t>(options.kv_heads) * static_cast<size_t>(options.head_dim);
  const auto n = static_cast<size_t>(way.tokens);
  const kvq_test::Tensor k(kvq_test::normal_tensor(n * scalars, 11), dtype);
  const kvq_test::Tensor v(kvq_test::normal_tensor(n * scalars, 12), dtype);
  std::vector<int32_t> positions;
  kvq_test::Random random(3);
  int32_t next = 5;
  for (int32_t i = 0; i < way.tokens; ++i) {
    positions.push_back(next);
    // Some pages have gaps, some do not; some gaps are between pages.
    const bool gap = way.gaps && i / 64 % 2 == 0 && random.integer(0, 5) == 0;
    next += gap ? random.integer(2, 400) : 1;
  }
  for (int32_t begin = 0; begin < way.tokens; begin += way.chunk) {
    const int32_t count = std::min(way.chunk, way.tokens - begin);
    const size_t offset = static_cast<size_t>(begin) * scalars;
    kvq_test::append(sequence, 0, count, k.at(offset), v.at(offset), dtype,
                     std::span(positions).subspan(static_cast<size_t>(begin), static_cast<size_t>(count)));
  }
  return sequence.save();
}

void check(const kvq_cache_options& options, const std::string& policy, const CentreCounts& counts, const Way& way,
           kvq_dtype dtype = KVQ_F32) {
  const Snapshot on_gpu = sealed(kvq_test::kCuda, options, policy, counts, way, dtype);
  const Snapshot on_cpu = sealed(nullptr, options, policy, counts, way, dtype);
  REQUIRE(on_gpu.size() == on_cpu.size());
  size_t different = 0;
  for (size_t i = 0; i < on_gpu.size(); ++i) different += on_gpu[i] != on_cpu[i] ? 1 : 0;
  CAPTURE(policy);
  CAPTURE(counts.name());
  CAPTURE(way.name);
  CAPTURE(options.head_dim);
  CAPTURE(static_cast<int>(options.rope));
  CHECK(static_cast<double>(different) <= kMostDifferent * static_cast<double>(on_cpu.size()) + 8.0);
}

kvq_cache_options shape(int32_t head_dim, kvq_rope rope = KVQ_ROPE_HALF, int32_t rotary_dim = 0, int32_t kv_heads = 2) {
  kvq_cache_options options = kvq_test::cache_options(kv_heads, kv_heads, head_dim);
  options.rope = rope;
  options.rotary_dim = rotary_dim;
  return options;
}

}  // namespace

TEST_CASE("a GPU seals every kind of page around centres as a CPU does, however tokens come") {
  if (skips()) return;
  for (const char* policy :
       {"gs4+centres", "gs3+centres", "gs2+centres", "gs1+centres", "gt3+centres", "gt2+centres", "gt1+centres",
        "gs2/gs1+centres", "gs3+centres/gs2", "gs2+centres/fp16", "int4/gt1+centres"}) {
    for (const Way& way : kWays) check(shape(64), policy, {}, way);
  }
}

TEST_CASE("a GPU finds the nearest of any number of centres as a CPU does") {
  if (skips()) return;
  for (const CentreCounts& counts :
       {CentreCounts{1, 1}, CentreCounts{16, 17}, CentreCounts{256, 1}, CentreCounts{2, 255}, CentreCounts{200, 256}}) {
    for (const char* policy : {"gs2+centres", "gt1+centres"}) {
      for (const int32_t head_dim : {64, 128}) {
        for (const Way& way : {kWays[0], kWays[2], kWays[4]}) check(shape(head_dim), policy, counts, way);
      }
    }
  }
}

TEST_CASE("a GPU rotates centres as a CPU does at every head size and in every pairing") {
  if (skips()) return;
  for (const int32_t head_dim : {8, 24, 32, 80, 96, 120, 128, 192, 256}) {
    for (const kvq_rope rope : {KVQ_ROPE_NONE, KVQ_ROPE_HALF, KVQ_ROPE_INTERLEAVED}) {
      for (const int32_t rotary_dim : {0, head_dim / 2}) {
        if (rope == KVQ_ROPE_NONE && rotary_dim > 0) continue;
        for (const Way& way : {kWays[0], kWays[3]}) check(shape(head_dim, rope, rotary_dim, 3), "gs2+centres", {}, way);
      }
    }
  }
}

TEST_CASE("a GPU seals tokens of every element type around centres as a CPU does") {
  if (skips()) return;
  for (const kvq_dtype dtype : {KVQ_F32, KVQ_F16, KVQ_BF16}) {
    check(shape(128), "gs2+centres", {64, 32}, kWays[0], dtype);
  }
}

TEST_CASE("a snapshot of pages around centres moves from a GPU to a CPU and back") {
  if (skips()) return;
  const kvq_cache_options options = shape(80);
  const kvq_test::Context gpu = kvq_test::make_context(kvq_test::kCuda);
  const kvq_test::Context cpu = kvq_test::make_context();
  for (const char* policy : {"gs3+centres", "gt2+centres", "fp16/gs1+centres"}) {
    CAPTURE(policy);
    const Snapshot snapshot = sealed(nullptr, options, policy, {}, kWays[3]);
    const kvq_test::Cache there = kvq_test::make_cache(gpu, options, policy);
    const kvq_test::Cache here = kvq_test::make_cache(cpu, options, policy);
    const kvq_test::Sequence moved = kvq_test::Sequence::load(there, snapshot);
    CHECK(moved.save() == snapshot);
    const kvq_test::Sequence back = kvq_test::Sequence::load(here, moved.save());
    CHECK(back.save() == snapshot);
    const kvq_test::Decoded a = kvq_test::decode(moved, 0, 1, 0, 700, 80);
    const kvq_test::Decoded b = kvq_test::decode(back, 0, 1, 0, 700, 80);
    CHECK(a.k == b.k);
    CHECK(a.v == b.v);
  }
}

}  // namespace conformance::centred_cuda_test
