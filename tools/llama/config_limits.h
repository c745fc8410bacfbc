#pragma once

#include <cstdint>

namespace llama {

/// Largest values of a configuration that are believed.
inline constexpr int64_t kMaxVocabulary = 1 << 24;
inline constexpr int64_t kMaxWidth = 1 << 20;
inline constexpr int64_t kMaxLayers = 1 << 12;
inline constexpr int64_t kMaxHeads = 1 << 12;
inline constexpr int64_t kMaxHeadDim = 1 << 12;
inline constexpr int64_t kMaxPositions = 1 << 30;
inline constexpr int64_t kMaxExperts = 1 << 16;

}  // namespace llama
