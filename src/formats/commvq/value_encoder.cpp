#include "formats/commvq/value_encoder.h"

#include "core/float16.h"
#include "core/scratch.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <numeric>

namespace kvq {
namespace {

/// Smaller gains are rounding errors of numbers around 1 and could oscillate forever.
constexpr float kLeastGain = 1e-6F;

/// Limit of flips per bit and stage. A search flips about every second bit, and once; rounding errors exceed the least
/// gain only if a code's numbers are far from 1, unlike in any trained one.
constexpr int64_t kMostFlipsOfBit = 8;

/// Limit of an unbiased scale, in scales of least error: |scale · w − x|² then is at most |x|², the error of a zero.
constexpr double kMostScale = 2.0;

size_t padded(size_t bits) { return (bits + kValueBitPadding - 1) / kValueBitPadding * kValueBitPadding; }

/// Scale column `i` to unit length; returns its previous length.
double normalise(float* columns, size_t width, size_t i) {
  double sum = 0;
  for (size_t c = 0; c < width; ++c) {
    const double x = columns[c * kValueBlock + i];
    sum += x * x;
  }
  const double norm = std::sqrt(sum);
  const auto inverse = static_cast<float>(norm > 0 ? 1 / norm : 0);
  for (size_t c = 0; c < width; ++c) columns[c * kValueBlock + i] *= inverse;
  return norm;
}

}  // namespace

/// Work space for a block of vectors, which are columns.
struct ValueEncoder::Workspace {
  Workspace(float* memory, size_t width, size_t bits, size_t padded_bits)
      : unit(memory),
        residual(unit + width * kValueBlock),
        bit(residual + width * kValueBlock),
        wanted(bit + bits * kValueBlock),
        decoded(wanted + bits * kValueBlock),
        search(decoded + bits * kValueBlock),
        end(search + 3 * padded_bits) {}

  float* unit;      // [width][kValueBlock]
  float* residual;  // unit minus its decoded part so far: [width][kValueBlock]
  float* bit;       // 0 or 1: [bits][kValueBlock]
  float* wanted;    // C·unit: [bits][kValueBlock]
  float* decoded;   // C·Cᵀ·bit: [bits][kValueBlock]
  float* search;    // one column's search: [3][padded_bits]
  float* end;       // where the network's work space begins
};

/// Search for one vector. The best scale of a code w for a unit vector u is ⟨u, w⟩ / ⟨w, w⟩; it changes with every
/// flip.
struct ValueEncoder::Search {
  FlipSearch arrays;
  double product;  // ⟨u, w⟩
  double norm;     // ⟨w, w⟩

  bool has_scale() const { return product > 0 && norm > 0; }
  double scale() const { return has_scale() ? product / norm : 0; }
  double unbiased_scale() const {
    return has_scale() && norm <= kMostScale * product * product ? 1 / product : scale();
  }
  float inverse_scale() const { return has_scale() ? static_cast<float>(norm / product) : 1.0F; }
};

ValueEncoder::ValueEncoder(Allocator& allocator, Parallel& parallel, const ValueCode& code, const ValueKernels& kernels)
    : code_(code),
      kernels_(kernels),
      stages_(code.network.empty() ? static_cast<size_t>((code.bits + code.width - 1) / code.width) : 1),
      padded_bits_(padded(static_cast<size_t>(code.bits))),
      gram_(size(code.bits, padded_bits_), allocator),
      half_norm_(padded_bits_, allocator),
      offsets_(size(stages_, code.width), allocator),
      offset_products_(size(stages_, code.bits), allocator),
      offset_norms_(stages_, allocator) {
  fill_gram(allocator, parallel);
  fill_offsets();
}

size_t ValueEncoder::stage_end(size_t stage) const {
  if (stage + 1 == stages_) return static_cast<size_t>(code_.bits);
  return (stage + 1) * static_cast<size_t>(code_.width);
}

void ValueEncoder::fill_gram(Allocator& allocator, Parallel& parallel) {
  const auto width = static_cast<size_t>(code_.width);
  const auto bits = static_cast<size_t>(code_.bits);
  const float* codes = code_.codes.data();
  const auto fill_columns = [&](size_t block, float* columns) noexcept {
    float* products = columns + width * kValueBlock;
    const size_t first = block * kValueBlock;
    const size_t n = std::min(kValueBlock, bits - first);
    std::fill(columns, products, 0.0F);
    for (size_t i = 0; i < n; ++i) {
      for (size_t c = 0; c < width; ++c) columns[c * kValueBlock + i] = codes[(first + i) * width + c];
    }
    kernels_.multiply({codes, width}, bits, width, columns, products);
    for (size_t row = 0; row < bits; ++row) {
      std::copy_n(products + row * kValueBlock, n, gram_.data() + row * padded_bits_ + first);
    }
  };
  for_each_block(parallel, allocator, (bits + kValueBlock - 1) / kValueBlock, (width + bits) * kValueBlock,
                 fill_columns);
  for (size_t n = 0; n < bits; ++n) half_norm_[n] = gram_[n * padded_bits_ + n] / 2;
}

void ValueEncoder::fill_offsets() {
  const auto width = static_cast<size_t>(code_.width);
  const auto bits = static_cast<size_t>(code_.bits);
  for (size_t stage = 0; stage < stages_; ++stage) {
    float* offset = offsets_.data() + stage * width;
    std::copy_n(code_.offset.data(), width, offset);
    for (size_t n = stage_end(stage); n < bits; ++n) {
      for (size_t c = 0; c < width; ++c) offset[c] += code_.codes[n * width + c] / 2;
    }
    for (size_t n = 0; n < bits; ++n) {
      offset_products_[stage * bits + n] =
          static_cast<float>(std::inner_product(offset, offset + width, code_.codes.data() + n * width, 0.0));
    }
    offset_norms_[stage] = std::inner_product(offset, offset + width, offset, 0.0);
  }
}

size_t ValueEncoder::workspace_floats() const {
  return (2 * static_cast<size_t>(code_.width) + 3 * static_cast<size_t>(code_.bits)) * kValueBlock + 3 * padded_bits_ +
         code_.network.workspace_floats();
}

/// Write the unit vector of v / channel_scale to a column and return the norm.
double ValueEncoder::load_unit(const float* vector, float* column) const noexcept {
  const auto width = static_cast<size_t>(code_.width);
  for (size_t c = 0; c < width; ++c) column[c * kValueBlock] = vector[c] / code_.channel_scale[c];
  return normalise(column, width, 0);
}

/// Guess the bits of a stage, and compute the starting point of its search.
void ValueEncoder::guess(size_t stage, const Workspace& workspace) const noexcept {
  const auto width = static_cast<size_t>(code_.width);
  const size_t first = stage * width;
  const size_t end = stage_end(stage);
  const float* columns = stage == 0 ? workspace.unit : workspace.residual;
  float* bit = workspace.bit + first * kValueBlock;
  if (code_.network.empty()) {
    kernels_.multiply({code_.proposal.data() + first * width, width}, end - first, width, columns, bit);
    for (size_t n = first; n < end; ++n) {
      for (size_t i = 0; i < kValueBlock; ++i, ++bit) *bit = *bit + code_.proposal_bias[n] > 0 ? 1.0F : 0.0F;
    }
  } else {
    propose_bits(code_.network, kernels_, columns, workspace.end, bit);
  }
  kernels_.multiply({code_.codes.data() + first * width, width}, end - first, width, workspace.unit,
                    workspace.wanted + first * kValueBlock);
  kernels_.multiply({gram_.data(), padded_bits_}, end, end, workspace.bit, workspace.decoded);
}

/// Gather one column of guess()'s results.
ValueEncoder::Search ValueEncoder::start_search(size_t stage, const Workspace& workspace,
                                                size_t column) const noexcept {
  float* wanted = workspace.search;
  float* decoded = wanted + padded_bits_;
  float* step = decoded + padded_bits_;
  std::fill(wanted, workspace.end, 0.0F);
  double product = 0;
  for (size_t c = 0; c < static_cast<size_t>(code_.width); ++c) {
    product += static_cast<double>(offset(stage)[c]) * workspace.unit[c * kValueBlock + column];
  }
  double norm = offset_norms_[stage];
  const float* offset_product = offset_products_.data() + stage * static_cast<size_t>(code_.bits);
  for (size_t n = 0; n < stage_end(stage); ++n) {
    const size_t i = n * kValueBlock + column;
    wanted[n] = workspace.wanted[i];
    decoded[n] = workspace.decoded[i] + offset_product[n];
    step[n] = 1 - 2 * workspace.bit[i];
    if (step[n] > 0) continue;
    product += static_cast<double>(wanted[n]);
    norm += static_cast<double>(decoded[n]) + offset_product[n];  // ⟨offset + Σ c, w⟩, row by row
  }
  const FlipSearch bits{.bits = padded(stage_end(stage)),
                        .wanted = wanted,
                        .half_norm = half_norm_.data(),
                        .decoded = decoded,
                        .step = step};
  return {bits, product, norm};
}

int64_t ValueEncoder::flip(Search& search, int32_t max_flips) const noexcept {
  int64_t flips = 0;
  const FlipSearch& arrays = search.arrays;
  const int64_t most = std::min<int64_t>(max_flips, kMostFlipsOfBit * static_cast<int64_t>(arrays.bits));
  Flip best = kernels_.best_flip(arrays, gram_.data(), 0.0F, search.inverse_scale());
  for (; flips < most && best.gain > kLeastGain; ++flips) {
    const auto bit = static_cast<size_t>(best.bit);
    const float step = arrays.step[bit];
    search.product += static_cast<double>(step) * arrays.wanted[bit];
    search.norm += 2 * (static_cast<double>(step) * arrays.decoded[bit] + half_norm_[bit]);
    arrays.step[bit] = -step;
    best = kernels_.best_flip(arrays, gram_.data() + bit * padded_bits_, step, search.inverse_scale());
  }
  return flips;
}

/// residual = `unit` minus the scaled sum of offset and bits up to `stage`, normalised.
void ValueEncoder::subtract_decoded(size_t stage, const Workspace& workspace, const float* scales) const noexcept {
  const auto width = static_cast<size_t>(code_.width);
  kernels_.multiply({code_.codes.data(), 1, width}, width, stage_end(stage), workspace.bit, workspace.residual);
  for (size_t c = 0; c < width; ++c) {
    for (size_t i = 0; i < kValueBlock; ++i) {
      float& residual = workspace.residual[c * kValueBlock + i];
      residual = workspace.unit[c * kValueBlock + i] - scales[i] * (offset(stage)[c] + residual);
    }
  }
  for (size_t i = 0; i < kValueBlock; ++i) normalise(workspace.residual, width, i);
}

int64_t ValueEncoder::encode_block(const float* vectors, size_t stride, size_t n, int32_t max_flips, ValueScale scale,
                                   float* memory, uint32_t* codes, uint16_t* scales) const noexcept {
  const auto width = static_cast<size_t>(code_.width);
  const auto bits = static_cast<size_t>(code_.bits);
  const Workspace workspace(memory, width, bits, padded_bits_);
  std::fill(workspace.unit, workspace.residual, 0.0F);
  double norms[kValueBlock] = {};
  for (size_t i = 0; i < n; ++i) norms[i] = load_unit(vectors + i * stride, workspace.unit + i);

  int64_t flips = 0;
  float unit_scales[kValueBlock] = {};
  for (size_t stage = 0; stage < stages_; ++stage) {
    if (stage > 0) subtract_decoded(stage - 1, workspace, unit_scales);
    guess(stage, workspace);
    for (size_t i = 0; i < n; ++i) {
      if (norms[i] == 0) continue;
      Search search = start_search(stage, workspace, i);
      flips += flip(search, max_flips);
      const bool unbiased = scale == ValueScale::kUnbiased && stage + 1 == stages_;
      unit_scales[i] = static_cast<float>(unbiased ? search.unbiased_scale() : search.scale());
      for (size_t bit = 0; bit < stage_end(stage); ++bit) {
        workspace.bit[bit * kValueBlock + i] = search.arrays.step[bit] < 0 ? 1.0F : 0.0F;
      }
    }
  }

  std::fill_n(codes, n * words(), 0U);
  for (size_t i = 0; i < n; ++i) {
    scales[i] = to_float16(static_cast<float>(std::min(norms[i] * unit_scales[i], static_cast<double>(kMaxFloat16))));
    if (scales[i] == 0) continue;
    for (size_t bit = 0; bit < bits; ++bit) {
      if (workspace.bit[bit * kValueBlock + i] != 0) codes[i * words() + bit / 32] |= 1U << (bit % 32);
    }
  }
  return flips;
}

int64_t ValueEncoder::encode(Allocator& allocator, Parallel& parallel, const float* vectors, size_t stride, size_t n,
                             uint32_t* codes, uint16_t* scales, int32_t max_flips) const {
  std::atomic<int64_t> flips{0};
  const auto encode_one = [&](size_t block, float* workspace) noexcept {
    const size_t first = block * kValueBlock;
    flips += encode_block(vectors + first * stride, stride, std::min(kValueBlock, n - first), max_flips,
                          ValueScale::kLeastError, workspace, codes + first * words(), scales + first);
  };
  for_each_block(parallel, allocator, (n + kValueBlock - 1) / kValueBlock, workspace_floats(), encode_one);
  return flips;
}

}  // namespace kvq
