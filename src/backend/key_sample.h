// Keys that codes are trained on, where a backend computes: what concerns all of them is done there, and adds up to
// what the host solves for codes.
#pragma once

#include "core/memory.h"
#include "formats/commvq/key_encoder.h"

#include <complex>
#include <cstddef>
#include <cstdint>
#include <span>

namespace kvq {

/// Keys of one group of one head, planar (key_kernels.h).
struct KeyVectors {
  std::span<const float> numbers;  // [n][vector_floats(group)]
  std::span<const float> weights;  // [n] what the error of a key counts; empty: 1
  int32_t n = 0;
  int32_t group = 0;
};

/// All that the M-step needs to know of an assignment W of keys x to centres (a, b).
struct KeyStatistics {
  KeyStatistics(Allocator& allocator, int32_t codes_, int32_t group_)
      : codes(codes_),
        group(group_),
        counts(static_cast<size_t>(codes_) * static_cast<size_t>(codes_), StlAllocator<double>(allocator)),
        moments(2 * static_cast<size_t>(codes_) * static_cast<size_t>(group_), StlAllocator<double>(allocator)) {}

  int32_t codes;
  int32_t group;
  Vector<double> counts;   // N_ab = Σ W, [a][b]
  Vector<double> moments;  // Σ_b s_cb − i·Σ_a s_ac of c, where s_ab = Σ W·x; [codes][group]{re, im}
};

/// W ∝ exp(−distance² / temperature) as p_a · q_b · K_ab, because distance² = ‖x‖² + (‖z_a‖² − 2u_a) + (‖z_b‖² − 2v_b)
/// + 2 Re conj(z_a)·i·z_b: 2·Nc exponentials a key, and the rest are products of matrices. This is what all keys share.
struct SoftKernel {
  SoftKernel(Allocator& allocator, const KeyEncoder& stage, float temperature);

  float scale;                  // 1 / temperature
  Vector<float> norms;          // ‖z_a‖², [width]; infinite where there is no code
  Vector<float> k, transposed;  // K and Kᵀ, [width][width], at most 1
};

/// Below this, what a key's p, q and K add up to has lost the largest of them. A product of three factors that are at
/// most 1 and are exact down to 1e-37 cannot be wrong above it.
inline constexpr float kLeastSoftSum = 1e-20F;

/// The keys, and what codes leave of them: at first, all. Sums are taken in the same order every time. Everything
/// throws Error.
class KeySample {
 public:
  virtual ~KeySample() = default;
  /// Leave all of the keys again.
  virtual void restore() = 0;
  /// Σ weight · ‖what is left‖² of the first n.
  virtual double energy(int32_t n) = 0;
  /// Σ ‖what is left‖² of all.
  virtual double plain_energy() = 0;
  /// What is left of some keys.
  virtual void read(std::span<const int32_t> keys, float* vectors) = 0;

  /// What is left belongs to its nearest centre.
  virtual void assign_nearest(const KeyEncoder& stage, KeyStatistics& statistics) = 0;
  /// What is left of the first n belongs to every centre (CommVQ eq. 35); to the nearest alone where that is beyond the
  /// range of a float.
  virtual void assign_softly(const KeyEncoder& stage, const SoftKernel& kernel, int32_t n,
                             KeyStatistics& statistics) = 0;

  /// Encode what is left, and leave of it what the codes do not cover.
  virtual void encode(const KeyEncoder& encoder, int32_t beam) = 0;
  /// The indices that were found: [n][stages]{a, b}; until the next call.
  virtual std::span<const uint8_t> indices() = 0;
  /// Normal equations of all codes with these indices: DᴴWD and DᴴW·rest of the design D, whose row of a key has 1 in
  /// column (stage, a) and i in (stage, b).
  ///
  /// \param system  zeros, [stages · codes]²; of which only the lower triangle counts
  /// \param sides   zeros, [stages · codes][group]
  virtual void add_equations(const KeyEncoder& encoder, std::span<std::complex<double>> system,
                             std::span<std::complex<double>> sides) = 0;
};

}  // namespace kvq
