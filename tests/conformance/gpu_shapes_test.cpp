// Pages of heads of every shape on a GPU, against those on a CPU from the same tokens. Angles may differ in a float's
// last bit, so a byte of a rotated key differs now and then.
#include "gpu.h"
#include "support/handles.h"
#include "support/tensor.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

namespace conformance::gpu_shapes_test {
namespace {

using kvq_test::Cache;
using kvq_test::Context;
using kvq_test::Sequence;
using kvq_test::Snapshot;
using kvq_test::Tensor;

constexpr int32_t kTokens = 70;
constexpr int32_t kHeads = 2;
constexpr double kMostDifferent = 0.004;  // share of bytes, of rotated keys

struct Head {
  int32_t keys;
  int32_t values;
  bool is_latent = false;
  kvq_rope rope = KVQ_ROPE_NONE;
  int32_t begin = 0;
  int32_t rotated = 0;  // 0: all from `begin` on

  kvq_layer_shape shape() const {
    auto shape = kvq_test::initialised<kvq_layer_shape>();
    shape.n_layers = 1;
    shape.key_dim = keys;
    shape.value_dim = values;
    shape.values_are_key_prefix = is_latent ? 1 : 0;
    shape.rope = rope;
    shape.rotary_begin = begin;
    shape.rotary_dim = rotated;
    return shape;
  }
};

const std::vector<Head> kShapes = {
    {192, 128}, {64, 256}, {512, 512},    {576, 512}, {.keys = 576, .values = 512, .is_latent = true},
    {24, 8},    {8, 264},  {72, 64, true}};

const std::vector<Head> kRotated = {
    {128, 128, false, KVQ_ROPE_HALF, 64},          {192, 128, false, KVQ_ROPE_HALF, 128},
    {576, 512, true, KVQ_ROPE_INTERLEAVED, 512},   {512, 512, false, KVQ_ROPE_HALF},
    {80, 96, false, KVQ_ROPE_INTERLEAVED, 10, 20}, {80, 40, false, KVQ_ROPE_HALF, 14, 20},
    {88, 80, true, KVQ_ROPE_HALF, 82, 6}};

const std::vector<std::string> kFormats = {"fp16", "int8", "int4", "int4+hadamard", "int3", "int2",
                                           "gs4",  "gs2",  "gt2"};

struct Tokens {
  Tokens(const Head& head, kvq_dtype dtype_)
      : dtype(dtype_),
        key_row(kHeads * head.keys),
        value_row(head.is_latent ? 0 : kHeads * head.values),
        k(numbers(key_row, 1), dtype),
        v(numbers(value_row, 2), dtype) {}

  static std::vector<float> numbers(int32_t row, uint64_t seed) {
    return kvq_test::normal_tensor(static_cast<size_t>(kTokens) * static_cast<size_t>(row), seed);
  }

  void append(Sequence& sequence, int32_t begin, int32_t end, std::vector<int32_t> positions = {}) const {
    kvq_test::append(sequence, 0, end - begin, k.at(static_cast<size_t>(begin * key_row)),
                     value_row > 0 ? v.at(static_cast<size_t>(begin * value_row)) : nullptr, dtype, positions);
  }

  kvq_dtype dtype;
  int32_t key_row;
  int32_t value_row;
  Tensor k;
  Tensor v;
};

struct Case {
  Head head;
  std::string format;
  bool calibrated = false;
  kvq_dtype dtype = KVQ_F32;

  Cache cache(const Context& context) const {
    kvq_cache_options options = kvq_test::cache_options(kHeads, kHeads, 64);
    const kvq_layer_shape shape = head.shape();
    options.shapes = &shape;
    options.n_shapes = 1;
    return kvq_test::make_cache(context, options,
                                "version: 1\nkeys: " + format + "\nvalues: " + format +
                                    "\nsink: 0\nrecent: 2\ncalibrate: " + (calibrated ? "first" : "none") + "\n");
  }
};

// Stored bytes of tokens that came at once, in parts, after a fork, in preallocated pages, and with gaps.
std::vector<Snapshot> stored(const char* device, const Case& c) {
  const Context context = kvq_test::make_context(device);
  const Cache cache = c.cache(context);
  const Tokens tokens(c.head, c.dtype);
  Sequence whole(cache);
  tokens.append(whole, 0, kTokens);
  Sequence parts(cache);
  for (const auto& [begin, end] : {std::pair{0, 3}, {3, 40}, {40, 41}, {41, kTokens}}) tokens.append(parts, begin, end);
  Sequence fork = parts.fork();
  fork.truncate(kTokens - 3);
  tokens.append(fork, kTokens - 3, kTokens);
  Sequence reserved(cache);
  reserved.reserve(kTokens);
  tokens.append(reserved, 0, 33);
  tokens.append(reserved, 33, kTokens);
  Sequence sparse(cache);
  std::vector<int32_t> positions(static_cast<size_t>(kTokens));
  for (int32_t i = 0; i < kTokens; ++i) positions[static_cast<size_t>(i)] = 3 * i + i / 5;
  tokens.append(sparse, 0, kTokens, positions);
  std::vector<Snapshot> all;
  for (Sequence* each : {&whole, &parts, &fork, &reserved, &sparse}) {
    each->reserve(0);  // finds scales
    all.push_back(each->save());
  }
  return all;
}

void check(const std::string& device, const Case& c) {
  CAPTURE(device);
  CAPTURE(c.head.keys);
  CAPTURE(c.head.values);
  CAPTURE(c.head.is_latent);
  CAPTURE(c.format);
  CAPTURE(c.calibrated);
  CAPTURE(static_cast<int>(c.dtype));
  const std::vector<Snapshot> on_gpu = stored(device.c_str(), c);
  const std::vector<Snapshot> on_cpu = stored(nullptr, c);
  const double most = c.head.rope == KVQ_ROPE_NONE ? 0.0 : kMostDifferent;
  for (size_t i = 0; i < on_gpu.size(); ++i) {
    CAPTURE(i);
    REQUIRE(on_gpu[i].size() == on_cpu[i].size());
    size_t different = 0;
    for (size_t j = 0; j < on_gpu[i].size(); ++j) different += on_gpu[i][j] != on_cpu[i][j] ? 1 : 0;
    CHECK(static_cast<double>(different) <= most * static_cast<double>(on_cpu[i].size()));
  }
}

// What pages hold of a head.
struct Numbers {
  Numbers(const Sequence& sequence, const Head& head, int32_t of_kv)
      : k(static_cast<size_t>(kTokens * head.keys)), v(static_cast<size_t>(kTokens * head.values)) {
    sequence.decode(0, of_kv, 0, kTokens, k, v, {});
  }

  std::vector<float> k;
  std::vector<float> v;
};

// The largest difference, over the largest of `expected`.
double largest_difference(const std::vector<float>& expected, const std::vector<float>& found) {
  double largest = 0.0;
  double difference = 0.0;
  for (size_t i = 0; i < expected.size(); ++i) {
    largest = std::max(largest, std::abs(double{expected[i]}));
    difference = std::max(difference, std::abs(double{found[i]} - expected[i]));
  }
  return difference / largest;
}

}  // namespace

TEST_CASE("a GPU stores heads of every shape in the bytes of a CPU, however tokens come") {
  if (skips()) return;
  for (const Head& head : kShapes) {
    for (const std::string& format : kFormats) check(kvq_test::kCuda, {head, format});
  }
}

TEST_CASE("a GPU rotates any channels of keys as a CPU does") {
  if (skips()) return;
  for (const Head& head : kRotated) {
    for (const kvq_dtype dtype : {KVQ_F32, KVQ_F16, KVQ_BF16}) check(kvq_test::kCuda, {head, "fp16", false, dtype});
    check(kvq_test::kCuda, {head, "gs4"});
  }
}

TEST_CASE("a GPU scales the channels of heads of every shape as a CPU does") {
  if (skips()) return;
  for (const Head& head : {kShapes[0], kShapes[4], kRotated[4]}) check(kvq_test::kCuda, {head, "gs4", true});
}

TEST_CASE("a GPU with little shared memory stores wide heads in the bytes of a CPU") {
  if (skips()) return;
  for (const Head& head : {kShapes[2], kShapes[4]}) {
    for (const char* format : {"fp16", "int4+hadamard", "gt2"})
      check(std::string(kvq_test::kCuda) + "/sm_86", {head, format});
  }
}

TEST_CASE("a snapshot of heads of any shape moves from a CPU to a GPU and back") {
  if (skips()) return;
  for (const Head& head : kShapes) {
    const Case c{head, "gs2"};
    const Snapshot snapshot = stored(nullptr, c).front();
    const Context context = kvq_test::make_context(kvq_test::kCuda);
    const Cache cache = c.cache(context);
    CHECK((Sequence::load(cache, snapshot).save() == snapshot));
  }
}

// Recoding moves what other formats hold to FP16 pages first.
TEST_CASE("a GPU recodes heads of every shape to what a CPU's pages hold") {
  if (skips()) return;
  for (const Head& head : kShapes) {
    for (const std::string& format : kFormats) {
      const Case c{head, format};
      CAPTURE(head.keys);
      CAPTURE(head.values);
      CAPTURE(head.is_latent);
      CAPTURE(format);
      const Context cpu = kvq_test::make_context();
      const Context gpu = kvq_test::make_context(kvq_test::kCuda);
      const Cache expected_cache = c.cache(cpu);
      const Cache cache = c.cache(gpu);
      const Snapshot snapshot = stored(nullptr, c).front();
      const Sequence expected = Sequence::load(expected_cache, snapshot);
      Sequence sequence = Sequence::load(cache, snapshot);
      sequence.recode(kvq_test::load_plain_policy(gpu, "fp16"));
      for (int32_t of_kv = 0; of_kv < kHeads; ++of_kv) {
        const Numbers before(expected, head, of_kv);
        const Numbers after(sequence, head, of_kv);
        // Codes, gains and page means are multiplied and added in FP16.
        CHECK(largest_difference(before.k, after.k) < 0x1p-9);
        CHECK(largest_difference(before.v, after.v) < 0x1p-9);
      }
    }
  }
}

}  // namespace conformance::gpu_shapes_test
