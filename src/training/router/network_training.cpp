#include "training/router/network_training.h"

#include "core/float16.h"
#include "core/splitmix.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>
#include <numeric>

namespace kvq {
namespace {

constexpr size_t kBatchTokens = 128;
constexpr double kWeightDecay = 1e-4;

/// A finite FP16 number as a float: unlike from_float16() without branches, for loops that compilers vectorize.
float widen(uint16_t half) {
  const float magnitude = std::bit_cast<float>((half & 0x7FFFU) << 13U) * 0x1p112F;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | (half & 0x8000U) << 16U);
}

/// In (0, 1].
double uniform(uint64_t bits) { return (static_cast<double>(bits >> 11U) + 1.0) * 0x1p-53; }

float normal(uint64_t seed, uint64_t index) {
  const double radius = std::sqrt(-2.0 * std::log(uniform(splitmix64(seed, 2 * index))));
  return static_cast<float>(radius * std::cos(2.0 * std::numbers::pi * uniform(splitmix64(seed, 2 * index + 1))));
}

/// Scales that give every channel mean square 1; 0 for a negligible channel.
void find_scales(const RouterPages& pages, std::span<float> scales) {
  std::array<double, kMaxHeadDim> squares{};
  for (size_t token = 0; token < pages.tokens(); ++token) {
    const uint16_t* key = pages.key(token);
    for (size_t d = 0; d < pages.head_dim; ++d) {
      const auto x = static_cast<double>(widen(key[d]));
      squares[d] += x * x;
    }
  }
  constexpr double kSmallest = 1e-6;  // of the largest: noise is not amplified
  const double largest = *std::max_element(squares.begin(), squares.end());
  for (size_t d = 0; d < pages.head_dim; ++d) {
    const bool used = squares[d] > kSmallest * largest;
    scales[d] = used ? static_cast<float>(1.0 / std::sqrt(squares[d] / static_cast<double>(pages.tokens()))) : 0.0F;
  }
}

}  // namespace

NetworkTraining::NetworkTraining(Allocator& allocator, const RouterPages& pages, size_t experts, uint64_t seed)
    : pages_(pages),
      layout_{experts, pages.head_dim},
      seed_(seed),
      scale_(pages.head_dim, allocator),
      gradient_(layout_.total(), 0.0F, allocator),
      order_(pages.tokens(), allocator),
      batch_(pages.tokens_of_page() * pages.head_dim, allocator),
      ways_(pages.tokens_of_page(), allocator),
      state_(allocator, layout_.total()),
      saved_(state_) {
  find_scales(pages, scale_);
  // Gates of about 1, and a third matrix near the identity: each hidden number stands for one expert.
  const float wide = 1.0F / std::sqrt(static_cast<float>(pages.head_dim));
  for (size_t i = 0; i < layout_.w3(); ++i) state_.parameters[i] = wide * normal(seed, i);
  for (size_t from = 0; from < experts; ++from) {
    for (size_t to = 0; to < experts; ++to) {
      const size_t i = layout_.w3() + from * experts + to;
      state_.parameters[i] = (from == to ? 1.0F : 0.0F) + 0.1F * normal(seed, i);
    }
  }
}

void NetworkTraining::learn_labels(std::span<const uint8_t> labels, std::span<const float> weights,
                                   double rate) noexcept {
  shuffle(pages_.tokens());
  RouterPass<float>& way = ways_.front();
  for (size_t begin = 0; begin < order_.size(); begin += kBatchTokens) {
    const size_t end = std::min(begin + kBatchTokens, order_.size());
    std::fill(gradient_.begin(), gradient_.end(), 0.0F);
    for (size_t i = begin; i < end; ++i) {
      const uint8_t label = labels[order_[i] / pages_.tokens_of_unit()];
      load(order_[i], batch_.data());
      router_forward(layout_, state_.parameters.data(), batch_.data(), way);
      std::array<float, kMaxExperts> slopes;
      const float weight = weights[label] / static_cast<float>(end - begin);
      for (size_t j = 0; j < layout_.experts; ++j) {
        slopes[j] = weight * (way.probabilities[j] - (j == label ? 1.0F : 0.0F));
      }
      router_backward(layout_, state_.parameters.data(), batch_.data(), way, slopes.data(), gradient_.data());
    }
    step(rate);
  }
}

void NetworkTraining::learn_paper(const PaperLoss<float>& loss, double rate) noexcept {
  const size_t pages = pages_.keys.size();
  const size_t tokens = pages_.tokens_of_unit();
  const size_t in_batch = std::max<size_t>(kBatchTokens / tokens, 1);
  const size_t count = pages * pages_.units;
  shuffle(count);
  for (size_t begin = 0; begin < count; begin += in_batch) {
    const size_t end = std::min(begin + in_batch, count);
    std::fill(gradient_.begin(), gradient_.end(), 0.0F);
    for (size_t i = begin; i < end; ++i) {
      std::array<float, kMaxExperts> p{};
      for (size_t t = 0; t < tokens; ++t) {
        float* key = batch_.data() + t * layout_.head_dim;
        load(order_[i] * tokens + t, key);
        router_forward(layout_, state_.parameters.data(), key, ways_[t]);
        for (size_t j = 0; j < layout_.experts; ++j) p[j] += ways_[t].probabilities[j] / static_cast<float>(tokens);
      }
      std::array<float, kMaxExperts> of_p;
      loss.slopes(p.data(), of_p.data());
      for (float& each : of_p) each /= static_cast<float>(tokens * (end - begin));
      for (size_t t = 0; t < tokens; ++t) {
        std::array<float, kMaxExperts> slopes;
        softmax_backward(ways_[t], layout_.experts, of_p.data(), slopes.data());
        router_backward(layout_, state_.parameters.data(), batch_.data() + t * layout_.head_dim, ways_[t],
                        slopes.data(), gradient_.data());
      }
    }
    step(rate);
  }
}

void NetworkTraining::store(RouterNetwork& network) const {
  const size_t wide = layout_.wide();
  network.w1.assign(state_.parameters.begin(), state_.parameters.begin() + static_cast<std::ptrdiff_t>(wide));
  network.w2.assign(state_.parameters.begin() + static_cast<std::ptrdiff_t>(layout_.w2()),
                    state_.parameters.begin() + static_cast<std::ptrdiff_t>(layout_.w3()));
  network.w3.assign(state_.parameters.begin() + static_cast<std::ptrdiff_t>(layout_.w3()), state_.parameters.end());
  for (size_t i = 0; i < wide; ++i) {
    network.w1[i] *= scale_[i % layout_.head_dim];
    network.w2[i] *= scale_[i % layout_.head_dim];
  }
  for (Vector<float>* numbers : {&network.w1, &network.w2, &network.w3}) {
    for (float& each : *numbers) each = from_float16(to_finite_float16(each));
  }
}

void NetworkTraining::route(const RouterNetwork& network, std::span<uint8_t> chosen) noexcept {
  const size_t numbers = pages_.tokens_of_unit() * layout_.head_dim;
  for (size_t i = 0; i < chosen.size(); ++i) {
    const uint16_t* keys = pages_.key(i * pages_.tokens_of_unit());
    for (size_t n = 0; n < numbers; ++n) batch_[n] = widen(keys[n]);
    std::array<int32_t, kMaxExperts> votes{};
    const std::span counted(votes.data(), layout_.experts);
    add_votes(network, {batch_.data(), numbers}, counted);
    chosen[i] = static_cast<uint8_t>(elected(counted));
  }
}

/// Shuffle the first `count` numbers anew for each pass.
void NetworkTraining::shuffle(size_t count) noexcept {
  const uint64_t seed = splitmix64(seed_, ~state_.passes++);
  const std::span order(order_.data(), count);
  std::iota(order.begin(), order.end(), 0U);
  for (size_t i = count; i > 1; --i) std::swap(order[i - 1], order[splitmix64_below(i, seed, i)]);
}

void NetworkTraining::load(size_t token, float* key) const noexcept {
  const uint16_t* halves = pages_.key(token);
  for (size_t d = 0; d < layout_.head_dim; ++d) key[d] = widen(halves[d]) * scale_[d];
}

void NetworkTraining::step(double rate) noexcept {
  state_.optimizer.begin_step();
  state_.optimizer.update(0, state_.parameters, gradient_, rate, kWeightDecay);
}

}  // namespace kvq
