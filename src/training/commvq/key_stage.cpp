#include "training/commvq/key_stage.h"

#include "formats/commvq/key_kernels.h"

#include <Eigen/Cholesky>
#include <algorithm>
#include <array>
#include <cmath>
#include <complex>
#include <utility>

namespace kvq::keys {
namespace {

/// Tokens of a chunk whose weights are held at once.
constexpr int32_t kBlock = 32;

/// Below this, what a token's weights add up to has lost the largest of them. A product of three factors that are at
/// most 1 and are exact down to 1e-37 cannot be wrong above it.
constexpr float kLeastSum = 1e-20F;

size_t size(int32_t a, int32_t b) { return static_cast<size_t>(a) * static_cast<size_t>(b); }

float dot(const float* x, const float* y, int32_t n) {
  std::array<float, kLanes> sums{};
  for (int32_t i = 0; i < n; i += kLanes) {
    for (int32_t lane = 0; lane < kLanes; ++lane) sums[static_cast<size_t>(lane)] += x[i + lane] * y[i + lane];
  }
  float sum = 0.0F;
  for (const float each : sums) sum += each;
  return sum;
}

}  // namespace

Statistics::Statistics(Allocator& allocator, int32_t codes_, int32_t group_)
    : codes(codes_),
      group(group_),
      counts(size(codes, codes), StlAllocator<double>(allocator)),
      moments(2 * size(codes, group), StlAllocator<double>(allocator)) {}

double Statistics::error(const KeyEncoder& stage, double energy) const {
  // Σ W·(‖x‖² − 2 Re conj(c)·x + ‖c‖²)
  double sum = energy;
  for (int32_t a = 0; a < codes; ++a) {
    const float* z = stage.code(0, a);
    const double* moment = moments.data() + 2 * size(a, group);
    for (int32_t j = 0; j < group; ++j) {
      sum -= 2.0 * (moment[2 * j] * double{z[j]} + moment[2 * j + 1] * double{z[padded(group) + j]});
    }
    for (int32_t b = 0; b < codes; ++b) {
      sum += counts[size(a, codes) + static_cast<size_t>(b)] *
             double{stage.norms(0)[size(b, stage.width()) + static_cast<size_t>(a)]};
    }
  }
  return sum;
}

Assignment::Partial::Partial(Allocator& allocator, int32_t codes, int32_t group)
    : counts(size(padded(codes), padded(codes)), StlAllocator<float>(allocator)),
      soft_counts(counts.size(), StlAllocator<float>(allocator)),
      by_a(static_cast<size_t>(padded(codes)) * vector_floats(group), StlAllocator<float>(allocator)),
      by_b(by_a.size(), StlAllocator<float>(allocator)),
      encoding(StlAllocator<std::byte>(allocator)),
      indices(2 * kBlock, StlAllocator<uint8_t>(allocator)),
      products(2 * size(kBlock, padded(codes)), StlAllocator<float>(allocator)),
      p(size(kBlock, padded(codes)), StlAllocator<float>(allocator)),
      q(p.size(), StlAllocator<float>(allocator)),
      of_a(p.size(), StlAllocator<float>(allocator)),
      of_b(p.size(), StlAllocator<float>(allocator)) {}

void Assignment::Partial::clear() {
  for (Vector<float>* sums : {&counts, &soft_counts, &by_a, &by_b}) std::fill(sums->begin(), sums->end(), 0.0F);
}

void Assignment::Partial::add(const Tokens& tokens, int32_t token, int32_t a, int32_t b, int32_t width) {
  const float weight = tokens.weight(token);
  const size_t length = tokens.vector();
  const float* x = tokens.vectors + static_cast<size_t>(token) * length;
  float* first = by_a.data() + static_cast<size_t>(a) * length;
  float* second = by_b.data() + static_cast<size_t>(b) * length;
  for (size_t j = 0; j < length; ++j) {
    first[j] += weight * x[j];
    second[j] += weight * x[j];
  }
  counts[size(a, width) + static_cast<size_t>(b)] += weight;
}

Assignment::Assignment(Allocator& allocator, Parallel& parallel, int32_t codes, int32_t group)
    : allocator_(&allocator),
      parallel_(&parallel),
      codes_(codes),
      group_(group),
      partials_(StlAllocator<Partial>(allocator)) {
  partials_.reserve(kChunks);
  for (int32_t i = 0; i < kChunks; ++i) partials_.emplace_back(allocator, codes, group);
}

void Assignment::assign_nearest(const KeyEncoder& stage, const Tokens& tokens, Statistics& statistics) {
  for (Partial& partial : partials_) partial.encoding.resize(stage.work_bytes());
  parallel_->run(kChunks, [&](int32_t i) noexcept {
    Partial& partial = partials_[static_cast<size_t>(i)];
    partial.clear();
    const auto [first, end] = chunk(tokens.n, i);
    assign_nearest(stage, tokens.part(first, end), partial);
  });
  sum_up(statistics);
}

void Assignment::assign_nearest(const KeyEncoder& stage, const Tokens& tokens, Partial& partial) const {
  for (int32_t first = 0; first < tokens.n; first += kBlock) {
    const Tokens block = tokens.part(first, std::min(first + kBlock, tokens.n));
    stage.encode(block.pairs(), nullptr, block.n, 1, partial.encoding, partial.indices.data());
    for (int32_t t = 0; t < block.n; ++t) {
      const uint8_t* index = partial.indices.data() + 2 * t;
      partial.add(block, t, index[0], index[1], stage.width());
    }
  }
}

/// W = p_a · q_b · K_ab, because distance² = ‖x‖² + (‖z_a‖² − 2u_a) + (‖z_b‖² − 2v_b) + 2 Re conj(z_a)·i·z_b: 2·Nc
/// exponentials a token, and the rest are products of matrices.
struct Assignment::Kernel {
  Kernel(Allocator& allocator, const KeyEncoder& stage, float temperature);

  float scale;                  // 1 / temperature
  Vector<float> norms;          // ‖z_a‖², [width]; infinite where there is no code
  Vector<float> k, transposed;  // K and Kᵀ, [width][width], at most 1
};

Assignment::Kernel::Kernel(Allocator& allocator, const KeyEncoder& stage, float temperature)
    : scale(1.0F / temperature),
      norms(static_cast<size_t>(stage.width()), HUGE_VALF, StlAllocator<float>(allocator)),
      k(size(stage.width(), stage.width()), StlAllocator<float>(allocator)),
      transposed(k.size(), StlAllocator<float>(allocator)) {
  const int32_t codes = stage.codes();
  const auto at = [&](int32_t row, int32_t column) { return size(row, stage.width()) + static_cast<size_t>(column); };
  // c(a, a) = (1 + i)·z_a
  for (int32_t a = 0; a < codes; ++a) norms[static_cast<size_t>(a)] = 0.5F * stage.norms(0)[at(a, a)];
  float least = HUGE_VALF;
  for (int32_t b = 0; b < codes; ++b) {
    for (int32_t a = 0; a < codes; ++a) {
      const float mixed = stage.norms(0)[at(b, a)] - norms[static_cast<size_t>(a)] - norms[static_cast<size_t>(b)];
      k[at(a, b)] = mixed;
      least = std::min(least, mixed);
    }
  }
  for (int32_t a = 0; a < codes; ++a) {
    for (int32_t b = 0; b < codes; ++b) {
      k[at(a, b)] = transposed[at(b, a)] = std::exp((least - k[at(a, b)]) * scale);
    }
  }
}

void Assignment::assign_softly(const KeyEncoder& stage, const Tokens& tokens, float temperature,
                               Statistics& statistics) {
  const Kernel kernel(*allocator_, stage, temperature);
  for (Partial& partial : partials_) partial.encoding.resize(stage.work_bytes());
  parallel_->run(kChunks, [&](int32_t i) noexcept {
    Partial& partial = partials_[static_cast<size_t>(i)];
    partial.clear();
    const auto [first, end] = chunk(tokens.n, i);
    assign_softly(stage, tokens.part(first, end), kernel, partial);
  });
  sum_up(statistics);
}

void Assignment::assign_softly(const KeyEncoder& stage, const Tokens& tokens, const Kernel& kernel,
                               Partial& partial) const {
  for (int32_t first = 0; first < tokens.n; first += kBlock) {
    assign_block_softly(stage, tokens.part(first, std::min(first + kBlock, tokens.n)), kernel, partial);
  }
  for (size_t i = 0; i < kernel.k.size(); ++i) partial.counts[i] += partial.soft_counts[i] * kernel.k[i];
}

void Assignment::assign_block_softly(const KeyEncoder& stage, const Tokens& tokens, const Kernel& kernel,
                                     Partial& partial) const {
  const int32_t width = stage.width();
  const int32_t n = tokens.n;
  auto& [counts, soft_counts, by_a, by_b, encoding, indices, products, p, q, of_a, of_b] = partial;
  const KeyKernels& run = *key_kernels().front();
  run.multiply_codes(stage.planes(0), group_, width, tokens.vectors, n, products.data());
  for (int32_t t = 0; t < n; ++t) {
    const float* product = products.data() + 2 * size(t, width);
    std::copy_n(product, width, p.data() + size(t, width));
    std::copy_n(product + width, width, q.data() + size(t, width));
    run.exponentials(kernel.norms.data(), kernel.scale, width, p.data() + size(t, width));
    run.exponentials(kernel.norms.data(), kernel.scale, width, q.data() + size(t, width));
  }
  // Σ_b W and Σ_a W, as yet without p and q.
  run.multiply(q.data(), width, kernel.transposed.data(), width, n, of_a.data());
  run.multiply(p.data(), width, kernel.k.data(), width, n, of_b.data());
  for (int32_t t = 0; t < n; ++t) {
    const std::span<float> row(p.data() + size(t, width), static_cast<size_t>(width));
    const float sum = dot(row.data(), of_a.data() + size(t, width), width);
    const bool in_range = sum >= kLeastSum;
    if (!in_range) {
      stage.encode(tokens.part(t, t + 1).pairs(), nullptr, 1, 1, encoding, indices.data());
      partial.add(tokens, t, indices[0], indices[1], width);
    }
    const float factor = in_range ? tokens.weight(t) / sum : 0.0F;
    for (size_t i = size(t, width); i < size(t + 1, width); ++i) {
      p[i] *= factor;
      of_a[i] *= p[i];
      of_b[i] *= q[i] * factor;
    }
  }
  run.add_products(p.data(), width, q.data(), width, n, soft_counts.data());
  const auto length = static_cast<int32_t>(tokens.vector());
  run.add_products(of_a.data(), width, tokens.vectors, length, n, by_a.data());
  run.add_products(of_b.data(), width, tokens.vectors, length, n, by_b.data());
}

void Assignment::sum_up(Statistics& statistics) {
  const int32_t width = padded(codes_);
  const auto plane = static_cast<size_t>(padded(group_));
  parallel_->run(codes_, [&](int32_t a) noexcept {
    double* counts = statistics.counts.data() + size(a, codes_);
    double* moments = statistics.moments.data() + 2 * size(a, group_);
    std::fill_n(counts, codes_, 0.0);
    std::fill_n(moments, 2 * group_, 0.0);
    for (const Partial& partial : partials_) {
      const float* from = partial.counts.data() + size(a, width);
      for (int32_t b = 0; b < codes_; ++b) counts[b] += double{from[b]};
      const float* x = partial.by_a.data() + 2 * plane * static_cast<size_t>(a);
      const float* y = partial.by_b.data() + 2 * plane * static_cast<size_t>(a);
      for (int32_t j = 0; j < group_; ++j) {
        moments[2 * j] += double{x[j]} + double{y[plane + static_cast<size_t>(j)]};
        moments[2 * j + 1] += double{x[plane + static_cast<size_t>(j)]} - double{y[j]};
      }
    }
  });
}

void fit_codes(const Statistics& statistics, double floor, std::span<float> z) {
  using Complex = std::complex<double>;
  using Matrix = Eigen::Matrix<Complex, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const int32_t codes = statistics.codes;
  const int32_t group = statistics.group;
  // A = diag(row + column sums) + i·(N − Nᵀ)
  const Eigen::Map<const Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>> counts(
      statistics.counts.data(), codes, codes);
  Matrix system = Complex(0.0, 1.0) * (counts - counts.transpose()).cast<Complex>();
  system.diagonal() += (counts.rowwise().sum() + counts.colwise().sum().transpose()).cast<Complex>();
  system.diagonal().array() += floor;

  Matrix solution(codes, group);
  for (int32_t i = 0; i < codes * group; ++i) {
    const Complex moment(statistics.moments[static_cast<size_t>(2 * i)],
                         statistics.moments[static_cast<size_t>(2 * i + 1)]);
    const Complex before(double{z[static_cast<size_t>(2 * i)]}, double{z[static_cast<size_t>(2 * i + 1)]});
    solution.data()[i] = moment + floor * before;
  }
  system.llt().solveInPlace(solution);
  for (int32_t i = 0; i < codes * group; ++i) {
    z[static_cast<size_t>(2 * i)] = static_cast<float>(solution.data()[i].real());
    z[static_cast<size_t>(2 * i + 1)] = static_cast<float>(solution.data()[i].imag());
  }
}

}  // namespace kvq::keys
