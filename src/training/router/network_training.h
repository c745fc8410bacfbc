// Training of the router of one group of layers.
#pragma once

#include "core/limits.h"
#include "core/memory.h"
#include "training/adamw.h"
#include "training/router/router_gradient.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvq {

/// The keys of the layer that decides for a group, page by page.
struct RouterPages {
  explicit RouterPages(Allocator& allocator) : keys(allocator) {}

  Vector<const uint16_t*> keys;  // [pages] of FP16 [kv_heads, 32, head_dim], before RoPE
  size_t kv_heads = 0;
  size_t head_dim = 0;
  size_t units = 0;  // votes of a page that are counted apart: 1 or kv_heads

  size_t tokens_of_page() const { return kv_heads * kPageSlots; }
  size_t tokens() const { return keys.size() * tokens_of_page(); }
  size_t tokens_of_unit() const { return tokens_of_page() / units; }
  /// Of a token in the order of pages, heads and slots.
  const uint16_t* key(size_t token) const {
    return keys[token / tokens_of_page()] + token % tokens_of_page() * head_dim;
  }
};

/// A network while it is learned. Parameters are trained for keys whose channels have mean square 1, so that the same
/// steps suit every model; the scales are part of the weights in the end.
class NetworkTraining {
 public:
  NetworkTraining(Allocator& allocator, const RouterPages& pages, size_t experts, uint64_t seed);

  /// One pass over all tokens in random order, each to be told the label of its page. `weights`: [experts] of a token
  /// with that label.
  void learn_labels(std::span<const uint8_t> labels, std::span<const float> weights, double rate) noexcept;

  /// One pass over all pages in random order by the paper's loss.
  void learn_paper(const PaperLoss<float>& loss, double rate) noexcept;

  /// Come back to this point of the training later; what is restored has been saved.
  void save() { saved_ = state_; }
  void restore() noexcept { state_ = saved_; }

  /// The network as files hold it.
  void store(RouterNetwork& network) const;

  /// The expert that each page gets from a network, [pages, units].
  void route(const RouterNetwork& network, std::span<uint8_t> chosen) noexcept;

 private:
  /// All that training changes. Copies have the same sizes, so that copying allocates nothing.
  struct State {
    State(Allocator& allocator, size_t size) : parameters(size, allocator), optimizer(allocator, size) {}

    Vector<float> parameters;  // as RouterLayout says
    AdamW optimizer;
    uint64_t passes = 0;
  };

  void shuffle(size_t count) noexcept;
  void load(size_t token, float* key) const noexcept;
  void step(double rate) noexcept;

  const RouterPages& pages_;
  RouterLayout layout_;
  uint64_t seed_;
  Vector<float> scale_;  // [head_dim] of channels in training
  Vector<float> gradient_;
  Vector<uint32_t> order_;          // [tokens]
  Vector<float> batch_;             // keys of one page
  Vector<RouterPass<float>> ways_;  // of the tokens of one page
  State state_;
  State saved_;
};

}  // namespace kvq
