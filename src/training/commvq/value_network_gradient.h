// Error of a network's codes for a batch of unit vectors, and its gradient.
#pragma once

#include "core/memory.h"
#include "core/parallel.h"
#include "core/scratch.h"
#include "formats/commvq/value_network_layers.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>

namespace kvq {

enum class NetworkPart { kNormGain, kNormBias, kFirst, kFirstBias, kSecond, kSecondBias, kCodes };

/// Layout of a network's parameters and the jointly trained codes in one array, as optimizers need it. Parts have the
/// shapes of ValueNetwork's arrays; codes are [bits][width].
struct NetworkLayout {
  size_t width;
  size_t hidden;
  size_t bits;  // even

  static constexpr std::array kParts = {NetworkPart::kNormGain,  NetworkPart::kNormBias, NetworkPart::kFirst,
                                        NetworkPart::kFirstBias, NetworkPart::kSecond,   NetworkPart::kSecondBias,
                                        NetworkPart::kCodes};

  size_t outputs() const { return 2 * bits; }
  size_t size(NetworkPart part) const {
    switch (part) {
      case NetworkPart::kNormGain:
      case NetworkPart::kNormBias:
        return width;
      case NetworkPart::kFirst:
        return hidden * width;
      case NetworkPart::kFirstBias:
        return hidden;
      case NetworkPart::kSecond:
        return outputs() * hidden;
      case NetworkPart::kSecondBias:
        return outputs();
      case NetworkPart::kCodes:
        return bits * width;
    }
    return 0;
  }
  size_t begin(NetworkPart part) const {
    size_t sum = 0;
    for (const NetworkPart each : kParts) sum += each < part ? size(each) : 0;
    return sum;
  }
  size_t total() const { return begin(NetworkPart::kCodes) + size(NetworkPart::kCodes); }

  template <typename Real>
  std::span<Real> part(std::span<Real> parameters, NetworkPart part) const {
    return parameters.subspan(begin(part), size(part));
  }
};

/// Bits decoded in training. kHard: those of the largest output, noise included, with a straight-through gradient, that
/// of the soft bits. kSoft: the means of bits under softmax(outputs / temperature), with their true gradient.
enum class BitChoice { kHard, kSoft };

template <typename Real>
class NetworkGradient {
 public:
  /// For batches of `blocks` times kValueBlock vectors.
  NetworkGradient(Allocator& allocator, Parallel& parallel, const NetworkLayout& layout, size_t blocks)
      : allocator_(allocator),
        parallel_(parallel),
        layout_(layout),
        blocks_(blocks),
        standard_(make(layout.width)),
        input_(make(layout.width)),
        input_gradient_(make(layout.width)),
        hidden_(make(layout.hidden)),
        hidden_gradient_(make(layout.hidden)),
        output_gradient_(make(layout.outputs())),
        code_(make(layout.bits)),
        decoded_gradient_(make(layout.width)),
        errors_(blocks, allocator) {}

  size_t tokens() const { return blocks_ * kValueBlock; }

  /// The mean of |w/|w| − u|² over the batch, where w = s·C for the bits s of unit vector u, and its gradient.
  /// `unit(i)` points to vector i of the batch, `noise(i, pair)` gives the noise added to the outputs for a pair of
  /// bits, one number per choice.
  template <typename Units, typename Noise>
  double compute(std::span<const Real> parameters, const Units& unit, const Noise& noise, double temperature,
                 BitChoice choice, std::span<Real> gradient) {
    const auto pass = [&](size_t block, Real* workspace) noexcept {
      errors_[block] = pass_block(parameters, block, unit, noise, temperature, choice, workspace);
    };
    for_each_block<Real>(parallel_, allocator_, blocks_, workspace_numbers(), pass);
    sum_rows(gradient);
    multiply_all(gradient);
    double error = 0;
    for (const double each : errors_) error += each;
    return error / static_cast<double>(tokens());
  }

 private:
  using Numbers = Vector<Real>;

  Numbers make(size_t rows) const { return Numbers(rows * tokens(), allocator_); }

  size_t workspace_numbers() const {
    return (5 * layout_.width + 3 * layout_.hidden + layout_.outputs() + 2 * layout_.bits) * kValueBlock;
  }

  /// Forward and backward pass for one block of vectors, whose columns go to the arrays of the batch.
  template <typename Units, typename Noise>
  double pass_block(std::span<const Real> parameters, size_t block, const Units& unit, const Noise& noise,
                    double temperature, BitChoice choice, Real* workspace) noexcept {
    using namespace network;
    const auto [width, hidden, bits] = layout_;
    const auto part = [&](NetworkPart each) { return layout_.part(parameters, each).data(); };
    const auto take = [&workspace](size_t rows) {
      Real* columns = workspace;
      workspace += rows * kValueBlock;
      return columns;
    };
    Real* target = take(width);
    for (size_t i = 0; i < kValueBlock; ++i) {
      const float* row = unit(block * kValueBlock + i);
      for (size_t c = 0; c < width; ++c) target[c * kValueBlock + i] = row[c];
    }
    Real* standard = take(width);
    Real* input = take(width);
    standardize(target, width, standard);
    shift_rows<Real>(standard, width, part(NetworkPart::kNormGain), part(NetworkPart::kNormBias), input);
    Real* slope = take(hidden);
    Real* active = take(hidden);
    multiply(kernels_, part(NetworkPart::kFirst), width, 1, hidden, width, input, slope);
    shift_rows<Real>(slope, hidden, nullptr, part(NetworkPart::kFirstBias), slope);
    for (size_t i = 0; i < hidden * kValueBlock; ++i) {
      const Gelu gelu(slope[i]);
      active[i] = static_cast<Real>(gelu.value);
      slope[i] = static_cast<Real>(gelu.slope);
    }
    Real* output = take(layout_.outputs());
    multiply(kernels_, part(NetworkPart::kSecond), hidden, 1, layout_.outputs(), hidden, active, output);
    shift_rows<Real>(output, layout_.outputs(), nullptr, part(NetworkPart::kSecondBias), output);
    Real* code = take(bits);
    choose(block, noise, temperature, choice, output, code);

    Real* decoded = take(width);
    const Real* codes = part(NetworkPart::kCodes);
    multiply(kernels_, codes, 1, width, width, bits, code, decoded);
    const double error = renormalized_error(target, width, 1.0 / static_cast<double>(tokens()), decoded);

    Real* code_gradient = take(bits);
    multiply(kernels_, codes, width, 1, bits, width, decoded, code_gradient);
    for (size_t pair = 0; pair < bits / 2; ++pair) {
      for (size_t i = 0; i < kValueBlock; ++i) {
        soften_backward(code_gradient + 2 * pair * kValueBlock + i, temperature,
                        output + pair * kPairChoices * kValueBlock + i);
      }
    }
    Real* hidden_gradient = take(hidden);
    multiply(kernels_, part(NetworkPart::kSecond), 1, hidden, hidden, layout_.outputs(), output, hidden_gradient);
    for (size_t i = 0; i < hidden * kValueBlock; ++i) hidden_gradient[i] *= slope[i];
    Real* input_gradient = take(width);
    multiply(kernels_, part(NetworkPart::kFirst), 1, width, width, hidden, hidden_gradient, input_gradient);

    store(block, standard, width, standard_);
    store(block, input_gradient, width, input_gradient_);
    store(block, hidden_gradient, hidden, hidden_gradient_);
    store(block, output, layout_.outputs(), output_gradient_);
    store(block, code, bits, code_);
    store_transposed(block, input, width, input_);
    store_transposed(block, active, hidden, hidden_);
    store_transposed(block, decoded, width, decoded_gradient_);
    return error;
  }

  /// Compute the bits of a block, and replace its outputs by the probabilities of choices.
  template <typename Noise>
  void choose(size_t block, const Noise& noise, double temperature, BitChoice choice, Real* output,
              Real* code) const noexcept {
    for (size_t pair = 0; pair < layout_.bits / 2; ++pair) {
      for (size_t i = 0; i < kValueBlock; ++i) {
        Real* of_pair = output + pair * kPairChoices * kValueBlock + i;
        Real* bits = code + 2 * pair * kValueBlock + i;
        const auto added = noise(block * kValueBlock + i, pair);
        for (size_t k = 0; k < kPairChoices; ++k) of_pair[k * kValueBlock] += static_cast<Real>(added[k]);
        network::set_bits(network::largest(of_pair, kValueBlock), bits);
        network::soften(of_pair, temperature);
        if (choice == BitChoice::kSoft) network::set_mean_bits(of_pair, bits);
      }
    }
  }

  void store(size_t block, const Real* columns, size_t rows, Numbers& batch) const noexcept {
    for (size_t r = 0; r < rows; ++r) {
      std::copy_n(columns + r * kValueBlock, kValueBlock, batch.data() + r * tokens() + block * kValueBlock);
    }
  }

  void store_transposed(size_t block, const Real* columns, size_t rows, Numbers& batch) const noexcept {
    Real* out = batch.data() + block * kValueBlock * rows;
    for (size_t i = 0; i < kValueBlock; ++i, out += rows) {
      for (size_t r = 0; r < rows; ++r) out[r] = columns[r * kValueBlock + i];
    }
  }

  /// Gradients of biases and of the gain.
  void sum_rows(std::span<Real> gradient) {
    const auto sum = [&](const Numbers& batch, const Numbers* factors, NetworkPart part) {
      const std::span<Real> out = layout_.part(gradient, part);
      const auto sum_block = [&](size_t block, Real*) noexcept {
        const size_t end = std::min(out.size(), (block + 1) * kValueBlock);
        for (size_t r = block * kValueBlock; r < end; ++r) {
          double total = 0;
          for (size_t t = r * tokens(); t < (r + 1) * tokens(); ++t) {
            total += static_cast<double>(batch[t]) * (factors == nullptr ? 1.0 : static_cast<double>((*factors)[t]));
          }
          out[r] = static_cast<Real>(total);
        }
      };
      for_each_block<Real>(parallel_, allocator_, (out.size() + kValueBlock - 1) / kValueBlock, 0, sum_block);
    };
    sum(input_gradient_, &standard_, NetworkPart::kNormGain);
    sum(input_gradient_, nullptr, NetworkPart::kNormBias);
    sum(hidden_gradient_, nullptr, NetworkPart::kFirstBias);
    sum(output_gradient_, nullptr, NetworkPart::kSecondBias);
  }

  /// Gradients of matrices: sums over the batch of left [rows][tokens] times right [tokens][columns].
  struct Product {
    const Numbers& left;
    const Numbers& right;
    size_t rows;
    size_t columns;
    std::span<Real> out;

    size_t blocks() const { return (columns + kValueBlock - 1) / kValueBlock; }
  };

  void multiply_all(std::span<Real> gradient) {
    const auto [width, hidden, bits] = layout_;
    const auto part = [&](NetworkPart each) { return layout_.part(gradient, each); };
    const std::array<Product, 3> products = {
        Product{hidden_gradient_, input_, hidden, width, part(NetworkPart::kFirst)},
        Product{output_gradient_, hidden_, layout_.outputs(), hidden, part(NetworkPart::kSecond)},
        Product{code_, decoded_gradient_, bits, width, part(NetworkPart::kCodes)}};
    size_t blocks = 0;
    for (const Product& product : products) blocks += product.blocks();
    const size_t rows = std::max(layout_.outputs(), hidden);
    const auto multiply_one = [&](size_t block, Real* workspace) noexcept {
      const Product* product = products.data();
      for (; block >= product->blocks(); ++product) block -= product->blocks();
      multiply_columns(*product, block * kValueBlock, workspace);
    };
    for_each_block<Real>(parallel_, allocator_, blocks, (tokens() + rows) * kValueBlock, multiply_one);
  }

  void multiply_columns(const Product& product, size_t first, Real* workspace) const noexcept {
    const size_t n = std::min(kValueBlock, product.columns - first);
    Real* out = workspace + tokens() * kValueBlock;
    std::fill(workspace, out, Real{0});
    for (size_t t = 0; t < tokens(); ++t) {
      std::copy_n(product.right.data() + t * product.columns + first, n, workspace + t * kValueBlock);
    }
    network::multiply(kernels_, product.left.data(), tokens(), 1, product.rows, tokens(), workspace, out);
    for (size_t r = 0; r < product.rows; ++r) {
      std::copy_n(out + r * kValueBlock, n, product.out.data() + r * product.columns + first);
    }
  }

  Allocator& allocator_;
  Parallel& parallel_;
  NetworkLayout layout_;
  const ValueKernels& kernels_ = *value_kernels().front();
  size_t blocks_;
  // Arrays of the batch: [rows][tokens], or as right sides of products [tokens][rows].
  Numbers standard_;
  Numbers input_;  // transposed
  Numbers input_gradient_;
  Numbers hidden_;  // transposed
  Numbers hidden_gradient_;
  Numbers output_gradient_;
  Numbers code_;
  Numbers decoded_gradient_;  // transposed
  Vector<double> errors_;     // [blocks]
};

}  // namespace kvq
