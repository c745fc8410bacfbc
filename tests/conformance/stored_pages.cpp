#include "stored_pages.h"

#include "support/random.h"
#include "support/reference.h"

#include <algorithm>
#include <cmath>

namespace conformance {

HeadTokens normal_tokens(int32_t n, int32_t head_dim, uint64_t seed, double deviation) {
  HeadTokens tokens{head_dim, {}, {}};
  kvq_test::Random random(seed);
  for (int32_t i = 0; i < n * head_dim; ++i) {
    tokens.k.push_back(kvq_test::to_half(deviation * random.normal()));
    tokens.v.push_back(kvq_test::to_half(deviation * random.normal()));
  }
  return tokens;
}

HeadTokens store(const HeadTokens& tokens, const Storage& storage, const std::string& isa) {
  const kvq_test::Context context = kvq_test::make_context(isa.c_str());
  kvq_cache_options options = kvq_test::cache_options(1, 1, tokens.head_dim);
  options.rope = KVQ_ROPE_NONE;
  const kvq_test::Cache cache = make_cache(context, options, storage);
  kvq_test::Sequence sequence(cache);
  const std::vector<float> k(tokens.k.begin(), tokens.k.end());
  const std::vector<float> v(tokens.v.begin(), tokens.v.end());
  kvq_test::append(sequence, 0, tokens.n(), k.data(), v.data());
  const kvq_test::Decoded decoded = kvq_test::decode(sequence, 0, 0, 0, tokens.n(), tokens.head_dim);
  return {tokens.head_dim, {decoded.k.begin(), decoded.k.end()}, {decoded.v.begin(), decoded.v.end()}};
}

std::vector<double> rotated(const std::vector<double>& tokens, int32_t head_dim) {
  std::vector<double> result;
  const auto dim = static_cast<size_t>(head_dim);
  for (size_t start = 0; start < tokens.size(); start += dim) {
    const std::vector<double> token = kvq_test::rotated_head(std::span(tokens).subspan(start, dim));
    result.insert(result.end(), token.begin(), token.end());
  }
  return result;
}

// Half a step; the step's rounding to FP16, for every code; and the rounding of numbers that FP16 does not hold
// exactly, which only a Hadamard rotation creates.
double quantization_limit(double low, double high, const PageFormat& format) {
  const double top_code = std::ldexp(1.0, format.bits) - 1.0;
  const double step = (high - low) / top_code;
  const double size = std::max(std::fabs(low), std::fabs(high));
  const double step_rounding = top_code * (step * 0x1p-11 + 0x1p-25);
  const double origin_rounding = format.hadamard ? size * 0x1p-10 + 0x1p-24 : 0.0;
  const double arithmetic = size * 0x1p-20;  // FP32, through log2(head_dim) additions
  return 0.5 * step * (1.0 + 0x1p-10) + step_rounding + origin_rounding + arithmetic;
}

namespace {

double dot(const double* a, const double* b, int32_t n) {
  double sum = 0.0;
  for (int32_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace

// Half a step of the gain (32 per octave), the rounding of the largest gain to FP16 for levels of up to 127, and the
// rounding of the mean to eight bits. A token much smaller than others may vanish.
double page_bias(std::span<const double> given, std::span<const double> stored, int32_t dim, bool page_mean) {
  const int32_t n = kPageSlots * dim;
  std::vector<double> mean(static_cast<size_t>(dim), 0.0);
  double largest_mean = 0.0;
  for (int32_t i = 0; page_mean && i < n; ++i)
    mean[static_cast<size_t>(i % dim)] += given[static_cast<size_t>(i)] / kPageSlots;
  for (const double x : mean) largest_mean = std::max(largest_mean, std::fabs(x));
  const double width = std::sqrt(double{1} * dim);
  const double mean_error = width * (largest_mean * (1.0 / 254.0 + 0x1p-11) + (page_mean ? 127.0 * 0x1p-25 : 0.0));

  std::vector<double> rows(given.begin(), given.end());
  std::vector<double> codes(stored.begin(), stored.end());
  double largest_norm = 0.0;
  for (int32_t t = 0; t < n; t += dim) {
    for (int32_t i = 0; i < dim; ++i) {
      rows[static_cast<size_t>(t + i)] -= mean[static_cast<size_t>(i)];
      codes[static_cast<size_t>(t + i)] -= mean[static_cast<size_t>(i)];
    }
    largest_norm = std::max(largest_norm, std::sqrt(dot(rows.data() + t, rows.data() + t, dim)));
  }
  double worst = 0.0;
  for (int32_t t = 0; t < n; t += dim) {
    const double* row = rows.data() + t;
    const double* code = codes.data() + t;
    const double norm = std::sqrt(dot(row, row, dim));
    const double size = std::sqrt(dot(code, code, dim));
    if (std::isnan(size)) return size;
    const double gain_error = norm * (std::exp2(1.0 / 64.0) - 1.0 + 0x1p-10) + width * 127.0 * 0x1p-25;
    const double limit = norm < largest_norm / 64.0 ? norm + mean_error : gain_error;
    const double error = norm > 0.0 ? std::fabs(dot(row, code, dim) / norm - norm) : size;
    worst = std::max(worst, error / (limit + mean_error * (norm > 0.0 ? 1.0 + size / norm : 1.0)));
  }
  return worst;
}

namespace {

// Error of one group over its limit. Constant groups have no step, and must be exact unless they were rotated.
double group_error(const std::vector<double>& given, const std::vector<double>& stored,
                   const std::vector<size_t>& group, const PageFormat& format) {
  double low = given[group[0]];
  double high = low;
  for (const size_t i : group) {
    low = std::min(low, given[i]);
    high = std::max(high, given[i]);
  }
  const bool exact = low == high && !format.hadamard;
  const double limit = quantization_limit(low, high, format);
  double worst = 0.0;
  for (const size_t i : group) {
    const double error = std::fabs(stored[i] - given[i]);
    if (std::isnan(error)) return error;
    worst = std::max(worst, exact ? (error == 0.0 ? 0.0 : 1e30) : error / limit);
  }
  return worst;
}

double exact_error(const std::vector<double>& given, const std::vector<double>& stored) {
  return given == stored ? 0.0 : 1e30;
}

// `groups_of_page(first_slot)` lists the groups of a page as indices into the tokens.
template <typename GroupsOfPage>
double worst_error(const HeadTokens& tokens, const std::vector<double>& given, const std::vector<double>& stored,
                   const Storage& storage, bool of_keys, GroupsOfPage&& groups_of_page) {
  const PageFormat format = PageFormat::parse(of_keys ? storage.keys : storage.values);
  const std::vector<double> given_channels = format.hadamard ? rotated(given, tokens.head_dim) : given;
  const std::vector<double> stored_channels = format.hadamard ? rotated(stored, tokens.head_dim) : stored;
  double worst = 0.0;
  for (int page = 0; page * kPageSlots < tokens.n(); ++page) {
    const auto page_begin = static_cast<std::ptrdiff_t>(page) * kPageSlots * tokens.head_dim;
    const auto page_end =
        std::min<std::ptrdiff_t>(page_begin + kPageSlots * tokens.head_dim, static_cast<std::ptrdiff_t>(given.size()));
    if (!storage.is_sealed(page, tokens.n()) || !format.sealed()) {
      worst = std::max(worst, exact_error({given.begin() + page_begin, given.begin() + page_end},
                                          {stored.begin() + page_begin, stored.begin() + page_end}));
      continue;
    }
    if (format.gain_shape()) {
      const auto page_of = [&](const std::vector<double>& channels) {
        return std::span(channels).subspan(static_cast<size_t>(page_begin), static_cast<size_t>(page_end - page_begin));
      };
      const double error =
          page_bias(page_of(given_channels), page_of(stored_channels), tokens.head_dim, format.page_mean && of_keys);
      if (std::isnan(error)) return error;
      worst = std::max(worst, error);
      continue;
    }
    for (const std::vector<size_t>& group : groups_of_page(static_cast<size_t>(page) * kPageSlots)) {
      const double error = group_error(given_channels, stored_channels, group, format);
      if (std::isnan(error)) return error;
      worst = std::max(worst, error);
    }
  }
  return worst;
}

}  // namespace

double worst_key_error(const HeadTokens& given, const HeadTokens& stored, const Storage& storage) {
  const auto dim = static_cast<size_t>(given.head_dim);
  return worst_error(given, given.k, stored.k, storage, true, [&](size_t first_slot) {
    std::vector<std::vector<size_t>> groups(dim);
    for (size_t c = 0; c < dim; ++c) {
      for (size_t slot = 0; slot < kPageSlots; ++slot) groups[c].push_back((first_slot + slot) * dim + c);
    }
    return groups;
  });
}

double worst_value_error(const HeadTokens& given, const HeadTokens& stored, const Storage& storage) {
  const auto dim = static_cast<size_t>(given.head_dim);
  const auto width = static_cast<size_t>(storage.group);
  return worst_error(given, given.v, stored.v, storage, false, [&](size_t first_slot) {
    std::vector<std::vector<size_t>> groups;
    for (size_t slot = first_slot; slot < first_slot + kPageSlots; ++slot) {
      for (size_t start = 0; start < dim; start += width) {
        groups.emplace_back();
        for (size_t c = start; c < std::min(dim, start + width); ++c) groups.back().push_back(slot * dim + c);
      }
    }
    return groups;
  });
}

}  // namespace conformance
