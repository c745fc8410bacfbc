// Every format that a policy may name, as keys and as values, on every device. The library lists the names, so new
// formats are covered automatically.
#include "conversation.h"
#include "support/handles.h"
#include "support/random.h"
#include "support/reference.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace conformance::format_walk_test {
namespace {

using kvq_test::Cache;
using kvq_test::Context;
using kvq_test::Sequence;

constexpr int32_t kFullPages = 5;
constexpr int32_t kTokens = kFullPages * kPageSlots + 7;
constexpr int32_t kQueries = 3;
const Shape kShape{.q_heads = 4, .kv_heads = 2, .head_dim = 64, .n_layers = 1};

std::string policy_of(bool of_keys, const std::string& format) {
  return "version: 1\nkeys: " + (of_keys ? format : "fp16") + "\nvalues: " + (of_keys ? "fp16" : format) + "\n";
}

// The reason why a policy cannot be loaded; empty if it can.
std::string refusal(kvq_context* context, const std::string& policy) {
  try {
    static_cast<void>(kvq_test::Policy::load(context, policy));
    return "";
  } catch (const kvq_test::Error& failure) {
    return failure.what();
  }
}

// The names in the error message for an unknown format, also with valid suffixes.
std::vector<std::string> format_names() {
  const Context context = kvq_test::make_context();
  const std::string answer = refusal(context, policy_of(true, "nonsense"));
  constexpr std::string_view kBefore = "must be one of ";
  const size_t begin = answer.find(kBefore);
  const size_t end = answer.find(", with +hadamard", begin);
  REQUIRE(begin != std::string::npos);
  REQUIRE(end != std::string::npos);
  std::vector<std::string> names;
  for (size_t at = begin + kBefore.size(); at < end; at = answer.find(", ", at) + 2) {
    const std::string name = answer.substr(at, answer.find(", ", at) - at);
    names.push_back(name);
    for (const char* ending : {"+hadamard", "+nocentre", "+centres"}) {
      if (refusal(context, policy_of(true, name + ending)).empty()) names.push_back(name + ending);
    }
  }
  return names;
}

// Creates a cache, with a codebook if the library requires one.
Cache make_cache_of(kvq_context* context, const std::string& policy) {
  try {
    return kvq_test::make_cache(context, kShape.options(), policy);
  } catch (const kvq_test::Error& failure) {
    const bool asks = std::string_view(failure.what()).find("options->codebook is NULL") != std::string_view::npos;
    if (failure.status() != KVQ_E_ARGUMENT || !asks) throw;
  }
  return kvq_test::make_cache(context, kShape.options(), policy, {.stages = 2, .codes = 8, .bits = 1});
}

// The cache, or nothing if the device has no kernels for the format, which only a GPU may lack.
std::optional<Cache> cache_or_refusal(kvq_context* context, const std::string& backend, const std::string& policy) {
  try {
    return make_cache_of(context, policy);
  } catch (const kvq_test::Error& failure) {
    CHECK(backend == std::string(kvq_test::kCuda));
    CHECK(failure.status() == KVQ_E_UNSUPPORTED);
    CHECK(std::string_view(failure.what()).find(backend) != std::string_view::npos);
    return std::nullopt;
  }
}

// Largest difference of attention to the last tokens, [kQueries, q_heads, head_dim], from float64 over the decoded
// tokens, relative to the largest value.
double attention_error(const Sequence& sequence, std::span<const float> q, std::span<const float> out) {
  const auto dim = static_cast<size_t>(kShape.head_dim);
  const kvq_test::Rotation rotation = kvq_test::Rotation::from(kShape.options());
  const kvq_test::AttentionRule rule{.scale = 1.0 / std::sqrt(static_cast<double>(dim))};
  double worst = 0.0;
  double largest = 0.0;
  for (int32_t head = 0; head < kShape.kv_heads; ++head) {
    const kvq_test::Decoded stored = kvq_test::decode(sequence, 0, head, 0, kTokens, kShape.head_dim);
    std::vector<int32_t> positions(static_cast<size_t>(kTokens));
    std::iota(positions.begin(), positions.end(), 0);
    CHECK(stored.positions == positions);
    for (const float v : stored.v) largest = std::max(largest, std::fabs(double{v}));
    const int32_t group = kShape.q_heads / kShape.kv_heads;
    for (int32_t query = 0; query < kQueries; ++query) {
      for (int32_t q_head = head * group; q_head < (head + 1) * group; ++q_head) {
        const size_t row = static_cast<size_t>(query * kShape.q_heads + q_head) * dim;
        const int32_t position = kTokens - kQueries + query;
        std::vector<double> rotated(q.begin() + static_cast<ptrdiff_t>(row),
                                    q.begin() + static_cast<ptrdiff_t>(row + dim));
        rotation.apply(rotated, position);
        const std::vector<double> expected =
            kvq_test::attention<float>(rule, rotated, position, stored.k, stored.v, positions);
        for (size_t c = 0; c < dim; ++c) worst = std::max(worst, std::fabs(double{out[row + c]} - expected[c]));
      }
    }
  }
  return worst / largest;
}

// Requirements of a cache in this format.
void walk(const Cache& cache, const std::string& format) {
  Sequence sequence(cache);
  Text(kShape, kTokens, 7).append(sequence, 0, kTokens, 37);
  const int64_t sealed = format == "fp16" ? 0 : (kFullPages - cache.describe().sink) * kShape.kv_heads;
  CHECK(static_cast<int64_t>(sequence.usage().sealed_pages) == sealed);

  const std::vector<float> q = queries(kShape, kQueries);
  const std::vector<float> out = attend_last(kShape, cache, {sequence}, kQueries, q);
  // Bound for any kernel's rounding; attention_error.cpp has the limit of each.
  CHECK(attention_error(sequence, q, out) <= 1e-2);

  const kvq_test::Snapshot snapshot = sequence.save();
  Sequence loaded = kvq_test::Sequence::load(cache, snapshot);
  CHECK(loaded.save() == snapshot);
  CHECK(attend_last(kShape, cache, {loaded}, kQueries, q) == out);
}

}  // namespace

TEST_CASE(
    "every format that policies name is stored, attended to, decoded, saved and loaded, or the device refuses it") {
  const std::string why = kvq_test::why_no_cuda();
  if (!why.empty()) MESSAGE("not on a GPU: ", why);
  const std::vector<std::string> names = format_names();
  CHECK(names.size() >= all_formats().size() + gain_shape_formats().size());
  for (const std::string& backend : kvq_test::backends()) {
    const Context context = kvq_test::make_context(backend.c_str());
    for (const std::string& format : names) {
      for (const bool of_keys : {true, false}) {
        CAPTURE(backend);
        CAPTURE(format);
        CAPTURE(of_keys);
        const auto cache = cache_or_refusal(context, backend, policy_of(of_keys, format));
        if (cache.has_value()) walk(*cache, format);
      }
    }
  }
}

}  // namespace conformance::format_walk_test
