// Rotation of inputs, which makes the weights of every row nearly normal (Q-Palette, section 2).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvq::weights {

/// Number of leading inputs whose Hadamard blocks are as wide as the largest power of two that divides it. An odd
/// multiple of 64 beyond 64 leaves the last 64 inputs to a block of their own, so that other blocks have at least 128.
constexpr int32_t rotated_together(int32_t in) { return in % 128 == 0 || in == 64 ? in : in - 64; }

/// Random signs, [in / 8] bytes, the same everywhere for the same seed and `in`.
void make_signs(uint64_t seed, std::span<uint8_t> signs);

/// x ← H diag(signs) x, in place, [in].
void rotate(std::span<const uint8_t> signs, std::span<float> x);
/// x ← diag(signs) Hᵀ x: undoes rotate().
void rotate_back(std::span<const uint8_t> signs, std::span<float> x);

}  // namespace kvq::weights
