#include "backend/cpu/training/key_assignment.h"

#include "core/sizes.h"
#include "formats/commvq/key_kernels.h"

#include <algorithm>
#include <array>

namespace kvq::keys {
namespace {

/// Tokens of a chunk with weights in memory at once.
constexpr int32_t kBlock = 32;

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

Assignment::Partial::Partial(Allocator& allocator, int32_t codes, int32_t group)
    : counts(size(padded(codes), padded(codes)), allocator),
      soft_counts(counts.size(), allocator),
      by_a(static_cast<size_t>(padded(codes)) * vector_floats(group), allocator),
      by_b(by_a.size(), allocator),
      encoding(allocator),
      indices(2 * kBlock, allocator),
      products(2 * size(kBlock, padded(codes)), allocator),
      p(size(kBlock, padded(codes)), allocator),
      q(p.size(), allocator),
      of_a(p.size(), allocator),
      of_b(p.size(), allocator) {}

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
    : parallel_(&parallel), codes_(codes), group_(group), partials_(allocator) {
  partials_.reserve(kChunks);
  for (int32_t i = 0; i < kChunks; ++i) partials_.emplace_back(allocator, codes, group);
}

void Assignment::assign_nearest(const KeyEncoder& stage, const Tokens& tokens, KeyStatistics& statistics) {
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

void Assignment::assign_softly(const KeyEncoder& stage, const SoftKernel& kernel, const Tokens& tokens,
                               KeyStatistics& statistics) {
  for (Partial& partial : partials_) partial.encoding.resize(stage.work_bytes());
  parallel_->run(kChunks, [&](int32_t i) noexcept {
    Partial& partial = partials_[static_cast<size_t>(i)];
    partial.clear();
    const auto [first, end] = chunk(tokens.n, i);
    assign_softly(stage, tokens.part(first, end), kernel, partial);
  });
  sum_up(statistics);
}

void Assignment::assign_softly(const KeyEncoder& stage, const Tokens& tokens, const SoftKernel& kernel,
                               Partial& partial) const {
  for (int32_t first = 0; first < tokens.n; first += kBlock) {
    assign_block_softly(stage, tokens.part(first, std::min(first + kBlock, tokens.n)), kernel, partial);
  }
  for (size_t i = 0; i < kernel.k.size(); ++i) partial.counts[i] += partial.soft_counts[i] * kernel.k[i];
}

void Assignment::assign_block_softly(const KeyEncoder& stage, const Tokens& tokens, const SoftKernel& kernel,
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
  // Σ_b W and Σ_a W, without the factors p and q.
  run.multiply(q.data(), width, kernel.transposed.data(), width, n, of_a.data());
  run.multiply(p.data(), width, kernel.k.data(), width, n, of_b.data());
  for (int32_t t = 0; t < n; ++t) {
    const std::span<float> row(p.data() + size(t, width), static_cast<size_t>(width));
    const float sum = dot(row.data(), of_a.data() + size(t, width), width);
    const bool in_range = sum >= kLeastSoftSum;
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

void Assignment::sum_up(KeyStatistics& statistics) {
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

}  // namespace kvq::keys
