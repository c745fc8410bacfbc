// M-RoPE: a cache that rotates by three position streams, beside one without RoPE whose keys and queries were rotated
// in float64.
#include "accuracy.h"
#include "support/handles.h"
#include "support/random.h"
#include "support/reference.h"
#include "support/tensor.h"

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <string>

namespace conformance::stream_positions_test {
namespace {

constexpr int32_t kHeadDim = 64;
constexpr int32_t kQueryHeads = 4;
constexpr int32_t kKvHeads = 2;

struct Layout {
  const char* name;
  kvq_rope pairing;
  int32_t rotary_dim;
  std::array<int32_t, 3> sections;
  bool interleaved;
};

// Sections of Qwen2-VL, Qwen3-VL and GLM-4.1V, in proportion; channels that are not rotated; an empty section.
const Layout kLayouts[] = {{"in a row", KVQ_ROPE_HALF, 0, {8, 12, 12}, false},
                           {"alternating", KVQ_ROPE_HALF, 0, {12, 10, 10}, true},
                           {"neighbours", KVQ_ROPE_INTERLEAVED, 0, {8, 12, 12}, false},
                           {"part of a head", KVQ_ROPE_HALF, 32, {8, 4, 4}, true},
                           {"no height", KVQ_ROPE_HALF, 0, {16, 0, 16}, false}};

// The stream that turns a pair, from the models' definitions: sections in a row, or every third pair from the stream's
// number on, as many as its section has.
size_t stream_of(const Layout& layout, size_t pair) {
  if (!layout.interleaved) {
    size_t stream = 0;
    for (size_t end = 0; stream < 2 && pair >= (end += static_cast<size_t>(layout.sections[stream])); ++stream) {
    }
    return stream;
  }
  for (size_t stream = 1; stream < 3; ++stream) {
    for (size_t i = 0; i < static_cast<size_t>(layout.sections[stream]); ++i) {
      if (pair == stream + 3 * i) return stream;
    }
  }
  return 0;
}

kvq_cache_options options_of(const Layout& layout) {
  kvq_cache_options options = kvq_test::cache_options(kQueryHeads, kKvHeads, kHeadDim, 1);
  options.rope = layout.pairing;
  options.rotary_dim = layout.rotary_dim;
  options.mrope_section = layout.sections.data();
  options.mrope_interleaved = layout.interleaved ? 1 : 0;
  return options;
}

std::vector<float> rotated(const Layout& layout, const kvq_test::Tensor& x, size_t heads,
                           const std::vector<int32_t>& positions) {
  const kvq_test::Rotation all = kvq_test::Rotation::from(options_of(layout));
  std::vector<float> result(x.size());
  for (size_t row = 0; row < x.size() / kHeadDim; ++row) {
    std::vector<double> head(kHeadDim);
    for (size_t c = 0; c < kHeadDim; ++c) head[c] = x[row * kHeadDim + c];
    std::vector<double> turned = head;
    for (size_t stream = 0; stream < 3; ++stream) {
      std::vector<double> by_stream = head;
      all.apply(by_stream, positions[row / heads * 3 + stream]);
      for (size_t pair = 0; pair < all.inv_freq.size(); ++pair) {
        if (stream_of(layout, pair) != stream) continue;
        turned[all.first_channel(pair)] = by_stream[all.first_channel(pair)];
        turned[all.second_channel(pair)] = by_stream[all.second_channel(pair)];
      }
    }
    for (size_t c = 0; c < kHeadDim; ++c) result[row * kHeadDim + c] = static_cast<float>(turned[c]);
  }
  return result;
}

// Text, an image of `height` rows whose tokens share a temporal position, and text behind it.
std::vector<int32_t> image_positions(int32_t n, int32_t before, int32_t height, int32_t width) {
  std::vector<int32_t> positions;
  for (int32_t i = 0; i < n; ++i) {
    const int32_t of_image = i - before;
    if (of_image >= 0 && of_image < height * width) {
      positions.insert(positions.end(), {before, before + of_image / width, before + of_image % width});
    } else {
      const int32_t position = of_image < 0 ? i : i - height * width + std::max(height, width);
      positions.insert(positions.end(), {position, position, position});
    }
  }
  return positions;
}

struct Tokens {
  kvq_test::Tensor k;
  kvq_test::Tensor v;
  kvq_test::Tensor q;
  std::vector<int32_t> positions;  // [n, 3]; empty: not given
};

// What two sequences, the second of a third of the tokens, give: by extension in two calls, or appended and attended
// to.
std::vector<float> run(const kvq_test::Cache& cache, const Tokens& tokens, bool extends) {
  const auto n = static_cast<int32_t>(tokens.k.size() / (kKvHeads * kHeadDim));
  kvq_test::Sequence first(cache);
  kvq_test::Sequence second(cache);
  kvq_sequence* const sequences[] = {first.get(), second.get()};
  std::vector<float> out(tokens.q.size());
  int32_t at = 0;
  for (const int32_t call : {n / 2, n - n / 2}) {
    const int32_t counts[] = {call - call / 3, call / 3};
    const auto from = static_cast<size_t>(at);
    const int32_t* positions = tokens.positions.empty() ? nullptr : tokens.positions.data() + 3 * from;
    const void* k = tokens.k.at(from * kKvHeads * kHeadDim);
    const void* v = tokens.v.at(from * kKvHeads * kHeadDim);
    const void* q = tokens.q.at(from * kQueryHeads * kHeadDim);
    float* to = out.data() + from * kQueryHeads * kHeadDim;
    if (extends) {
      auto batch = kvq_test::initialised<kvq_extend_batch>();
      batch.n_sequences = 2;
      batch.sequences = sequences;
      batch.token_counts = counts;
      batch.k = k;
      batch.v = v;
      batch.q = q;
      batch.output = to;
      batch.dtype = tokens.k.dtype();
      batch.q_dtype = tokens.q.dtype();
      batch.rope_positions = positions;
      kvq_test::extend(cache, 0, batch);
    } else {
      auto appended = kvq_test::initialised<kvq_append_batch>();
      appended.n_sequences = 2;
      appended.sequences = sequences;
      appended.token_counts = counts;
      appended.k = k;
      appended.v = v;
      appended.dtype = tokens.k.dtype();
      appended.rope_positions = positions;
      kvq_test::append_sequences(cache, 0, appended);
      auto batch = kvq_test::initialised<kvq_attend_batch>();
      batch.n_sequences = 2;
      batch.sequences = sequences;
      batch.query_counts = counts;
      batch.q = q;
      batch.output = to;
      batch.q_dtype = tokens.q.dtype();
      batch.rope_positions = positions;
      kvq_test::attend(cache, 0, batch);
    }
    at += call;
  }
  return out;
}

double relative_error(const std::vector<float>& x, const std::vector<float>& expected) {
  double difference = 0.0;
  double size = 0.0;
  for (size_t i = 0; i < x.size(); ++i) {
    difference += std::pow(double{x[i]} - double{expected[i]}, 2);
    size += std::pow(double{expected[i]}, 2);
  }
  return std::sqrt(difference / size);
}

Tokens tokens_of(int32_t n, kvq_dtype dtype) {
  const auto scalars = static_cast<size_t>(n) * kHeadDim;
  return {kvq_test::Tensor(kvq_test::normal_tensor(scalars * kKvHeads, 1), dtype),
          kvq_test::Tensor(kvq_test::normal_tensor(scalars * kKvHeads, 2), dtype),
          kvq_test::Tensor(kvq_test::normal_tensor(scalars * kQueryHeads, 3), dtype), image_positions(n, 20, 6, 9)};
}

void check_beside_rotated(const Layout& layout, const char* format, kvq_dtype dtype, int32_t n, bool extends) {
  CAPTURE(std::string(layout.name));
  CAPTURE(std::string(format));
  CAPTURE(dtype);
  CAPTURE(extends);
  const Tokens tokens = tokens_of(n, dtype);
  const Tokens given{{rotated(layout, tokens.k, kKvHeads, tokens.positions), KVQ_F32},
                     {kvq_test::Tensor(std::vector<float>(tokens.v.size()), KVQ_F32)},
                     {rotated(layout, tokens.q, kQueryHeads, tokens.positions), KVQ_F32},
                     {}};
  Tokens plain = given;
  for (size_t i = 0; i < tokens.v.size(); ++i) plain.v.set(i, static_cast<float>(tokens.v[i]));
  for (const std::string& isa : kvq_test::backends()) {
    CAPTURE(isa);
    const kvq_test::Context context = kvq_test::make_context(isa.c_str());
    const kvq_test::Cache cache = kvq_test::make_cache(context, options_of(layout), format);
    kvq_cache_options without = options_of(layout);
    without.rope = KVQ_ROPE_NONE;
    without.rotary_dim = 0;
    without.mrope_section = nullptr;
    without.mrope_interleaved = 0;
    const kvq_test::Cache twin = kvq_test::make_cache(context, without, format);
    const double error = relative_error(run(cache, tokens, extends), run(twin, plain, extends));
    // Keys differ by FP32 rounding, which moves a few FP16 numbers and fewer codes.
    CHECK(error < (std::string(format) == "fp16" ? 5e-4 : 5e-3));
  }
}

}  // namespace

TEST_CASE("keys and queries turn by three position streams") {
  for (const Layout& layout : kLayouts) {
    for (const kvq_dtype dtype : {KVQ_F32, KVQ_F16, KVQ_BF16}) {
      for (const bool extends : {false, true}) check_beside_rotated(layout, "fp16", dtype, 150, extends);
    }
  }
}

TEST_CASE("pages of any format hold keys that turned by three position streams") {
  for (const char* format : {"int8", "int4", "int2+hadamard", "gs4", "gs2", "gt2"}) {
    for (const bool extends : {false, true}) check_beside_rotated(kLayouts[0], format, KVQ_F32, 300, extends);
  }
}

TEST_CASE("without positions of streams, tokens turn by their own") {
  Tokens tokens = tokens_of(150, KVQ_F16);
  tokens.positions.clear();
  for (const std::string& isa : kvq_test::backends()) {
    CAPTURE(isa);
    const kvq_test::Context context = kvq_test::make_context(isa.c_str());
    const Layout& layout = kLayouts[0];
    kvq_cache_options plain = options_of(layout);
    plain.mrope_section = nullptr;
    const kvq_test::Cache usual = kvq_test::make_cache(context, plain, "gs4");
    const kvq_test::Cache streams = kvq_test::make_cache(context, options_of(layout), "gs4");
    CHECK(run(streams, tokens, true) == run(usual, tokens, true));
  }
}

}  // namespace conformance::stream_positions_test
