// Contents of pages with codebooks, read from snapshots bit by bit and decoded in double from the codebook's numbers.
#include "accuracy.h"
#include "commvq_pages.h"
#include "support/codebook.h"
#include "support/handles.h"
#include "support/random.h"
#include "support/reference.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <complex>
#include <string>
#include <vector>

namespace conformance::commvq_storage_test {

using kvq_test::Cache;
using kvq_test::Codes;
using kvq_test::Context;
using kvq_test::Decoded;
using kvq_test::Sequence;
using kvq_test::Snapshot;
using kvq_test::TestCodebook;
using Complex = std::complex<double>;

namespace {

constexpr int32_t kTokens = 75;  // two pages with codes, one in FP16
constexpr int32_t kPages = 2;
constexpr int32_t kSlots = kPageSlots;

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0.0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// One layer with codes on both sides, and the tokens that were appended to it: numbers that FP16 holds exactly.
struct Bench {
  Bench(const kvq_cache_options& options_, const Codes& codes, const std::string& effort = "")
      : options(options_),
        book(kvq_test::test_codebook(options, codes)),
        context(kvq_test::make_context()),
        cache(kvq_test::make_cache(context, options, "version: 1\nkeys: commvq\nvalues: commvq\n" + effort, codes)),
        sequence(cache) {
    const size_t scalars = at(kTokens * options.kv_heads * options.head_dim);
    k = kvq_test::normal_tensor(scalars, 5);
    v = kvq_test::normal_tensor(scalars, 6);
    for (std::vector<float>* side : {&k, &v}) {
      for (float& x : *side) x = static_cast<float>(kvq_test::to_half(x));
    }
    kvq_test::append(sequence, 0, kTokens, k.data(), v.data());
    snapshot = sequence.save();
  }
  CommvqPages pages() const { return {snapshot, book, kPages}; }
  Decoded decode(int32_t head) const {
    return kvq_test::decode(sequence, 0, head, 0, kPages * kSlots, options.head_dim);
  }

  // Keys of a token, as appended, of all heads that share a norm with `head`.
  std::vector<double> shared_key(int32_t head, int32_t token) const {
    const bool of_layer = book.codes.norms == KVQ_SCOPE_LAYER;
    const auto row = k.begin() + ptrdiff_t{token} * options.kv_heads * options.head_dim;
    const auto first = row + (of_layer ? 0 : head * options.head_dim);
    return {first, first + (of_layer ? options.kv_heads : 1) * options.head_dim};
  }
  // Norm that keys are divided by before encoding.
  double encoded_norm(int32_t head, int32_t token) const {
    const std::vector<double> key = shared_key(head, token);
    return double{static_cast<float>(kvq_test::to_half(std::sqrt(dot(key, key))))};
  }

  kvq_cache_options options;
  const TestCodebook& book;
  Context context;
  Cache cache;
  Sequence sequence;
  std::vector<float> k;
  std::vector<float> v;
  Snapshot snapshot;
};

// Complex z of a head; `pair` counts within the head.
Complex key_code(const TestCodebook& book, int32_t head, int32_t stage, int32_t code, int32_t pair) {
  const Codes& c = book.codes;
  const int32_t row = ((head * book.groups() + pair / c.group) * c.stages + stage) * c.codes + code;
  const size_t i = 2 * at(int64_t{row} * c.group + pair % c.group);
  return {book.layers[0].key_codes[i], book.layers[0].key_codes[i + 1]};
}

Complex centre(const TestCodebook& book, int32_t head, int32_t stage, int32_t a, int32_t b, int32_t pair) {
  return key_code(book, head, stage, a, pair) + Complex(0, 1) * key_code(book, head, stage, b, pair);
}

// The sum of a token's centres, without its norm and before RoPE: [head_dim].
std::vector<double> unit_key(const TestCodebook& book, const CommvqPages& pages, const kvq_test::Rotation& rotation,
                             int32_t head, int32_t token) {
  std::vector<double> key(at(book.head_dim));
  for (int32_t pair = 0; pair < book.head_dim / 2; ++pair) {
    const int32_t group = pair / book.codes.group;
    Complex sum;
    for (int32_t stage = 0; stage < book.codes.stages; ++stage) {
      sum += centre(book, head, stage, pages.index(head, token, group, stage, 0),
                    pages.index(head, token, group, stage, 1), pair);
    }
    key[rotation.first_channel(at(pair))] = sum.real();
    key[rotation.second_channel(at(pair))] = sum.imag();
  }
  return key;
}

// offset + the rows of C whose bit is set: [width]. `vector` is a head, or 0.
std::vector<double> unit_value(const TestCodebook& book, const CommvqPages& pages, int32_t vector, int32_t token) {
  const auto width = at(book.width());
  const TestCodebook::Layer& layer = book.layers[0];
  std::vector<double> sum(width);
  for (size_t c = 0; c < width; ++c) sum[c] = double{layer.offset[at(vector) * width + c]};
  for (int32_t bit = 0; bit < book.code_bits(); ++bit) {
    if (!pages.is_set(vector, token, bit)) continue;
    const float* row = layer.value_codes.data() + at(vector * book.code_bits() + bit) * width;
    for (size_t c = 0; c < width; ++c) sum[c] += double{row[c]};
  }
  return sum;
}

kvq_cache_options options_of(int32_t kv_heads, int32_t head_dim, kvq_rope rope) {
  kvq_cache_options options = kvq_test::cache_options(kv_heads, kv_heads, head_dim);
  options.rope = rope;
  return options;
}

// Tokens of heads of 16 channels whose pages store keys as appended.
kvq_cache_options unturned_options(int32_t kv_heads, kvq_rope rope) {
  static const std::vector<float> no_turns(8, 0.0F);
  kvq_cache_options options = options_of(kv_heads, 16, rope);
  options.inv_freq = no_turns.data();
  return options;
}

const std::vector<Codes>& all_codes() {
  static const std::vector<Codes> codes = {
      {.stages = 3, .codes = 16, .bits = 1},
      {.stages = 2, .codes = 64, .bits = 2},
      {.stages = 3, .codes = 8, .group = 4, .bits = 1},
      {.stages = 1, .codes = 256, .bits = 1, .scope = KVQ_SCOPE_HEAD, .norms = KVQ_SCOPE_HEAD},
      {.stages = 2, .codes = 16, .bits = 1, .norms = KVQ_SCOPE_HEAD},
      {.stages = 2, .codes = 16, .bits = 1, .scope = KVQ_SCOPE_HEAD},
      {.stages = 2, .codes = 2, .group = 8, .bits = 2, .scope = KVQ_SCOPE_HEAD, .norms = KVQ_SCOPE_HEAD},
  };
  return codes;
}

}  // namespace

// The angle is a float of up to 64 times a frequency of 1: an error of 64 · 2^-23 for keys of size 3. Sums are FP32.
TEST_CASE("codes decode to what the papers' equations say") {
  for (const kvq_rope rope : {KVQ_ROPE_HALF, KVQ_ROPE_INTERLEAVED}) {
    for (const int32_t kv_heads : {1, 2, 3, 5}) {
      for (const Codes& codes : all_codes()) {
        const Bench bench(options_of(kv_heads, 16, rope), codes);
        const CommvqPages pages = bench.pages();
        const kvq_test::Rotation rotation = kvq_test::Rotation::from(bench.options);
        double key_error = 0.0;
        double value_error = 0.0;
        for (int32_t head = 0; head < kv_heads; ++head) {
          const Decoded decoded = bench.decode(head);
          for (int32_t token = 0; token < kPages * kSlots; ++token) {
            std::vector<double> key = unit_key(bench.book, pages, rotation, head, token);
            for (double& x : key) x *= pages.norm(head, token);
            rotation.apply(key, token);
            const bool of_layer = codes.scope == KVQ_SCOPE_LAYER;
            const std::vector<double> value = unit_value(bench.book, pages, of_layer ? 0 : head, token);
            for (size_t c = 0; c < 16; ++c) {
              const size_t channel = at(head) * 16 + c;
              const double expected = double{bench.book.layers[0].channel_scale[channel]} * pages.scale(head, token) *
                                      value[of_layer ? channel : c];
              key_error = std::max(key_error, std::fabs(key[c] - double{decoded.k[at(token) * 16 + c]}));
              value_error = std::max(value_error, std::fabs(expected - double{decoded.v[at(token) * 16 + c]}));
            }
          }
        }
        const std::string where = std::to_string(kv_heads) + " heads";
        measure({"decode keys", "commvq " + codes.name(), "reference", key_error, 3e-5}, where);
        measure({"decode values", "commvq " + codes.name(), "reference", value_error, 3e-6}, where);
      }
    }
  }
}

// ⟨k, k̂⟩ = ⟨k, k⟩ for the keys of all heads that share a norm, and ⟨x, x̂⟩ = ⟨x, x⟩ for values over the channels'
// scales. Random codes of a few bits are sometimes so far off that this would double the norm or the best scale: these
// keep it.
TEST_CASE("keys and values decode unbiased, up to FP16") {
  for (const Codes& codes : all_codes()) {
    CAPTURE(codes.name());
    const Bench bench(unturned_options(3, KVQ_ROPE_HALF), codes);
    const CommvqPages pages = bench.pages();
    const kvq_test::Rotation rotation = kvq_test::Rotation::from(bench.options);
    const auto width = at(bench.book.width());
    int32_t unbiased_keys = 0;
    int32_t unbiased_values = 0;
    for (int32_t token = 0; token < kPages * kSlots; ++token) {
      for (int32_t head = 0; head < (codes.norms == KVQ_SCOPE_LAYER ? 1 : 3); ++head) {
        const std::vector<double> key = bench.shared_key(head, token);
        std::vector<double> unit;
        for (int32_t i = 0; unit.size() < key.size(); ++i) {
          const std::vector<double> part = unit_key(bench.book, pages, rotation, head + i, token);
          unit.insert(unit.end(), part.begin(), part.end());
        }
        const double norm = std::sqrt(dot(key, key));
        const double unbiased = dot(key, key) / dot(key, unit);
        const bool close = unbiased > 0.0 && unbiased <= 2.0 * norm;
        unbiased_keys += close ? 1 : 0;
        CHECK(pages.norm(head, token) == doctest::Approx(close ? unbiased : norm).epsilon(0x1p-10));
      }
      for (int32_t vector = 0; vector < bench.book.vectors(); ++vector) {
        const size_t first = at(token) * 48 + at(vector) * width;
        std::vector<double> scaled(width);
        for (size_t c = 0; c < width; ++c) {
          scaled[c] = double{bench.v[first + c]} / double{bench.book.layers[0].channel_scale[at(vector) * width + c]};
        }
        const std::vector<double> unit = unit_value(bench.book, pages, vector, token);
        const double best = dot(scaled, unit) / dot(unit, unit);
        const double unbiased = dot(scaled, scaled) / dot(scaled, unit);
        const bool close = unbiased <= 2.0 * best;
        unbiased_values += close ? 1 : 0;
        CHECK(pages.scale(vector, token) == doctest::Approx(close ? unbiased : best).epsilon(0x1p-10));
      }
    }
    CHECK(unbiased_keys > 0);
    CHECK(unbiased_values > kPages * kSlots / 2);
  }
}

// With beam 1, each stage takes the centre nearest to the residual of the stages before.
TEST_CASE("no other centre of a stage is nearer to the key") {
  for (const Codes& codes : all_codes()) {
    if (codes.codes > 64) continue;  // too many to try
    const Bench bench(unturned_options(2, KVQ_ROPE_INTERLEAVED), codes, "commvq: {beam: 1}\n");
    const CommvqPages pages = bench.pages();
    const int32_t group = bench.book.codes.group;
    double worst = -1.0;  // how much nearer another one is, relative to the squared unit key
    for (int32_t token = 0; token < kPages * kSlots; token += 5) {
      const double norm = bench.encoded_norm(1, token);
      for (int32_t pair = 0; pair < 8; pair += group) {
        std::vector<Complex> rest;
        for (int32_t j = pair; j < pair + group; ++j) {
          const size_t i = at(token) * 32 + 16 + 2 * at(j);  // head 1
          rest.push_back(Complex(double{bench.k[i]}, double{bench.k[i + 1]}) / norm);
        }
        for (int32_t stage = 0; stage < codes.stages; ++stage) {
          const auto distance = [&](int32_t a, int32_t b) {
            double sum = 0.0;
            for (int32_t j = 0; j < group; ++j) {
              sum += std::norm(rest[at(j)] - centre(bench.book, 1, stage, a, b, pair + j));
            }
            return sum;
          };
          const int32_t a = pages.index(1, token, pair / group, stage, 0);
          const int32_t b = pages.index(1, token, pair / group, stage, 1);
          const double taken = distance(a, b);
          for (int32_t other = 0; other < codes.codes * codes.codes; ++other) {
            worst = std::max(worst, taken - distance(other / codes.codes, other % codes.codes));
          }
          for (int32_t j = 0; j < group; ++j) rest[at(j)] -= centre(bench.book, 1, stage, a, b, pair + j);
        }
      }
    }
    measure({"nearest centre", "commvq " + codes.name(), "best", worst, 1e-5}, "every stage");
  }
}

// Error at the best scale of its code: |x − scale · u|² against |x|².
TEST_CASE("no single bit of a value's code could be flipped to bring it nearer") {
  for (const Codes& codes : all_codes()) {
    const Bench bench(options_of(2, 16, KVQ_ROPE_HALF), codes);
    const CommvqPages pages = bench.pages();
    const auto width = at(bench.book.width());
    double worst = -1.0;
    for (int32_t token = 0; token < kPages * kSlots; ++token) {
      const int32_t vector = bench.book.vectors() - 1;
      std::vector<double> x(width);
      for (size_t c = 0; c < width; ++c) {
        x[c] = double{bench.v[at(token) * 32 + at(vector) * width + c]} /
               double{bench.book.layers[0].channel_scale[at(vector) * width + c]};
      }
      const std::vector<double> u = unit_value(bench.book, pages, vector, token);
      const double scale = dot(x, u) / dot(u, u);
      const auto error = [&](const std::vector<double>& code) {
        double sum = 0.0;
        for (size_t c = 0; c < width; ++c) sum += (x[c] - scale * code[c]) * (x[c] - scale * code[c]);
        return sum / dot(x, x);
      };
      const double taken = error(u);
      for (int32_t bit = 0; bit < bench.book.code_bits(); ++bit) {
        const float* row = bench.book.layers[0].value_codes.data() + at(vector * bench.book.code_bits() + bit) * width;
        const double sign = pages.is_set(vector, token, bit) ? -1.0 : 1.0;
        std::vector<double> flipped = u;
        for (size_t c = 0; c < width; ++c) flipped[c] += sign * double{row[c]};
        worst = std::max(worst, taken - error(flipped));
      }
    }
    measure({"best bits", "commvq " + codes.name(), "best", worst, 1e-5}, "every bit");
  }
}

TEST_CASE("a wider beam never finds centres that are farther away") {
  for (const Codes& codes : all_codes()) {
    double sums[2] = {0.0, 0.0};
    const kvq_cache_options options = unturned_options(2, KVQ_ROPE_INTERLEAVED);
    const Bench benches[2] = {{options, codes, "commvq: {beam: 1}\n"}, {options, codes, "commvq: {beam: 8}\n"}};
    const kvq_test::Rotation rotation = kvq_test::Rotation::from(options);
    for (int32_t token = 0; token < kPages * kSlots; ++token) {
      const double norm = benches[0].encoded_norm(0, token);
      double errors[2] = {0.0, 0.0};
      for (size_t i = 0; i < 2; ++i) {
        const std::vector<double> unit = unit_key(benches[i].book, benches[i].pages(), rotation, 0, token);
        for (size_t c = 0; c < 16; ++c) {
          const double d = norm * unit[c] - double{benches[i].k[at(token) * 32 + c]};
          errors[i] += d * d;
        }
        sums[i] += errors[i];
      }
      CHECK(errors[1] <= errors[0] + 1e-4);
    }
    if (codes.stages > 1) CHECK(sums[1] < sums[0]);
  }
}

TEST_CASE("tokens of zeros decode to zeros") {
  for (const Codes& codes : all_codes()) {
    const kvq_cache_options options = options_of(2, 16, KVQ_ROPE_HALF);
    const Context context = kvq_test::make_context();
    const Cache cache = kvq_test::make_cache(context, options, "commvq", codes);
    Sequence sequence(cache);
    std::vector<float> x = kvq_test::normal_tensor(at(64 * 32), 3);
    std::fill(x.begin() + 7 * 32, x.begin() + 9 * 32, 0.0F);
    kvq_test::append(sequence, 0, 64, x.data(), x.data());
    const Decoded decoded = kvq_test::decode(sequence, 0, 1, 0, 32, 16);
    for (size_t i = 0; i < 32 * 16; ++i) {
      const bool zero = i / 16 == 7 || i / 16 == 8;
      if (zero) CHECK((decoded.k[i] == 0.0F && decoded.v[i] == 0.0F));
    }
    CHECK(std::any_of(decoded.k.begin(), decoded.k.begin() + 7 * 16, [](float y) { return y != 0.0F; }));
  }
}

// One stage has the same size with groups of all pairs and of half of them.
TEST_CASE("a snapshot with codes is refused by a codebook of the same numbers in another shape") {
  const kvq_cache_options options = options_of(2, 16, KVQ_ROPE_HALF);
  const Codes codes{.stages = 1, .codes = 16, .group = 8, .bits = 1};
  const Bench bench(options, codes);
  Codes others = codes;
  others.group = 4;
  REQUIRE(kvq_test::test_codebook(options, others).layers[0].key_codes == bench.book.layers[0].key_codes);
  const Cache other = kvq_test::make_cache(bench.context, options, "commvq", others);
  kvq_sequence* sequence = nullptr;
  CHECK(kvq_sequence_load(other, bench.snapshot.data(), bench.snapshot.size(), &sequence, nullptr) == KVQ_E_MISMATCH);
}

TEST_CASE("a snapshot with codes of another codebook, or a damaged one, is refused") {
  const kvq_cache_options options = options_of(2, 16, KVQ_ROPE_HALF);
  const auto status_of = [](kvq_cache* cache, const Snapshot& bytes) {
    kvq_sequence* sequence = nullptr;
    const kvq_status status = kvq_sequence_load(cache, bytes.data(), bytes.size(), &sequence, nullptr);
    CHECK((sequence != nullptr) == (status == KVQ_OK));
    kvq_sequence_destroy(sequence);
    return status;
  };
  for (const Codes& codes : all_codes()) {
    const Bench bench(options, codes);
    Codes others = codes;
    others.seed = 2;
    const Cache other = kvq_test::make_cache(bench.context, options, "commvq", others);
    const Cache same = kvq_test::make_cache(bench.context, options, "commvq", codes);
    const Cache none = kvq_test::make_cache(bench.context, options, "fp16");
    CHECK(status_of(same.get(), bench.snapshot) == KVQ_OK);
    CHECK(status_of(other, bench.snapshot) == KVQ_E_MISMATCH);
    CHECK(status_of(none.get(), bench.snapshot) == KVQ_E_MISMATCH);
    for (size_t i = 64; i < bench.snapshot.size(); i += 101) {
      Snapshot damaged = bench.snapshot;
      damaged[i] ^= std::byte{1};
      CHECK(status_of(same.get(), damaged) == KVQ_E_FORMAT);
    }
  }
}

}  // namespace conformance::commvq_storage_test
