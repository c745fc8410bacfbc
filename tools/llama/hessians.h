#pragma once

#include <map>

#include "config.h"
#include "device.h"

namespace llama {

/// Sums of x·xᵀ over the inputs x of linear layers, in the memory of a model's device: their means are the Hessians of
/// what quantization loses. Linear layers with the same inputs share one.
class Hessians {
 public:
  /// Sums for the inputs of these layers. The device must outlive them.
  Hessians(Device& device, std::span<const LinearLayer> layers);

  /// What the sums of these layers take.
  static uint64_t bytes(std::span<const LinearLayer> layers);

  /// Take `[n, in]` inputs; others than those of the layers are ignored.
  void add(int32_t layer, LinearInput which, std::span<const float> x);

  /// The mean, `[in, in]`, of at least one input, in host memory, until this is asked again.
  std::span<const float> of(const LinearLayer& layer);

 private:
  using Key = std::pair<int32_t, LinearInput>;
  struct Sum {
    int64_t in = 0;
    int64_t count = 0;
    Array upper;  // [in, in], of which only the upper triangle is kept
  };

  Device& device_;
  Array host_;               // what was read last
  std::vector<float> mean_;  // what was asked for last; it does not shrink
  std::map<Key, Sum> sums_;
};

}  // namespace llama
