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

/// Keys of a group's deciding layer, page by page.
struct RouterPages {
  explicit RouterPages(Allocator& allocator) : keys(allocator) {}

  Vector<const uint16_t*> keys;  // [pages] of FP16 [kv_heads, 32, head_dim], before RoPE
  size_t kv_heads = 0;
  size_t head_dim = 0;
  size_t units = 0;  // separately counted votes of a page: 1 or kv_heads

  size_t tokens_of_page() const { return kv_heads * kPageSlots; }
  size_t tokens() const { return keys.size() * tokens_of_page(); }
  size_t tokens_of_unit() const { return tokens_of_page() / units; }
  /// Key of a token in the order of pages, heads and slots.
  const uint16_t* key(size_t token) const {
    return keys[token / tokens_of_page()] + token % tokens_of_page() * head_dim;
  }
};

/// Network in training. Parameters are trained for keys whose channels have mean square 1, so that the same steps suit
/// every model; the scales become part of the weights.
class NetworkTraining {
 public:
  NetworkTraining(Allocator& allocator, const RouterPages& pages, size_t experts, uint64_t seed);

  /// Run one pass over all tokens in random order, each labelled as its page. `weights`: [experts] of a token with that
  /// label.
  void learn_labels(std::span<const uint8_t> labels, std::span<const float> weights, double rate) noexcept;

  /// Run one pass over all pages in random order by the paper's loss.
  void learn_paper(const PaperLoss<float>& loss, double rate) noexcept;

  /// Save and restore a point of the training.
  void save() { saved_ = state_; }
  void restore() noexcept { state_ = saved_; }

  /// Network as in files.
  void store(RouterNetwork& network) const;

  /// Find the expert of each page by a network, [pages, units].
  void route(const RouterNetwork& network, std::span<uint8_t> chosen) noexcept;

 private:
  /// Everything that training changes. Copies have equal sizes, so copying allocates nothing.
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
