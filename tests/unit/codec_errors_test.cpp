// Every codec's reference decodes what it encodes, with the error that the format allows.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "sealed_pages.h"
#include "support/reference.h"

namespace codec_errors_test {
namespace {

using kvq::Codec;
using kvq::kPageSlots;
using kvq::Side;
using kvq::SideFormat;
using kvq_test::Codes;
using kvq_test::SealedPages;
using kvq_test::TestCodebook;

constexpr int32_t kHeadDims[] = {8, 40, 64, 120, 128, 192, 256};

/// One stage of few codes, so that brute force finds the nearest.
constexpr Codes kCodes[] = {
    {.stages = 1, .codes = 4, .bits = 1},
    {.stages = 1, .codes = 4, .bits = 1, .scope = KVQ_SCOPE_HEAD, .norms = KVQ_SCOPE_HEAD},
};

/// Largest error of numbers that share a scale, relative to the limit of an integer code of this many bits: half a
/// step, plus the rounding of scale and minimum to FP16.
double excess_of_group(const std::vector<double>& numbers, const std::vector<double>& decoded, int32_t bits) {
  const auto [low, high] = std::minmax_element(numbers.begin(), numbers.end());
  const double levels = std::exp2(bits) - 1.0;
  const double step = (*high - *low) / levels;
  const double limit = step / 2.0 + levels * kvq_test::half_spacing(step) / 2.0 + kvq_test::half_spacing(*low) +
                       1e-5 * std::max(std::fabs(*low), std::fabs(*high));
  double excess = 0.0;
  for (size_t i = 0; i < numbers.size(); ++i) {
    excess = std::max(excess, std::fabs(numbers[i] - decoded[i]) / limit);
  }
  return excess;
}

std::vector<double> rotated(const std::vector<double>& rows, int32_t head_dim) {
  std::vector<double> result;
  for (auto row = rows.begin(); row != rows.end(); row += head_dim) {
    const std::vector<double> rotated = kvq_test::rotated_head({row, row + head_dim});
    result.insert(result.end(), rotated.begin(), rotated.end());
  }
  return result;
}

double excess_of_integers(const SealedPages& pages, Side side, std::vector<double> numbers,
                          std::vector<double> decoded) {
  const SideFormat& format = pages.format().side(side);
  const int32_t dim = pages.cache().layer(0).head.keys;
  if (format.is_rotated()) {
    numbers = rotated(numbers, dim);
    decoded = rotated(decoded, dim);
  }
  const int32_t bits = kvq::describe(format.code).file_bits;
  const bool keys = side == Side::kKeys;
  double excess = 0.0;
  for (int32_t slot = 0; slot < (keys ? 1 : kPageSlots); ++slot) {
    for (int32_t channel = 0; channel < dim; channel += keys ? 1 : format.group) {
      std::vector<double> group;
      std::vector<double> of_codes;
      for (int32_t i = 0; i < (keys ? kPageSlots : std::min<int32_t>(format.group, dim - channel)); ++i) {
        const auto at = static_cast<size_t>(keys ? i * dim + channel : slot * dim + channel + i);
        group.push_back(numbers[at]);
        of_codes.push_back(decoded[at]);
      }
      excess = std::max(excess, excess_of_group(group, of_codes, bits));
    }
  }
  return excess;
}

double square(const std::vector<double>& numbers) {
  double sum = 0.0;
  for (const double x : numbers) sum += x * x;
  return sum;
}

double squared_distance(std::span<const double> a, std::span<const double> b) {
  double sum = 0.0;
  for (size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return sum;
}

/// The sides of all heads.
using Heads = std::vector<std::vector<double>>;

double norm_of_token(const Heads& heads, size_t head, bool of_layer, ptrdiff_t slot, ptrdiff_t dim) {
  double sum = 0.0;
  for (size_t h = 0; h < heads.size(); ++h) {
    const auto row = heads[h].begin() + slot * dim;
    if (of_layer || h == head) sum += square({row, row + dim});
  }
  return std::sqrt(sum);
}

/// Where one head's keys of a page lie among all centres of the only stage.
struct Centres {
  const float* codes;  // [codes][pair]{re, im}
  size_t n;            // codes
  const kvq_test::Rotation& rotation;
  int32_t position;

  /// `norm` times the centre that brings it nearest to the key, after RoPE.
  std::vector<double> nearest(std::span<const double> key, double norm) const {
    std::vector<double> best;
    double least = std::numeric_limits<double>::infinity();
    for (size_t centre = 0; centre < n * n; ++centre) {
      const float* a = codes + centre / n * key.size();
      const float* b = codes + centre % n * key.size();
      std::vector<double> row(key.size());
      for (size_t pair = 0; pair < row.size() / 2; ++pair) {  // a + ib
        row[rotation.first_channel(pair)] = norm * (double{a[2 * pair]} - double{b[2 * pair + 1]});
        row[rotation.second_channel(pair)] = norm * (double{a[2 * pair + 1]} + double{b[2 * pair]});
      }
      rotation.apply(row, position);
      const double distance = squared_distance(row, key);
      if (distance >= least) continue;
      least = distance;
      best = row;
    }
    return best;
  }
};

/// Distance of keys to their decoded values, relative to the distance to the nearest centre of the only stage. The
/// centre has the length that is unbiased for the heads that share a norm, or their norm if that is more than twice as
/// long.
double excess_of_centres(const TestCodebook& book, const SealedPages& pages, const Heads& keys, const Heads& decoded) {
  const kvq_test::Rotation rotation =
      kvq_test::Rotation::from(kvq_test::cache_options(pages.heads(), pages.heads(), book.head_dim));
  const auto dim = static_cast<size_t>(book.head_dim);
  const bool of_layer = book.codes.norms == KVQ_SCOPE_LAYER;
  const auto n_codes = static_cast<size_t>(book.codes.codes);
  double excess = 0.0;
  for (size_t slot = 0; slot < kPageSlots; ++slot) {
    const auto row_of = [&](const Heads& rows, size_t head) { return std::span(rows[head]).subspan(slot * dim, dim); };
    const auto norm_of = [&](size_t head) {
      return norm_of_token(keys, head, of_layer, static_cast<ptrdiff_t>(slot), static_cast<ptrdiff_t>(dim));
    };
    Heads nearest;
    for (size_t head = 0; head < keys.size(); ++head) {
      const Centres centres{book.layers[0].key_codes.data() + head * n_codes * dim, n_codes, rotation,
                            pages.page(0, 0).position(static_cast<int32_t>(slot))};
      nearest.push_back(centres.nearest(row_of(keys, head), norm_of(head)));
    }
    for (size_t head = 0; head < keys.size(); ++head) {
      double energy = 0.0;
      double product = 0.0;
      for (size_t other = 0; other < keys.size(); ++other) {
        if (!of_layer && other != head) continue;
        const auto key = row_of(keys, other);
        energy += std::inner_product(key.begin(), key.end(), key.begin(), 0.0);
        product += std::inner_product(key.begin(), key.end(), nearest[other].begin(), 0.0);
      }
      std::vector<double> unbiased = nearest[head];
      for (double& x : unbiased) x *= energy <= 2.0 * product ? energy / product : 1.0;
      const auto key = row_of(keys, head);
      excess = std::max(excess, std::sqrt(squared_distance(row_of(decoded, head), key)) /
                                    (std::sqrt(squared_distance(unbiased, key)) + 1e-3 * norm_of(head)));
    }
  }
  return excess;
}

/// Distance of values to their decoded values, relative to the distance to zero, both divided by the channels' scales:
/// a token's FP16 scale makes its code unbiased unless zero would be nearer.
double excess_of_values(const TestCodebook& book, const Heads& values, const Heads& decoded) {
  const ptrdiff_t dim = book.head_dim;
  Heads scaled = values;
  Heads errors = decoded;
  for (size_t head = 0; head < values.size(); ++head) {
    for (size_t i = 0; i < values[head].size(); ++i) {
      const double scale =
          double{book.layers[0].channel_scale[head * static_cast<size_t>(dim) + i % static_cast<size_t>(dim)]};
      scaled[head][i] /= scale;
      errors[head][i] = errors[head][i] / scale - scaled[head][i];
    }
  }
  const bool of_layer = book.codes.scope == KVQ_SCOPE_LAYER;
  double excess = 0.0;
  for (size_t head = 0; head < values.size(); ++head) {
    for (ptrdiff_t slot = 0; slot < kPageSlots; ++slot) {
      excess = std::max(excess, norm_of_token(errors, head, of_layer, slot, dim) /
                                    (norm_of_token(scaled, head, of_layer, slot, dim) * (1.0 + 1e-3)));
    }
  }
  return excess;
}

double dot(const double* a, const double* b, int32_t n) {
  double sum = 0.0;
  for (int32_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

/// Squared error of the best uniform code of this many bits with an unbiased gain; its step is one of a few around the
/// optimum for a normal distribution.
double error_of_scalar_code(const double* row, int32_t dim, int32_t bits) {
  constexpr double kSteps[] = {1.596, 0.9957, 0.586, 0.3352};
  const std::vector<double> factors = bits == 4   ? std::vector{0.8, 0.93, 1.07, 1.25}
                                      : bits == 3 ? std::vector{0.85, 1.0, 1.15}
                                                  : std::vector{1.0};
  const double norm = dot(row, row, dim);
  const double top = std::exp2(bits) - 1.0;
  double best = 0.0;  // squared cosine
  for (const double factor : factors) {
    const double step = kSteps[bits - 1] * factor * std::sqrt(norm / dim);
    std::vector<double> code;
    for (int32_t i = 0; i < dim; ++i) {
      code.push_back(std::floor(std::clamp(row[i] / step + top / 2.0, 0.0, top) + 0.5) - top / 2.0);
    }
    const double product = dot(row, code.data(), dim);
    best = std::max(best, product * product / (norm * square(code)));
  }
  return norm * (1.0 / best - 1.0);
}

/// The mean of the rows with the steps of eight bits.
std::vector<double> mean_in_steps(const std::vector<double>& rows, int32_t dim) {
  std::vector<double> mean(static_cast<size_t>(dim));
  double largest = 0.0;
  for (size_t i = 0; i < rows.size(); ++i) mean[i % mean.size()] += rows[i] / kPageSlots;
  for (const double x : mean) largest = std::max(largest, std::fabs(x));
  for (double& x : mean) x = std::round(x * 127.0 / largest) * largest / 127.0;
  return mean;
}

/// Two measures: each token's bias relative to half a step of the gain, and the squared error relative to that of
/// scalar codes, which a trellis may not exceed.
double excess_of_gains(const SealedPages& pages, Side side, const std::vector<double>& numbers,
                       const std::vector<double>& decoded) {
  const SideFormat& format = pages.format().side(side);
  const int32_t dim = pages.cache().layer(0).head.keys;
  const int32_t bits = kvq::describe(format.code).name.back() - '0';
  std::vector<double> rows = rotated(numbers, dim);
  std::vector<double> found = rotated(decoded, dim);
  if (side == Side::kKeys && format.centre == kvq::Centre::kPageMean) {
    const std::vector<double> mean = mean_in_steps(rows, dim);
    for (size_t i = 0; i < rows.size(); ++i) {
      rows[i] -= mean[i % mean.size()];
      found[i] -= mean[i % mean.size()];
    }
  }
  const double half_step = std::exp2(1.0 / 64.0) - 1.0 + std::exp2(-10.0);
  double excess = 0.0;
  double error = 0.0;
  double limit = 0.0;
  for (size_t at = 0; at < rows.size(); at += static_cast<size_t>(dim)) {
    const double norm = dot(&rows[at], &rows[at], dim);
    excess = std::max(excess, std::fabs(dot(&rows[at], &found[at], dim) / norm - 1.0) / half_step);
    for (size_t i = at; i < at + static_cast<size_t>(dim); ++i) error += (rows[i] - found[i]) * (rows[i] - found[i]);
    const double of_code = error_of_scalar_code(&rows[at], dim, bits);
    // With a gain larger by δ than the unbiased one: of_code + 2δ · of_code + δ² (norm + of_code).
    limit += (1.0 + 2.0 * half_step) * of_code + half_step * half_step * (norm + of_code);
  }
  return std::max(excess, error / limit);
}

/// Error of a side relative to its limit.
double excess(const Codec& codec, const SealedPages& pages, Side side, const TestCodebook* book) {
  Heads numbers;
  Heads decoded;
  const auto sides = pages.encode(side, 0);
  for (int32_t head = 0; head < pages.heads(); ++head) {
    numbers.push_back(pages.original(side, head, 0));
    decoded.push_back(pages.decode(side, head, 0, sides));
  }
  const std::string name = codec.name;
  if (name == "fp16") return decoded == numbers ? 0.0 : std::numeric_limits<double>::infinity();
  if (name == "int") return excess_of_integers(pages, side, numbers[1], decoded[1]);
  if (name == "gain_shape") return excess_of_gains(pages, side, numbers[1], decoded[1]);
  REQUIRE(name == "commvq");  // another codec: its limit is unknown
  return side == Side::kKeys ? excess_of_centres(*book, pages, numbers, decoded)
                             : excess_of_values(*book, numbers, decoded);
}

}  // namespace

TEST_CASE("what a codec's reference encodes, its reference decodes to what the format can say of it") {
  const kvq_test::Context context = kvq_test::make_context();
  kvq_test::for_each_name([&](const Codec& codec, const std::string& name) {
    if (name.ends_with("+centres")) return;  // centred_test has its definition
    for (const int32_t head_dim : kHeadDims) {
      for (const int32_t group : {32, 64, 128}) {
        if (group != 32 && !codec.takes_groups) continue;
        for (const Codes* codes : kvq_test::codes_for(codec, kCodes)) {
          const std::string which = codes != nullptr ? codes->name() : "";
          CAPTURE(name);
          CAPTURE(which);
          CAPTURE(head_dim);
          CAPTURE(group);
          const kvq_cache_options options = kvq_test::cache_options(2, 2, head_dim);
          const TestCodebook* book = codes != nullptr ? &kvq_test::test_codebook(options, *codes) : nullptr;
          const SealedPages pages(context, options, kvq_test::policy_of(codec, name, group), codes, kPageSlots + 1);
          CHECK(excess(codec, pages, Side::kKeys, book) <= 1.0);
          CHECK(excess(codec, pages, Side::kValues, book) <= 1.0);
        }
      }
    }
  });
}

}  // namespace codec_errors_test
