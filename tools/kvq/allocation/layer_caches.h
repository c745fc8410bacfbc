#pragma once

#include "kvq.hpp"
#include "llama/model_shape.h"

namespace cli {

struct CacheLoad {
  int32_t tokens;  // of a sequence
  int32_t sequences;
  int32_t queries = 0;  // tokens of each sequence in one call of attention; 0: work space does not count
};

/// Predicted caches of layers that may differ.
class LayerCaches {
 public:
  /// \param layers  those of the model; without such that have a cache nothing can be predicted.
  LayerCaches(kvq_context* context, const std::vector<llama::LayerShape>& layers);

  int32_t n_layers() const { return static_cast<int32_t>(layers_.size()); }
  bool are_all_latent() const;

  /// \param formats  of keys and values, such as gs2 or gs2/gs1. Of a latent layer, the format of values is that of the
  ///                 channels that keys and values have in common, and the channels behind, which are rotated, have
  ///                 that of keys or, where that is a gain–shape format, int8.
  kvq_usage usage(const std::string& formats, const CacheLoad& load) const;

  /// How many tokens each of some sequences can hold within `bytes`: a multiple of a page's slots and at most `most`.
  /// 0: none.
  int32_t most_tokens(const std::string& formats, int32_t sequences, uint64_t bytes, int32_t most) const;

 private:
  struct Run {
    llama::LayerShape shape;
    int32_t first;
    int32_t n;
  };
  std::string policy(const std::string& formats) const;

  kvq_context* context_;
  std::vector<llama::LayerShape> layers_;  // with a cache
  std::vector<Run> runs_;                  // of equal layers
};

}  // namespace cli
