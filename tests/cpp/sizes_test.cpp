// Spans of the wrong size are refused before the call, with their names, sizes and expected sizes.
#include <array>
#include <limits>

#include "model.h"

namespace sizes_test {
namespace {

struct Bench {
  kvq::Context context;
  kvq::Cache cache = small_cache(context);
  kvq::Sequence sequence{cache};
  std::vector<float> x = tokens(3, 1);
  std::vector<float> q = queries(3, 2);
  std::vector<float> out = q;
};

}  // namespace

TEST_CASE("appends name the span that does not fit") {
  Bench bench;
  const auto two = std::span<const float>(bench.x).first(2 * kTokenScalars);
  CHECK_FAILS(KVQ_E_ARGUMENT, "k has 96 elements instead of 64 (n * layer.kv_heads * layer.key_dim)",
              bench.sequence.append(0, 2, bench.x, two));
  CHECK_FAILS(KVQ_E_ARGUMENT, "v has 64 elements instead of 96", bench.sequence.append(0, 3, bench.x, two));
  CHECK_FAILS(KVQ_E_ARGUMENT, "positions has 1 elements instead of 2 (n)",
              bench.sequence.append(0, 2, two, two, std::array{0}));
  CHECK_FAILS(KVQ_E_ARGUMENT, "k has 0 elements instead of -1", bench.sequence.append(0, -1, {}, {}));
  CHECK_FAILS(KVQ_E_ARGUMENT, "positions",
              bench.sequence.append(0, 3, bench.x.data(), bench.x.data(), KVQ_F32, std::array{0}));
  CHECK_FAILS(KVQ_E_ARGUMENT, "layer", bench.sequence.append(1, 2, two, two));  // refused by the library
  CHECK(bench.sequence.length(0) == 0);
}

TEST_CASE("batches name the span that does not fit") {
  Bench bench;
  bench.sequence.append(0, 3, bench.x, bench.x);
  const auto list = kvq::pointers(bench.sequence);
  const auto attend = [&](const kvq::AttendBatch& batch) { bench.cache.attend(0, batch); };
  const auto one = std::span<const float>(bench.q).first(kQueryScalars);
  const auto out = std::span(bench.out).first(kQueryScalars);
  CHECK_FAILS(KVQ_E_ARGUMENT, "sequences is empty", attend({.q = one, .output = out}));
  CHECK_FAILS(KVQ_E_ARGUMENT, "q has 192 elements instead of 64 (sum(query_counts) * layer.q_heads * layer.key_dim)",
              attend({.sequences = list, .q = bench.q, .output = out}));
  CHECK_FAILS(KVQ_E_ARGUMENT, "output has 192 elements instead of 64",
              attend({.sequences = list, .q = one, .output = bench.out}));
  CHECK_FAILS(KVQ_E_ARGUMENT, "query_counts has 2 elements instead of 1 (as many as sequences)",
              attend({.sequences = list, .query_counts = std::array{1, 1}, .q = one, .output = out}));
  CHECK_FAILS(KVQ_E_ARGUMENT, "query_positions has 2 elements instead of 1",
              attend({.sequences = list, .query_positions = std::array{1, 1}, .q = one, .output = out}));
  CHECK_FAILS(KVQ_E_ARGUMENT, "lse has 192 elements instead of 4",
              attend({.sequences = list, .q = one, .output = out, .lse = bench.out}));
  CHECK_FAILS(KVQ_E_ARGUMENT, "sinks has 192 elements instead of 4 (layer.q_heads)",
              attend({.sequences = list, .q = one, .output = out, .sinks = bench.q}));
  CHECK_FAILS(KVQ_E_ARGUMENT, "q has 64 elements instead of at least 67",
              attend({.sequences = list, .q = one, .output = out, .q_head_stride = kHeadDim + 1}));
  CHECK_FAILS(
      KVQ_E_ARGUMENT, "q has 64 elements instead of at least 9223372036854775807",
      attend({.sequences = list, .q = one, .output = out, .q_head_stride = std::numeric_limits<int64_t>::max()}));
  CHECK_FAILS(KVQ_E_ARGUMENT, "q_head_stride",
              attend({.sequences = list, .q = one, .output = out, .q_head_stride = -1}));
  CHECK_FAILS(KVQ_E_ARGUMENT, "sequences is empty", attend({.sequences = {}, .q = {}, .output = {}}));
  CHECK_FAILS(KVQ_E_ARGUMENT, "k has 96 elements instead of 32",
              bench.cache.append(0, {.sequences = kvq::pointers(bench.sequence), .k = bench.x, .v = bench.x}));
  CHECK(bench.sequence.length(0) == 3);
}

TEST_CASE("decoding and matrices name the span that does not fit") {
  Bench bench;
  bench.sequence.append(0, 3, bench.x, bench.x);
  std::vector<float> k(2 * kHeadDim), v(3 * kHeadDim);
  CHECK_FAILS(KVQ_E_ARGUMENT, "k has 32 elements instead of 48 (n * layer.key_dim)",
              bench.sequence.decode(0, 0, 0, 3, k, v));
  CHECK_FAILS(KVQ_E_ARGUMENT, "slot", bench.sequence.decode(0, 0, 1, 3, v, v));  // refused by the library

  const auto options = kvq::initialised<qp_quantize_options>();
  const std::vector<float> w(size_t{2} * 64, 1.0F);
  CHECK_FAILS(KVQ_E_ARGUMENT, "w has 128 elements instead of 192 (rows * columns)",
              kvq::Matrix::quantize(bench.context, options, w, 3, 64));
  CHECK_FAILS(KVQ_E_ARGUMENT, "w has 128 elements instead of 9223372036854775807",
              kvq::Matrix::quantize(bench.context, options, w, int64_t{1} << 62, 64));
  const kvq::Matrix matrix = kvq::Matrix::quantize(bench.context, options, w, 2, 64);
  std::vector<float> x(64), y(3);
  CHECK_FAILS(KVQ_E_ARGUMENT, "y has 3 elements instead of 2 (batch * matrix.rows)", matrix.linear(x, 1, y));
  CHECK_FAILS(KVQ_E_ARGUMENT, "x has 64 elements instead of 128", matrix.linear(x, 2, y));
  CHECK_FAILS(KVQ_E_ARGUMENT, "w has 64 elements instead of 128", matrix.dequantize(0, 2, x));
}

}  // namespace sizes_test
