// Gain-shape pages with trained centres: the definition in float64, other paths to the same bytes, and attention.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numbers>
#include <span>
#include <vector>

#include "centred_cache.h"
#include "formats/float16/layout.h"
#include "formats/gain_shape/context.h"
#include "formats/gain_shape/gain_shape.h"
#include "formats/gain_shape/layout.h"

namespace centred_test {
namespace {

using kvq::kPageSlots;
using kvq::Side;
using kvq_test::CentreCounts;
using kvq_test::OwnedCache;

constexpr int32_t kTokens = 101;

struct Shape {
  int32_t head_dim;
  kvq_rope rope = KVQ_ROPE_HALF;
  int32_t rotary_dim = 0;
};

kvq_cache_options options_of(const Shape& shape, int32_t q_heads = 2, int32_t kv_heads = 2) {
  kvq_cache_options options = kvq_test::cache_options(q_heads, kv_heads, shape.head_dim);
  options.rope = shape.rope;
  options.rotary_dim = shape.rotary_dim;
  return options;
}

/// Tokens near rotated centres, as in a model, so that the choice of the nearest one matters.
struct Tokens {
  Tokens(const kvq_cache_options& options, const kvq::ModelCentres& centres, int32_t step) {
    kvq_test::Random random(5);
    const kvq::LayerCentres& numbers = *centres.layers.front().numbers;
    for (int32_t token = 0; token < kTokens; ++token) {
      positions.push_back(7 + step * token + (step > 1 ? token % 2 : 0));
      for (int32_t head = 0; head < options.kv_heads; ++head) {
        add(random, numbers, Side::kKeys, centres.shape, head, k);
        add(random, numbers, Side::kValues, centres.shape, head, v);
      }
    }
  }

  std::vector<float> k;
  std::vector<float> v;
  std::vector<int32_t> positions;

 private:
  static void add(kvq_test::Random& random, const kvq::LayerCentres& numbers, Side side, const kvq::CentresShape& shape,
                  int32_t head, std::vector<float>& out) {
    const int32_t count = shape.centres(side);
    const auto which = static_cast<int32_t>(random.uniform() * count) + head * count;
    for (int32_t i = 0; i < shape.head_dim; ++i) {
      const float centre = count == 0 ? 0.0F : numbers.side(side)[static_cast<size_t>(which * shape.head_dim + i)];
      out.push_back(centre + static_cast<float>(random.normal()));
    }
  }
};

kvq_test::Sequence filled(kvq_cache* cache, const Tokens& tokens) {
  kvq_test::Sequence sequence(cache);
  kvq_test::append(sequence, 0, kTokens, tokens.k.data(), tokens.v.data(), KVQ_F32, tokens.positions);
  return sequence;
}

const kvq::Sequence& internal(kvq_sequence* sequence) { return *sequence; }

/// A key's centre by definition, in float64; null `first`: rotated by the position itself.
std::vector<double> turned_centre(const kvq::Cache& cache, const float* centre, int32_t position,
                                  const int32_t* first) {
  std::vector<double> out(centre, centre + cache.layer(0).head.keys);
  const kvq::Rope& rope = *cache.layer(0).rope;
  for (int32_t pair = 0; pair < rope.pairs(); ++pair) {
    const auto frequency = double{rope.inv_freq[static_cast<size_t>(pair)]};
    double angle = frequency * position;
    double factor = 1.0;
    if (first != nullptr && 32 * frequency <= 1.0) {
      angle = frequency * (*first + 15.5);
      // Σ cos((t − 15.5) θ) is a geometric sum.
      factor = std::sin(16 * frequency) / (32 * std::sin(frequency / 2));
    }
    const double x = centre[rope.first_channel(pair)];
    const double y = centre[rope.second_channel(pair)];
    out[static_cast<size_t>(rope.first_channel(pair))] = factor * (x * std::cos(angle) - y * std::sin(angle));
    out[static_cast<size_t>(rope.second_channel(pair))] = factor * (x * std::sin(angle) + y * std::cos(angle));
  }
  return out;
}

double distance(const double* a, const double* b, int32_t n) {
  double sum = 0.0;
  for (int32_t i = 0; i < n; ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return sum;
}

double product(const double* a, const double* b, int32_t n) {
  double sum = 0.0;
  for (int32_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

/// All slots of a head of a sequence, decoded by the reference.
std::vector<double> decoded(kvq_sequence* sequence, int32_t head, Side side) {
  kvq_cache* cache = kvq_sequence_cache(sequence);
  std::vector<float> rows(static_cast<size_t>(kTokens * cache->layer(0).head.keys));
  kvq_test::checked(kvq_sequence_decode, cache, sequence, 0, head, 0, kTokens,
                    side == Side::kKeys ? rows.data() : nullptr, side == Side::kValues ? rows.data() : nullptr,
                    nullptr);
  return {rows.begin(), rows.end()};
}

constexpr Shape kShapes[] = {{128}, {64, KVQ_ROPE_INTERLEAVED}, {40, KVQ_ROPE_HALF, 16}, {24, KVQ_ROPE_NONE}};
constexpr CentreCounts kCounts[] = {{1, 1}, {2, 5}, {256, 256}, {17, 1}};

}  // namespace

TEST_CASE("vectors are stored relative to the nearest centre, keys' rotated as the page says, without bias") {
  const kvq_test::Context context = kvq_test::make_context();
  for (const Shape& shape : kShapes) {
    CAPTURE(shape.head_dim);
    const kvq_cache_options options = options_of(shape);
    for (const CentreCounts counts : kCounts) {
      CAPTURE(counts.keys);
      const auto centres = kvq_test::random_centres(context, options, counts, 0.5);
      for (const int32_t step : {1, 2}) {
        CAPTURE(step);
        const Tokens tokens(options, *centres, step);
        const OwnedCache cache = kvq_test::make_centred_cache(context, options, "gs4+centres", centres);
        kvq_test::Sequence sequence = filled(cache.get(), tokens);
        const kvq_test::Cache plain(context, options, kvq_test::Policy::load(context, "fp16"));
        kvq_test::Sequence exact = filled(plain, tokens);
        const kvq::Sequence& held = internal(sequence);
        for (const Side side : {Side::kKeys, Side::kValues}) {
          const int32_t count = centres->shape.centres(side);
          for (int32_t head = 0; head < options.kv_heads; ++head) {
            const std::vector<double> found = decoded(sequence, head, side);
            const std::vector<double> given = decoded(exact, head, side);
            for (int32_t index = 1; index < 3; ++index) {  // the first one is a sink
              const kvq::Page& page = *held.list(0, head)[static_cast<size_t>(index)];
              REQUIRE(page.format()->keys.has_trained_centres());
              const std::byte* data = page.data + page.format()->offset(side);
              const auto where = kvq::side_layout(side, page.format()->side(side), shape.head_dim, count);
              CHECK(where.bytes() == kvq::side_bytes(side, *page.format()));
              for (int32_t slot = 0; slot < kPageSlots; ++slot) {
                const size_t row = static_cast<size_t>((index * kPageSlots + slot) * shape.head_dim);
                const int32_t own =
                    count > 1 ? static_cast<int32_t>(data[where.index_offset() + static_cast<size_t>(slot)]) : 0;
                REQUIRE(own < count);
                std::vector<double> chosen;
                double least = 1e300;
                for (int32_t i = 0; i < count; ++i) {
                  const float* centre = centres->layers[0].numbers->side(side).data() +
                                        static_cast<size_t>((head * count + i) * shape.head_dim);
                  std::vector<double> at(centre, centre + shape.head_dim);
                  if (side == Side::kKeys) {
                    at = turned_centre(*cache, centre, page.position(slot), step == 1 ? &page.first_position : nullptr);
                  }
                  least = std::min(least, distance(&given[row], at.data(), shape.head_dim));
                  if (i == own) chosen = at;
                }
                const double residual = distance(&given[row], chosen.data(), shape.head_dim);
                CHECK(residual <= 1.01 * least);
                std::vector<double> r(static_cast<size_t>(shape.head_dim));
                std::vector<double> coded(r.size());
                for (size_t i = 0; i < r.size(); ++i) {
                  r[i] = given[row + i] - chosen[i];
                  coded[i] = found[row + i] - chosen[i];
                }
                // Half a step of the gain.
                CHECK(product(coded.data(), r.data(), shape.head_dim) ==
                      doctest::Approx(residual).epsilon(std::numbers::ln2 / 64 + 1e-3));
                CHECK(distance(coded.data(), r.data(), shape.head_dim) < 0.1 * residual);
              }
            }
          }
        }
      }
    }
  }
}

TEST_CASE("every instruction set and number of threads encodes as the reference does") {
  for (const std::string& isa : kvq_test::cpu_isa_names()) {
    CAPTURE(isa);
    for (const int32_t threads : {1, 3}) {
      const kvq_test::Context context = kvq_test::make_context(isa.c_str(), threads);
      for (const Shape& shape : kShapes) {
        CAPTURE(shape.head_dim);
        const kvq_cache_options options = options_of(shape);
        for (const CentreCounts counts : kCounts) {
          const auto centres = kvq_test::random_centres(context, options, counts);
          for (const int32_t step : {1, 2}) {
            const Tokens tokens(options, *centres, step);
            for (const char* policy : {"gs2+centres", "gs3+centres", "gt2+centres"}) {
              CAPTURE(std::string(policy));
              const OwnedCache cache = kvq_test::make_centred_cache(context, options, policy, centres);
              const kvq_test::Cache plain(context, options, kvq_test::Policy::load(context, "fp16"));
              kvq_test::Sequence sequence = filled(cache.get(), tokens);
              kvq_test::Sequence exact = filled(plain, tokens);
              const kvq::Sequence& held = internal(sequence);
              for (int32_t head = 0; head < options.kv_heads; ++head) {
                const kvq::Page& page = *held.list(0, head)[1];
                const kvq::Page& original = *internal(exact).list(0, head)[1];
                for (const Side side : {Side::kKeys, Side::kValues}) {
                  std::vector<std::byte> expected(page.format()->bytes(side));
                  const std::byte* from = original.data + original.format()->offset(side);
                  std::byte* to = expected.data();
                  kvq::gain_shape::encode({.side = side,
                                           .format = *page.format(),
                                           .first_head = head,
                                           .float16 = {&from, 1},
                                           .out = {&to, 1},
                                           .used = page.count,
                                           .positions = {page.positions, page.first_position},
                                           .context = static_cast<const kvq::Cache&>(*cache).context(0)});
                  CHECK(std::equal(expected.begin(), expected.end(), page.data + page.format()->offset(side)));
                  CHECK(kvq::side_is_valid(side, *page.format(), expected.data()));
                }
              }
            }
          }
        }
      }
    }
  }
}

TEST_CASE("attention to pages around centres is that to what they decode to") {
  for (const std::string& isa : kvq_test::cpu_isa_names()) {
    CAPTURE(isa);
    const kvq_test::Context context = kvq_test::make_context(isa.c_str());
    for (const Shape& shape : kShapes) {
      CAPTURE(shape.head_dim);
      for (const int32_t group : {1, 3, 4, 7}) {
        CAPTURE(group);
        const kvq_cache_options options = options_of(shape, 2 * group, 2);
        for (const CentreCounts counts : kCounts) {
          CAPTURE(counts.keys);
          CAPTURE(counts.values);
          const auto centres = kvq_test::random_centres(context, options, counts, 1.0);
          for (const int32_t step : {1, 2}) {
            CAPTURE(step);
            const Tokens tokens(options, *centres, step);
            for (const char* policy : {"gs4+centres", "{keys: gs2+centres, values: gt2}",
                                       "{keys: gs2, values: gt1+centres}", "{keys: int8, values: gs4+centres}"}) {
              CAPTURE(std::string(policy));
              const std::string text = policy[0] == '{' ? "{version: 1, " + std::string(policy + 1) : policy;
              const OwnedCache cache = kvq_test::make_centred_cache(context, options, text, centres);
              kvq_test::Sequence sequence = filled(cache.get(), tokens);
              const int32_t dim = shape.head_dim;
              // Two queries, the first of which does not see all.
              kvq_test::Random random(9);
              std::vector<float> q;
              for (int32_t i = 0; i < 2 * options.q_heads * dim; ++i) q.push_back(static_cast<float>(random.normal()));
              const int32_t at[] = {tokens.positions[70], tokens.positions.back()};
              std::vector<float> out(q.size());
              auto batch = kvq_test::initialised<kvq_attend_batch>();
              kvq_sequence* const handle = sequence;
              const int32_t queries = 2;
              batch.sequences = &handle;
              batch.n_sequences = 1;
              batch.query_counts = &queries;
              batch.query_positions = at;
              batch.q = q.data();
              batch.q_dtype = KVQ_F32;
              batch.output = out.data();
              batch.output_dtype = KVQ_F32;
              kvq_test::attend(cache.get(), 0, batch);
              double miss = 0.0;
              double size = 0.0;
              for (int32_t head = 0; head < options.q_heads; ++head) {
                const std::vector<double> k = decoded(sequence, head / group, Side::kKeys);
                const std::vector<double> v = decoded(sequence, head / group, Side::kValues);
                for (int32_t query = 0; query < 2; ++query) {
                  const size_t row = static_cast<size_t>((query * options.q_heads + head) * dim);
                  const std::vector<double> rotated = turned_centre(*cache, q.data() + row, at[query], nullptr);
                  std::vector<double> expected(static_cast<size_t>(dim));
                  double sum = 0.0;
                  for (int32_t t = 0; t < kTokens && tokens.positions[static_cast<size_t>(t)] <= at[query]; ++t) {
                    const size_t token = static_cast<size_t>(t * dim);
                    const double weight = std::exp(product(rotated.data(), &k[token], dim) / std::sqrt(1.0 * dim));
                    sum += weight;
                    for (size_t i = 0; i < expected.size(); ++i) expected[i] += weight * v[token + i];
                  }
                  for (size_t i = 0; i < expected.size(); ++i) {
                    miss += std::pow(expected[i] / sum - double{out[row + i]}, 2);
                    size += std::pow(expected[i] / sum, 2);
                  }
                }
              }
              CHECK(std::sqrt(miss / size) < 0.02);
            }
          }
        }
      }
    }
  }
}

TEST_CASE("centres that there are not, and turns that nobody writes, are found in pages") {
  const kvq_test::Context context = kvq_test::make_context();
  const kvq_cache_options options = options_of({64});
  const auto centres = kvq_test::random_centres(context, options, {5, 5});
  const kvq::SideFormat side{.code = kvq::CodeType::gain_trellis(2), .centre = kvq::Centre::kTrained};
  const kvq::PageFormat format(side, side, 64, centres.get());
  for (const Side each : {Side::kKeys, Side::kValues}) {
    const auto where = kvq::side_layout(each, side, 64, 5);
    std::vector<std::byte> data(format.bytes(each));
    CHECK(kvq::side_is_valid(each, format, data.data()));
    data[where.index_offset() + 31] = std::byte{4};
    CHECK(kvq::side_is_valid(each, format, data.data()));
    data[where.index_offset() + 31] = std::byte{5};
    CHECK(!kvq::side_is_valid(each, format, data.data()));
    data[where.index_offset() + 31] = std::byte{0};
    if (each == Side::kValues) continue;
    data[where.slot_rotation_offset()] = std::byte{1};
    CHECK(kvq::side_is_valid(each, format, data.data()));
    data[where.slot_rotation_offset()] = std::byte{2};
    CHECK(!kvq::side_is_valid(each, format, data.data()));
  }
}

TEST_CASE("gains and means have scales that are not negative and finite, or a page is not valid") {
  const kvq_test::Context context = kvq_test::make_context();
  const kvq_cache_options options = options_of({64});
  const auto centres = kvq_test::random_centres(context, options, {5, 5});
  const auto check = [&](const kvq::PageFormat& format, Side side, size_t offset) {
    std::vector<std::byte> data(format.bytes(side));
    const auto put = [&](uint16_t half) { std::memcpy(data.data() + offset, &half, sizeof(half)); };
    for (const int32_t half : {0x0000, 0x0001, 0x3C00, 0x7BFF}) {
      put(static_cast<uint16_t>(half));
      CHECK(kvq::side_is_valid(side, format, data.data()));
    }
    for (const int32_t half : {0x8000, 0x8001, 0xBC00, 0xFBFF, 0x7C00, 0xFC00, 0x7E00, 0xFE00}) {
      CAPTURE(half);
      put(static_cast<uint16_t>(half));
      CHECK(!kvq::side_is_valid(side, format, data.data()));
    }
  };
  const kvq::SideFormat centred{.code = kvq::CodeType::gain_trellis(2), .centre = kvq::Centre::kTrained};
  const kvq::SideFormat plain{.code = kvq::CodeType::gain_scalar(3), .centre = kvq::Centre::kPageMean};
  for (const Side side : {Side::kKeys, Side::kValues}) {
    check({centred, centred, 64, centres.get()}, side, kvq::side_layout(side, centred, 64, 5).largest_offset());
    check({plain, plain, 64, nullptr}, side, kvq::side_layout(side, plain, 64).largest_offset());
  }
  check({plain, plain, 64, nullptr}, Side::kKeys, kvq::side_layout(Side::kKeys, plain, 64).mean_scale_offset());
}

TEST_CASE("centres in 16 bits are there, and take memory, where an instruction set multiplies them") {
  const kvq_cache_options options = options_of({64});
  constexpr uint64_t kTable = 2 * 64 * 64 * sizeof(int16_t);  // two heads, 64 centres, 64 channels
  uint64_t least = UINT64_MAX;
  for (const char* isa : {"baseline", "avx512vnni"}) {
    const std::vector<std::string> isas = kvq_test::cpu_isa_names();
    if (std::find(isas.begin(), isas.end(), isa) == isas.end()) continue;
    CAPTURE(std::string(isa));
    const kvq_test::Context context = kvq_test::make_context(isa);
    const auto centres = kvq_test::random_centres(context, options, {.keys = 64, .values = 1});
    const OwnedCache cache = kvq_test::make_centred_cache(context, options, "gs2+centres", centres);
    const kvq::LayerContext* made = static_cast<const kvq::Cache&>(*cache).context(0);
    const bool multiplies = std::string(isa) != "baseline";
    CHECK(kvq::centred::context_of(*made).rotated_centres.has_value() == multiplies);
    auto usage = kvq_test::initialised<kvq_usage>();
    kvq_test::checked(kvq_cache_usage, cache.get(), nullptr, &usage);
    if (multiplies) CHECK(usage.total_bytes >= least + kTable);
    least = usage.total_bytes;
  }
}

TEST_CASE("a policy says of all its gain-shape formats at once what they are relative to, unless one says it itself") {
  const kvq_test::Context context = kvq_test::make_context();
  const auto load = [&](const std::string& text) { return kvq_test::Policy::load(context, text); };
  const auto names = [](const kvq_policy* policy, int32_t layer) {
    return kvq::format_pair_name(policy->formats(layer));
  };
  CHECK(names(load("gs2+centres").get(), 0) == "gs2+centres");
  CHECK(names(load("{version: 1, keys: {format: gt2, centres: trained}, values: {format: gs1+centres, centres: none}}")
                  .get(),
              0) == "gt2+centres/gs1+nocentre");
  const kvq_test::Policy mixed = load(
      "version: 1\nkeys: gs2\nvalues: int4\ncentres: trained\nlayers:\n  - range: [1, 1]\n    keys: gs1+nocentre\n"
      "    values: {format: gt3, centres: page}\n  - range: [2, 2]\n    keys: {format: gs4}\n    values: gt1\n");
  CHECK(names(mixed, 0) == "gs2+centres/int4");
  CHECK(names(mixed, 1) == "gs1+nocentre/gt3");
  CHECK(names(mixed, 2) == "gs4+centres/gt1+centres");
  CHECK(names(load("{keys: gs2, values: gs2, centres: none}").get(), 0) == "gs2+nocentre");
  const kvq_test::Policy routed = load("{centres: trained, router: {experts: [gs4, gs2/gt1, gs1+nocentre]}}");
  const auto& experts = static_cast<const kvq_policy*>(routed)->experts;
  CHECK(kvq::format_pair_name(experts[0]) == "gs4+centres");
  CHECK(kvq::format_pair_name(experts[1]) == "gs2+centres/gt1+centres");
  CHECK(kvq::format_pair_name(experts[2]) == "gs1+nocentre");
  const auto refused = [&](const std::string& text, const std::string& reason) {
    std::string message;
    try {
      load(text);
    } catch (const kvq_test::Error& error) {
      message = error.what();
    }
    CHECK_MESSAGE(message.find(reason) != std::string::npos, message);
  };
  refused("{keys: gs2, centres: file}", "centres is \"file\", must be none, page or trained");
  refused("{keys: {format: gs2, centres: many}}", "centres is \"many\", must be none, page or trained");
  refused("{keys: {format: int4, centres: trained}}", "centres are given for int4, but are for gain-shape formats");
}

TEST_CASE("a cache takes centres by its options, and says what it lacks") {
  const kvq_test::Context context = kvq_test::make_context();
  kvq_cache_options options = options_of({64});
  const auto message_of = [&](const std::string& policy) -> std::string {
    try {
      const kvq_test::Cache cache(context, options, kvq_test::Policy::load(context, policy));
    } catch (const kvq_test::Error& error) {
      return error.what();
    }
    return "";
  };
  CHECK(message_of("gs2+centres").find("options->centres is NULL") != std::string::npos);
  const std::vector<std::byte> file = kvq_test::test_centres(options, {.keys = 5, .values = 0});
  kvq_centres* centres = nullptr;
  kvq_test::checked(kvq_centres_load, context, file.data(), file.size(), &centres);
  options.centres = centres;
  CHECK(message_of("gs2+centres").find("options->centres has none for values") != std::string::npos);
  CHECK(message_of("{version: 1, keys: gs2+centres, values: gs1+nocentre}").empty());
  CHECK(message_of("gs2").empty());
  kvq_centres_destroy(centres);
}

}  // namespace centred_test
