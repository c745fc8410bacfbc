#include "training/router/page_errors.h"

#include "cache/sequence.h"
#include "core/scratch.h"
#include "core/tensor.h"
#include "formats/router/vector_math.h"

#include <algorithm>
#include <array>
#include <cfloat>
#include <cmath>
#include <exception>
#include <limits>

namespace kvq {
namespace {

constexpr int32_t kSpreadQueries = 64;  // of a text, evenly spread: each evaluates the pages not too far before it
constexpr int32_t kNearQueries = 2;     // of each page, within the next one

/// A query and the pages that it evaluates.
struct Query {
  int32_t position;
  int32_t first_page;  // of the routed ones
  int32_t pages;
  size_t result;  // offset of its first page's errors, one per expert
};

/// Spread queries measure a page's influence in the long run, those right behind it at first.
Vector<Query> choose_queries(Allocator& allocator, int32_t n, size_t experts) {
  Vector<Query> queries(allocator);
  const int32_t routed = routed_pages(n);
  size_t result = 0;
  const auto add = [&](int32_t position, int32_t first, int32_t pages) {
    queries.push_back({position, first, pages, result});
    result += static_cast<size_t>(pages) * experts;
  };
  for (int64_t i = 1; i <= kSpreadQueries; ++i) {
    const auto position = static_cast<int32_t>(n * i / kSpreadQueries - 1);
    const int32_t end = std::min(position / kPageSlots - kFirstRoutedPage, routed);
    const int32_t unseen = std::max(position - judging_tokens(n), 0) / kPageSlots - kFirstRoutedPage;
    const int32_t begin = std::max(unseen, 0);
    if (begin < end) add(position, begin, end - begin);
  }
  for (int32_t page = 0; page < routed; ++page) {
    for (int32_t i = 0; i < kNearQueries; ++i) {
      const int32_t position = (page + kFirstRoutedPage + 1) * kPageSlots + i * (kPageSlots / kNearQueries);
      if (position < n) add(position, page, 1);
    }
  }
  return queries;
}

/// Keys, rotated, and values of one KV head.
struct Stored {
  explicit Stored(Allocator& allocator) : k(allocator), v(k.get_allocator()) {}

  Vector<float> k;  // [tokens, head_dim]
  Vector<float> v;
};

/// Attention of one query over FP16 pages, page by page, and over the experts' versions of them.
class Judge {
 public:
  /// `stored`: FP16 from the text's beginning, and each expert's version from the first routed page on, empty for FP16.
  Judge(std::span<const Stored> stored, size_t dim, int32_t n) : stored_(stored), dim_(dim), n_(n) {}

  size_t experts() const { return stored_.size() - 1; }
  size_t workspace_numbers() const { return static_cast<size_t>(n_) + pages() * (dim_ + 1) + 2 * dim_; }

  /// Adds ‖o' − o‖² of each page and expert to `errors` and ‖o‖² to `energy`. `q`: rotated and scaled.
  void judge(const Query& query, const float* q, float* workspace, double* errors, double& energy) const noexcept {
    const Partials partials = attend(query.position + 1, q, workspace);
    double norm = 0.0;
    for (size_t d = 0; d < dim_; ++d) norm += square(partials.sum[d] / partials.mass);
    energy += norm;
    for (int32_t page = query.first_page; page < query.first_page + query.pages; ++page) {
      for (size_t expert = 0; expert < experts(); ++expert, ++errors) {
        if (!stored_[expert + 1].k.empty()) *errors += error(partials, page, stored_[expert + 1], q);
      }
    }
  }

 private:
  using Row = std::array<double, kMaxHeadDim>;

  /// Sums of e^(score − largest), and of values weighted by it.
  struct Partials {
    float largest;
    double mass = 0.0;
    Row sum{};
    const float* page_mass;  // [pages]
    const float* page_sum;   // [pages, head_dim]
    float* scratch;          // [head_dim]
  };

  static double square(double x) { return x * x; }
  size_t pages() const { return (static_cast<size_t>(n_) + kPageSlots - 1) / kPageSlots; }

  Partials attend(int32_t tokens, const float* q, float* workspace) const noexcept {
    const Stored& exact = stored_.front();
    float* scores = workspace;
    float* page_mass = scores + n_;
    float* page_sum = page_mass + pages();
    Partials partials{
        .largest = 0.0F, .page_mass = page_mass, .page_sum = page_sum, .scratch = page_sum + pages() * dim_};
    const auto count = static_cast<size_t>(tokens);
    for (size_t i = 0; i < count; ++i) scores[i] = dot_product(q, exact.k.data() + i * dim_, dim_);
    partials.largest = *std::max_element(scores, scores + count);
    for (size_t begin = 0; begin < count; begin += kPageSlots, ++page_mass, page_sum += dim_) {
      *page_mass = 0.0F;
      std::fill_n(page_sum, dim_, 0.0F);
      for (size_t i = begin; i < std::min(begin + kPageSlots, count); ++i) {
        const float weight = std::exp(scores[i] - partials.largest);
        *page_mass += weight;
        add_scaled(weight, exact.v.data() + i * dim_, dim_, page_sum);
      }
      partials.mass += static_cast<double>(*page_mass);
      for (size_t d = 0; d < dim_; ++d) partials.sum[d] += static_cast<double>(page_sum[d]);
    }
    return partials;
  }

  /// ‖(O − O_page + O'_page) / (Z − Z_page + Z'_page) − O / Z‖²
  double error(const Partials& partials, int32_t page, const Stored& stored, const float* q) const noexcept {
    const auto in_text = static_cast<size_t>(page + kFirstRoutedPage);
    const size_t first = static_cast<size_t>(page) * kPageSlots * dim_;
    std::array<float, kPageSlots> scores;
    for (size_t i = 0; i < kPageSlots; ++i) {
      scores[i] = dot_product(q, stored.k.data() + first + i * dim_, dim_);
    }
    // Only the page's weights remain where all others underflow.
    const double others = partials.mass - static_cast<double>(partials.page_mass[in_text]);
    float largest = *std::max_element(scores.begin(), scores.end());
    if (others > 0.0) largest = std::max(largest, partials.largest);
    const double shrink =
        others > 0.0 ? std::exp(static_cast<double>(partials.largest) - static_cast<double>(largest)) : 0.0;
    float mass = 0.0F;
    std::fill_n(partials.scratch, dim_, 0.0F);
    for (size_t i = 0; i < kPageSlots; ++i) {
      const float weight = std::exp(scores[i] - largest);
      mass += weight;
      add_scaled(weight, stored.v.data() + first + i * dim_, dim_, partials.scratch);
    }
    const double total = shrink * others + static_cast<double>(mass);
    const float* old_sum = partials.page_sum + in_text * dim_;
    double result = 0.0;
    for (size_t d = 0; d < dim_; ++d) {
      const double sum =
          shrink * (partials.sum[d] - static_cast<double>(old_sum[d])) + static_cast<double>(partials.scratch[d]);
      result += square(sum / total - partials.sum[d] / partials.mass);
    }
    return result;
  }

  std::span<const Stored> stored_;
  size_t dim_;
  int32_t n_;
};

/// A text in every format, one KV head at a time.
class StoredText {
 public:
  StoredText(Allocator& allocator, std::span<std::optional<Cache>> caches, int32_t layer, const RouterText& text)
      : layer_(layer), n_(text.n), stored_(allocator) {
    for (size_t i = 0; i < caches.size(); ++i) {
      stored_.emplace_back(allocator);
      if (!caches[i].has_value()) continue;
      sequences_[i].emplace(*caches[i]);
      append(*sequences_[i], layer, text.k, text.v, text.dtype, text.n, nullptr);
    }
  }

  std::span<const Stored> stored() const { return stored_; }

  void decode_head(Parallel& parallel, int32_t head) {
    const auto dim = static_cast<size_t>(sequences_.front()->cache.layer(layer_).head.keys);
    for (size_t i = 0; i < stored_.size(); ++i) {
      if (!sequences_[i].has_value()) continue;
      stored_[i].k.resize(size(slots(i), dim));
      stored_[i].v.resize(stored_[i].k.size());
    }
    std::array<std::exception_ptr, kMaxExperts + 1> failures;
    const auto decode_one = [&](int32_t index) noexcept {
      const auto i = static_cast<size_t>(index);
      if (!sequences_[i].has_value()) return;
      try {
        const int32_t begin = i == 0 ? 0 : kFirstRoutedPage * kPageSlots;
        decode(*sequences_[i], {layer_, head, begin, slots(i)}, {stored_[i].k.data(), stored_[i].v.data(), nullptr});
      } catch (...) {
        failures[i] = std::current_exception();
      }
    };
    parallel.run(static_cast<int32_t>(stored_.size()), decode_one);
    for (const std::exception_ptr& failure : failures) {
      if (failure != nullptr) std::rethrow_exception(failure);
    }
  }

 private:
  int32_t slots(size_t index) const { return index == 0 ? n_ : routed_pages(n_) * kPageSlots; }

  int32_t layer_;
  int32_t n_;
  std::array<std::optional<Sequence>, kMaxExperts + 1> sequences_;
  Vector<Stored> stored_;
};

/// The queries of one KV head, [queries, query heads, head_dim], rotated and scaled.
void read_queries(const Cache& cache, const RouterText& text, std::span<const Query> queries, int32_t head,
                  std::span<float> out) {
  const LayerShape& shape = cache.layer(0);  // all are alike
  const auto dim = static_cast<size_t>(shape.head.keys);
  const int32_t rows = shape.q_heads / shape.kv_heads;
  Vector<float> rotation(shape.rope->table_stride(), shape.rope->inv_freq.get_allocator());
  float* to = out.data();
  for (const Query& query : queries) {
    shape.rope->fill_table({&query.position, 1}, rotation.data());
    for (int32_t row = 0; row < rows; ++row, to += dim) {
      const size_t from = static_cast<size_t>(query.position) * static_cast<size_t>(shape.q_heads) +
                          static_cast<size_t>(head * rows + row);
      read_floats(text.q, text.dtype, from * dim, shape.head.keys, to);
      shape.rope->rotate(rotation.data(), to);
      for (size_t d = 0; d < dim; ++d) to[d] *= shape.scale;
    }
  }
}

/// A page without influence can be stored in any format.
float relative(double error, double energy) {
  if (error == 0.0) return 0.0F;
  const double ratio = error / energy;
  return ratio < static_cast<double>(FLT_MAX) ? static_cast<float>(ratio) : FLT_MAX;  // also for NaN
}

}  // namespace

PageErrors::PageErrors(Allocator& allocator, Parallel& parallel, Backend& backend, const kvq_cache_options& options,
                       const Policy& policy, const CacheTraining& training)
    : allocator_(allocator),
      parallel_(parallel),
      units_(policy.votes == Votes::kHead ? options.kv_heads : 1),
      experts_(policy.experts.size()) {
  kvq_cache_options own = options;
  own.max_bytes = 0;
  caches_[0].emplace(allocator, backend, own, nullptr, CacheTraining{});
  for (size_t i = 0; i < experts_; ++i) {
    const FormatPair& expert = policy.experts[i];
    if (expert == FormatPair{}) continue;  // errors are those against FP16
    Policy stored(allocator);
    stored.keys = expert.keys;
    stored.values = expert.values;
    stored.options = policy.options;
    const bool trained = PageFormat(expert.keys, expert.values, own.head_dim).needs_training();
    caches_[i + 1].emplace(allocator, backend, own, &stored, trained ? training : CacheTraining{});
  }
}

Vector<float> PageErrors::measure(int32_t layer, const RouterText& text) {
  const Cache& exact = *caches_.front();
  const auto dim = static_cast<size_t>(exact.layer(layer).head.keys);
  const auto pages = static_cast<size_t>(routed_pages(text.n));
  const auto units = static_cast<size_t>(units_);
  Vector<float> result(size(pages, units, experts_), 0.0F, allocator_);
  if (pages == 0) return result;

  const Vector<Query> queries = choose_queries(allocator_, text.n, experts_);
  const size_t results = queries.back().result + static_cast<size_t>(queries.back().pages) * experts_;
  const auto rows = static_cast<size_t>(exact.layer(layer).q_heads / exact.layer(layer).kv_heads);
  Vector<float> q(size(queries.size(), rows, dim), allocator_);
  const StlAllocator<double> memory(allocator_);
  Vector<double> errors(results, memory);
  Vector<double> energies(queries.size(), memory);
  Vector<double> error_sums(result.size(), 0.0, memory);
  Vector<double> energy_sums(pages * units, 0.0, memory);
  StoredText stored(allocator_, std::span(caches_).first(experts_ + 1), layer, text);
  const Judge judge(stored.stored(), dim, text.n);
  for (int32_t head = 0; head < exact.layer(layer).kv_heads; ++head) {
    stored.decode_head(parallel_, head);
    read_queries(exact, text, queries, head, q);
    std::fill(errors.begin(), errors.end(), 0.0);
    std::fill(energies.begin(), energies.end(), 0.0);
    const auto judge_one = [&](size_t i, float* workspace) noexcept {
      for (size_t row = 0; row < rows; ++row) {
        judge.judge(queries[i], q.data() + (i * rows + row) * dim, workspace, errors.data() + queries[i].result,
                    energies[i]);
      }
    };
    for_each_block(parallel_, allocator_, queries.size(), judge.workspace_numbers(), judge_one);
    const size_t unit = units == 1 ? 0 : static_cast<size_t>(head);
    for (size_t i = 0; i < queries.size(); ++i) {
      const double* of_query = errors.data() + queries[i].result;
      for (int32_t p = 0; p < queries[i].pages; ++p, of_query += experts_) {
        const size_t at = static_cast<size_t>(queries[i].first_page + p) * units + unit;
        energy_sums[at] += energies[i];
        for (size_t expert = 0; expert < experts_; ++expert) error_sums[at * experts_ + expert] += of_query[expert];
      }
    }
  }
  for (size_t i = 0; i < result.size(); ++i) result[i] = relative(error_sums[i], energy_sums[i / experts_]);
  return result;
}

}  // namespace kvq
