// Where the parameters of a network and the codes that it is trained with lie in one array, as optimizers like it.
#pragma once

#include <array>
#include <cstddef>
#include <span>

namespace kvq {

enum class NetworkPart { kNormGain, kNormBias, kFirst, kFirstBias, kSecond, kSecondBias, kCodes };

/// Parts have the shapes of ValueNetwork's arrays; codes are [bits][width].
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

}  // namespace kvq
