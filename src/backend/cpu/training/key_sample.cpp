// Keys that codes are trained on, in host memory.
#include "backend/cpu/training/host_training.h"
#include "core/sizes.h"
#include "formats/commvq/key_kernels.h"

#include <algorithm>
#include <array>
#include <complex>
#include <optional>

namespace kvq::cpu {
namespace {

using keys::padded;
using keys::vector_floats;
using Complex = std::complex<double>;

/// Number of work pieces, fixed so that the order of sums does not depend on the number of threads.
constexpr int32_t kChunks = 64;
/// Tokens of a chunk with weights in memory at once.
constexpr int32_t kTokensAtOnce = 32;

float dot(const float* x, const float* y, int32_t n) {
  std::array<float, keys::kLanes> sums{};
  for (int32_t i = 0; i < n; i += keys::kLanes) {
    for (int32_t lane = 0; lane < keys::kLanes; ++lane) sums[size(lane)] += x[i + lane] * y[i + lane];
  }
  float sum = 0.0F;
  for (const float each : sums) sum += each;
  return sum;
}

/// Vectors to encode.
struct Tokens {
  float* vectors;        // planar, [n][vector_floats(group)]
  const float* weights;  // [n] weights of the tokens' errors; null: 1
  int32_t n;
  int32_t group;

  size_t length() const { return vector_floats(group); }
  float* vector(int32_t token) const { return vectors + size(token) * length(); }
  float weight(int32_t token) const { return weights == nullptr ? 1.0F : weights[token]; }
  KeyPairs pairs() const { return {vectors, vectors + padded(group), length(), 1}; }
  Tokens part(int32_t first, int32_t end) const {
    return {vector(first), weights == nullptr ? nullptr : weights + first, end - first, group};
  }
  int32_t begin_of_chunk(int32_t i) const { return static_cast<int32_t>(int64_t{i} * n / kChunks); }
  Tokens chunk(int32_t i) const { return part(begin_of_chunk(i), begin_of_chunk(i + 1)); }
  /// Σ weight · ‖vector‖².
  double energy() const {
    double sum = 0.0;
    for (int32_t t = 0; t < n; ++t) {
      double squares = 0.0;
      for (const float x : std::span(vector(t), length())) squares += double{x} * double{x};
      sum += double{weight(t)} * squares;
    }
    return sum;
  }
};

/// Sums of a chunk.
struct Partial {
  Partial(Allocator& allocator, int32_t codes, int32_t group)
      : counts(size(padded(codes), padded(codes)), allocator),
        soft_counts(counts.size(), allocator),
        by_a(size(padded(codes)) * vector_floats(group), allocator),
        by_b(by_a.size(), allocator),
        encoding(allocator),
        indices(2 * kTokensAtOnce, allocator),
        products(2 * size(kTokensAtOnce, padded(codes)), allocator),
        p(size(kTokensAtOnce, padded(codes)), allocator),
        q(p.size(), allocator),
        of_a(p.size(), allocator),
        of_b(p.size(), allocator) {}

  Vector<float> counts;       // [width of a][width of b]
  Vector<float> soft_counts;  // without the factor of W that depends on (a, b) alone
  Vector<float> by_a;         // [width][vector] sums of the vectors
  Vector<float> by_b;
  // Work space for a block of tokens.
  Vector<std::byte> encoding;
  Vector<uint8_t> indices;   // {a, b}
  Vector<float> products;    // [2 * width]
  Vector<float> p, q;        // [width]
  Vector<float> of_a, of_b;  // [width]

  void clear() {
    for (Vector<float>* sums : {&counts, &soft_counts, &by_a, &by_b}) std::fill(sums->begin(), sums->end(), 0.0F);
  }
  void add(const Tokens& tokens, int32_t token, const uint8_t* index, int32_t width) {
    const float weight = tokens.weight(token);
    const size_t length = tokens.length();
    const float* x = tokens.vector(token);
    float* first = by_a.data() + index[0] * length;
    float* second = by_b.data() + index[1] * length;
    for (size_t j = 0; j < length; ++j) {
      first[j] += weight * x[j];
      second[j] += weight * x[j];
    }
    counts[size(index[0], width) + index[1]] += weight;
  }
};

/// Assignment of tokens to centres, for one stage of codes: E-steps.
class Assignment {
 public:
  Assignment(Allocator& allocator, Parallel& parallel, int32_t codes, int32_t group)
      : parallel_(parallel), codes_(codes), group_(group), partials_(allocator) {
    partials_.reserve(kChunks);
    for (int32_t i = 0; i < kChunks; ++i) partials_.emplace_back(allocator, codes, group);
  }

  int32_t codes() const { return codes_; }
  /// Assigns each token to its nearest centre, or with a kernel weighs its assignment to every centre (CommVQ eq. 35);
  /// tokens whose weights leave the range of a float go to the nearest centre alone.
  void assign(const KeyEncoder& stage, const SoftKernel* kernel, const Tokens& tokens, KeyStatistics& statistics) {
    for (Partial& partial : partials_) partial.encoding.resize(stage.work_bytes());
    parallel_.run(kChunks, [&](int32_t i) noexcept {
      Partial& partial = partials_[size(i)];
      partial.clear();
      const Tokens chunk = tokens.chunk(i);
      for (int32_t first = 0; first < chunk.n; first += kTokensAtOnce) {
        const Tokens block = chunk.part(first, std::min(first + kTokensAtOnce, chunk.n));
        kernel == nullptr ? assign_block(stage, block, partial) : assign_block_softly(stage, block, *kernel, partial);
      }
      if (kernel == nullptr) return;
      for (size_t c = 0; c < kernel->k.size(); ++c) partial.counts[c] += partial.soft_counts[c] * kernel->k[c];
    });
    sum_up(statistics);
  }

 private:
  static void assign_block(const KeyEncoder& stage, const Tokens& tokens, Partial& partial) {
    stage.encode(tokens.pairs(), nullptr, tokens.n, 1, partial.encoding, partial.indices.data());
    for (int32_t t = 0; t < tokens.n; ++t) partial.add(tokens, t, partial.indices.data() + 2 * t, stage.width());
  }

  void assign_block_softly(const KeyEncoder& stage, const Tokens& tokens, const SoftKernel& kernel,
                           Partial& partial) const {
    const int32_t width = stage.width();
    const int32_t n = tokens.n;
    auto& [counts, soft_counts, by_a, by_b, encoding, indices, products, p, q, of_a, of_b] = partial;
    const keys::KeyKernels& run = *keys::key_kernels().front();
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
      const float sum = dot(p.data() + size(t, width), of_a.data() + size(t, width), width);
      const bool in_range = sum >= kLeastSoftSum;
      if (!in_range) {
        stage.encode(tokens.part(t, t + 1).pairs(), nullptr, 1, 1, encoding, indices.data());
        partial.add(tokens, t, indices.data(), width);
      }
      const float factor = in_range ? tokens.weight(t) / sum : 0.0F;
      for (size_t i = size(t, width); i < size(t + 1, width); ++i) {
        p[i] *= factor;
        of_a[i] *= p[i];
        of_b[i] *= q[i] * factor;
      }
    }
    run.add_products(p.data(), width, q.data(), width, n, soft_counts.data());
    const auto length = static_cast<int32_t>(tokens.length());
    run.add_products(of_a.data(), width, tokens.vectors, length, n, by_a.data());
    run.add_products(of_b.data(), width, tokens.vectors, length, n, by_b.data());
  }

  void sum_up(KeyStatistics& statistics) {
    const int32_t width = padded(codes_);
    const size_t plane = size(padded(group_));
    parallel_.run(codes_, [&](int32_t a) noexcept {
      double* counts = statistics.counts.data() + size(a, codes_);
      double* moments = statistics.moments.data() + 2 * size(a, group_);
      std::fill_n(counts, codes_, 0.0);
      std::fill_n(moments, 2 * group_, 0.0);
      for (const Partial& partial : partials_) {
        const float* from = partial.counts.data() + size(a, width);
        for (int32_t b = 0; b < codes_; ++b) counts[b] += double{from[b]};
        const float* x = partial.by_a.data() + 2 * plane * size(a);
        const float* y = partial.by_b.data() + 2 * plane * size(a);
        for (size_t j = 0; j < size(group_); ++j) {
          moments[2 * j] += double{x[j]} + double{y[plane + j]};
          moments[2 * j + 1] += double{x[plane + j]} - double{y[j]};
        }
      }
    });
  }

  Parallel& parallel_;
  int32_t codes_;
  int32_t group_;
  Vector<Partial> partials_;
};

class HostKeySample final : public KeySample {
 public:
  HostKeySample(Allocator& allocator, Parallel& parallel, const KeyVectors& keys)
      : allocator_(allocator),
        parallel_(parallel),
        keys_(keys),
        rest_(keys.numbers.begin(), keys.numbers.end(), allocator),
        residuals_{rest_.data(), keys.weights.empty() ? nullptr : keys.weights.data(), keys.n, keys.group},
        indices_(allocator) {}

  void restore() override { std::copy(keys_.numbers.begin(), keys_.numbers.end(), rest_.begin()); }
  double energy(int32_t n) override { return residuals_.part(0, n).energy(); }
  double plain_energy() override { return Tokens{residuals_.vectors, nullptr, keys_.n, keys_.group}.energy(); }
  void read(std::span<const int32_t> keys, float* vectors) override {
    for (const int32_t key : keys) vectors = std::copy_n(residuals_.vector(key), residuals_.length(), vectors);
  }
  void assign_nearest(const KeyEncoder& stage, KeyStatistics& statistics) override {
    assignment(stage.codes()).assign(stage, nullptr, residuals_, statistics);
  }
  void assign_softly(const KeyEncoder& stage, const SoftKernel& kernel, int32_t n, KeyStatistics& statistics) override {
    assignment(stage.codes()).assign(stage, &kernel, residuals_.part(0, n), statistics);
  }
  void encode(const KeyEncoder& encoder, int32_t beam) override {
    const size_t row = 2 * size(encoder.stages());
    const keys::KeyKernels& run = *keys::key_kernels().front();
    const size_t work_bytes = encoder.work_bytes();
    Vector<std::byte> work(kChunks * work_bytes, allocator_);
    indices_.resize(size(residuals_.n, row));
    parallel_.run(kChunks, [&](int32_t i) noexcept {
      const Tokens chunk = residuals_.chunk(i);
      uint8_t* index = indices_.data() + size(residuals_.begin_of_chunk(i)) * row;
      encoder.encode(chunk.pairs(), nullptr, chunk.n, beam, std::span(work).subspan(size(i) * work_bytes, work_bytes),
                     index);
      for (int32_t t = 0; t < chunk.n; ++t) {
        float* vector = chunk.vector(t);
        for (int32_t stage = 0; stage < encoder.stages(); ++stage, index += 2) {
          run.subtract_centre(vector, encoder.code(stage, index[0]), encoder.code(stage, index[1]), padded(chunk.group),
                              vector);
        }
      }
    });
  }
  std::span<const uint8_t> indices() override { return indices_; }
  void add_equations(const KeyEncoder& encoder, std::span<Complex> system, std::span<Complex> sides) override {
    const int32_t stages = encoder.stages();
    const size_t codes = size(encoder.codes());
    parallel_.run(stages * (stages + 1) / 2 + stages, [&](int32_t i) noexcept {
      if (i < stages) return add_side(size(i), size(stages), sides.subspan(size(i) * codes * size(keys_.group)));
      int32_t first = 0;
      int32_t second = i - stages;
      while (second > first) second -= ++first;
      const size_t stride = size(stages) * codes;
      add_pair(size(first), size(second), size(stages),
               system.data() + size(first) * codes * stride + size(second) * codes, stride);
    });
  }

 private:
  Assignment& assignment(int32_t codes) {
    if (!assignment_ || assignment_->codes() != codes) {
      assignment_.reset();
      assignment_.emplace(allocator_, parallel_, codes, keys_.group);
    }
    return *assignment_;
  }

  /// Adds the block of two stages, second ≤ first: only the lower triangle is used.
  void add_pair(size_t first, size_t second, size_t stages, Complex* corner, size_t stride) const noexcept {
    const auto block = [&](uint8_t row, uint8_t column) -> Complex& { return corner[row * stride + column]; };
    const uint8_t* index = indices_.data();
    for (int32_t t = 0; t < residuals_.n; ++t, index += 2 * stages) {
      const uint8_t a = index[2 * first];
      const uint8_t b = index[2 * first + 1];
      const uint8_t c = index[2 * second];
      const uint8_t d = index[2 * second + 1];
      const double weight = residuals_.weight(t);
      block(a, c) += weight;
      block(b, d) += weight;
      block(a, d) += Complex(0.0, weight);
      block(b, c) -= Complex(0.0, weight);
    }
  }

  void add_side(size_t stage, size_t stages, std::span<Complex> rows) const noexcept {
    const size_t group = size(residuals_.group);
    const uint8_t* index = indices_.data() + 2 * stage;
    for (int32_t t = 0; t < residuals_.n; ++t, index += 2 * stages) {
      const float* real = residuals_.vector(t);
      const float* imaginary = real + padded(residuals_.group);
      const double weight = residuals_.weight(t);
      Complex* a = rows.data() + index[0] * group;
      Complex* b = rows.data() + index[1] * group;
      for (size_t j = 0; j < group; ++j) {
        const Complex moment(weight * double{real[j]}, weight * double{imaginary[j]});
        a[j] += moment;
        b[j] += Complex(moment.imag(), -moment.real());
      }
    }
  }

  Allocator& allocator_;
  Parallel& parallel_;
  KeyVectors keys_;
  Vector<float> rest_;
  Tokens residuals_;
  Vector<uint8_t> indices_;
  std::optional<Assignment> assignment_;  // sized for the codes of the last stage
};

}  // namespace

Owned<KeySample> HostTraining::make_key_sample(Allocator& allocator, const KeyVectors& keys) {
  return make_owned<HostKeySample>(allocator, allocator, parallel_, keys);
}

}  // namespace kvq::cpu
