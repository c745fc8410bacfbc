#include "training/centres/weight_energies.h"

#include "core/error.h"
#include "core/tensor.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

namespace kvq::centres {
namespace {

constexpr size_t kChunk = 256;

class Reader {
 public:
  Reader(Allocator& allocator, Parallel& parallel, const CentresShape& shape, const kvq_attention_weights& weights)
      : allocator_(allocator),
        parallel_(parallel),
        weights_(weights),
        kv_heads_(static_cast<size_t>(shape.kv_heads)),
        dim_(static_cast<size_t>(shape.head_dim)),
        group_(static_cast<size_t>(weights.q_heads) / kv_heads_),
        hidden_(static_cast<size_t>(weights.hidden_size)),
        input_norm_(vector(weights.input_norm, hidden_, "input_norm")) {}

  size_t kv_heads() const { return kv_heads_; }
  size_t dim() const { return dim_; }
  size_t group() const { return group_; }

  /// Empty if it was not given.
  Vector<float> vector(const void* numbers, size_t n, const char* name) const {
    Vector<float> read(allocator_);
    if (numbers == nullptr) return read;
    read.resize(n);
    read_floats(numbers, weights_.dtype, 0, n, read.data());
    const auto bad = std::ranges::find_if_not(read, [](float number) { return std::isfinite(number); });
    if (bad != read.end()) refuse(name, static_cast<size_t>(bad - read.begin()), "number");
    return read;
  }

  /// Σ (w·norm)² of rows.
  Vector<double> rows(const void* matrix, size_t n, const char* name) const {
    Vector<double> energies(n, 0.0, allocator_);
    parallel_.run(static_cast<int32_t>(n), [&](int32_t row) noexcept {
      std::array<float, kChunk> numbers;
      double sum = 0.0;
      for (size_t begin = 0; begin < hidden_; begin += kChunk) {
        const size_t count = std::min(kChunk, hidden_ - begin);
        read_floats(matrix, weights_.dtype, static_cast<size_t>(row) * hidden_ + begin, count, numbers.data());
        for (size_t i = 0; i < count; ++i) {
          const double number = double{numbers[i]} * (input_norm_.empty() ? 1.0 : double{input_norm_[begin + i]});
          sum += number * number;
        }
      }
      energies[static_cast<size_t>(row)] = sum;
    });
    check(energies, name, "row");
    return energies;
  }

  /// Σ w² of columns.
  Vector<double> columns(const void* matrix, size_t n, const char* name) const {
    Vector<double> energies(n, 0.0, allocator_);
    parallel_.run(static_cast<int32_t>((n + kChunk - 1) / kChunk), [&](int32_t chunk) noexcept {
      std::array<float, kChunk> numbers;
      const size_t begin = static_cast<size_t>(chunk) * kChunk;
      const size_t count = std::min(kChunk, n - begin);
      for (size_t row = 0; row < hidden_; ++row) {
        read_floats(matrix, weights_.dtype, row * n + begin, count, numbers.data());
        for (size_t i = 0; i < count; ++i) energies[begin + i] += double{numbers[i]} * double{numbers[i]};
      }
    });
    check(energies, name, "column");
    return energies;
  }

  /// Energies of query heads summed over the KV head that they belong to.
  Vector<double> of_kv_heads(std::span<const double> of_query_heads) const {
    Vector<double> sums(kv_heads_ * dim_, 0.0, allocator_);
    for (size_t i = 0; i < of_query_heads.size(); ++i) {
      sums[i / (group_ * dim_) * dim_ + i % dim_] += of_query_heads[i];
    }
    return sums;
  }

 private:
  [[noreturn]] static void refuse(const char* name, size_t index, const char* what) {
    fail(KVQ_E_ARGUMENT, "weights->%s: %s %zu is not finite", name, what, index);
  }
  static void check(std::span<const double> energies, const char* name, const char* what) {
    const auto bad = std::ranges::find_if_not(energies, [](double energy) { return std::isfinite(energy); });
    if (bad != energies.end()) refuse(name, static_cast<size_t>(bad - energies.begin()), what);
  }

  Allocator& allocator_;
  Parallel& parallel_;
  const kvq_attention_weights& weights_;
  size_t kv_heads_;
  size_t dim_;
  size_t group_;
  size_t hidden_;
  Vector<float> input_norm_;
};

void add_squares(std::span<double> energies, std::span<const float> biases) {
  for (size_t i = 0; i < biases.size(); ++i) energies[i] += double{biases[i]} * double{biases[i]};
}

/// Energies of a norm's outputs, head by head: their mean before its weights is 1.
void normalize(std::span<double> energies, std::span<const float> norm) {
  const size_t dim = norm.size();
  for (size_t head = 0; dim > 0 && head < energies.size(); head += dim) {
    double mean = 0.0;
    for (size_t i = 0; i < dim; ++i) mean += energies[head + i] / static_cast<double>(dim);
    for (size_t i = 0; i < dim; ++i) {
      energies[head + i] *= (mean > 0.0 ? 1.0 / mean : 0.0) * double{norm[i]} * double{norm[i]};
    }
  }
}

void put_offsets(std::span<const float> biases, size_t n, Vector<double>& offsets) {
  offsets.assign(n, 0.0);
  std::ranges::copy(biases, offsets.begin());
}

}  // namespace

WeightEnergies energies_of(Allocator& allocator, Parallel& parallel, const CentresShape& shape,
                           const kvq_attention_weights& weights) {
  const Reader reader(allocator, parallel, shape, weights);
  const size_t heads = reader.kv_heads() * reader.dim();
  const size_t query_heads = heads * reader.group();
  const Vector<float> q_norm = reader.vector(weights.q_norm, reader.dim(), "q_norm");
  const Vector<float> k_norm = reader.vector(weights.k_norm, reader.dim(), "k_norm");
  WeightEnergies found(allocator);
  found.normed = weights.q_norm != nullptr || weights.k_norm != nullptr;
  if (weights.q_proj != nullptr) {
    Vector<double> queries = reader.rows(weights.q_proj, query_heads, "q_proj");
    add_squares(queries, reader.vector(weights.q_bias, query_heads, "q_bias"));
    normalize(queries, q_norm);
    found.queries = reader.of_kv_heads(queries);
  }
  if (weights.k_proj != nullptr) {
    found.keys = reader.rows(weights.k_proj, heads, "k_proj");
    const Vector<float> biases = reader.vector(weights.k_bias, heads, "k_bias");
    // A norm makes the bias a part of what varies.
    if (!k_norm.empty()) add_squares(found.keys, biases);
    normalize(found.keys, k_norm);
    put_offsets(k_norm.empty() ? std::span<const float>(biases) : std::span<const float>(), heads, found.key_offsets);
  }
  if (weights.v_proj != nullptr) {
    found.values = reader.rows(weights.v_proj, heads, "v_proj");
    put_offsets(reader.vector(weights.v_bias, heads, "v_bias"), heads, found.value_offsets);
  }
  if (weights.o_proj != nullptr)
    found.outputs = reader.of_kv_heads(reader.columns(weights.o_proj, query_heads, "o_proj"));
  return found;
}

}  // namespace kvq::centres
