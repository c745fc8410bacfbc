#include "backend/cpu/append/vote.h"

#include "core/float16.h"
#include "formats/float16/layout.h"

#include <array>

namespace kvq::cpu {
namespace {

// Rough cost, to decide whether a loop is worth sharing.
constexpr double kMicrosecondsOfPage = 20.0;

}  // namespace

void vote(std::span<const PageToRoute> pages, const RotationTable& rotations, const RouterNetwork& network,
          Parallel& parallel, std::span<int32_t> counts) {
  const size_t experts = counts.size() / pages.size();
  const auto head_dim = static_cast<int32_t>(network.w1.size() / experts);
  const auto n = static_cast<int32_t>(pages.size());
  parallel.run(n, kMicrosecondsOfPage * n, [&](int32_t i) noexcept {
    const auto& [data, positions, factors] = pages[static_cast<size_t>(i)];
    const auto* numbers = reinterpret_cast<const uint16_t*>(data);
    std::array<float, kMaxHeadDim> key;
    std::array<float, kMaxHeadDim> rotation;
    for (int32_t slot = 0; slot < kPageSlots; ++slot) {
      for (int32_t channel = 0; channel < head_dim; ++channel) {
        key[static_cast<size_t>(channel)] = from_float16(numbers[float16::index(Side::kKeys, head_dim, slot, channel)]);
      }
      for (size_t channel = 0; factors != nullptr && channel < static_cast<size_t>(head_dim); ++channel) {
        key[channel] *= factors[channel];
      }
      rotations.fill(positions[static_cast<size_t>(slot)], rotation.data());
      undo_rope(rotations.rope(), rotation.data(), key.data());
      add_votes(network, {key.data(), static_cast<size_t>(head_dim)},
                counts.subspan(static_cast<size_t>(i) * experts, experts));
    }
  });
}

}  // namespace kvq::cpu
