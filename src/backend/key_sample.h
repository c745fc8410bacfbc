// Keys that codes are trained on, held by a backend: it does the work per key and returns sums, from which the host
// solves for codes.
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
  std::span<const float> weights;  // [n] weights of the keys' errors; empty: 1
  int32_t n = 0;
  int32_t group = 0;
};

/// Sufficient statistics of an assignment W of keys x to centres (a, b), for the M-step.
struct KeyStatistics {
  KeyStatistics(Allocator& allocator, int32_t codes_, int32_t group_)
      : codes(codes_),
        group(group_),
        counts(static_cast<size_t>(codes_) * static_cast<size_t>(codes_), allocator),
        moments(2 * static_cast<size_t>(codes_) * static_cast<size_t>(group_), allocator) {}

  int32_t codes;
  int32_t group;
  Vector<double> counts;  // N_ab = Σ W, [a][b]
  Vector<double> moments;  // moments Σ_b s_cb − i·Σ_a s_ac of each code c, with s_ab = Σ W·x; [codes][group]{re, im}
};

/// W ∝ exp(−distance² / temperature) as p_a · q_b · K_ab, because distance² = ‖x‖² + (‖z_a‖² − 2u_a) + (‖z_b‖² − 2v_b)
/// + 2 Re conj(z_a)·i·z_b: 2·Nc exponentials per key, and the rest are matrix products. This is the part shared by all
/// keys.
struct SoftKernel {
  SoftKernel(Allocator& allocator, const KeyEncoder& stage, float temperature);

  float scale;                  // 1 / temperature
  Vector<float> norms;          // ‖z_a‖², [width]; infinite for padding
  Vector<float> k, transposed;  // K and Kᵀ, [width][width], at most 1
};

/// Below this sum of a key's p · q · K, its largest term may have underflowed. A product of three factors that are at
/// most 1 and exact down to 1e-37 cannot be wrong above it.
inline constexpr float kLeastSoftSum = 1e-20F;

/// The keys and their residuals under the codes so far; initially the keys themselves. Sums have a fixed order.
/// Everything throws Error.
class KeySample {
 public:
  virtual ~KeySample() = default;
  /// Reset the residuals to the keys.
  virtual void restore() = 0;
  /// Σ weight · ‖residual‖² of the first n.
  virtual double energy(int32_t n) = 0;
  /// Σ ‖residual‖² of all.
  virtual double plain_energy() = 0;
  /// Residuals of some keys.
  virtual void read(std::span<const int32_t> keys, float* vectors) = 0;

  /// Assign each residual to its nearest centre.
  virtual void assign_nearest(const KeyEncoder& stage, KeyStatistics& statistics) = 0;
  /// Weigh the assignment of the first n residuals to every centre (CommVQ eq. 35); residuals whose weights leave the
  /// range of a float go to the nearest centre alone.
  virtual void assign_softly(const KeyEncoder& stage, const SoftKernel& kernel, int32_t n,
                             KeyStatistics& statistics) = 0;

  /// Encode the residuals, and subtract the codes from them.
  virtual void encode(const KeyEncoder& encoder, int32_t beam) = 0;
  /// The indices found: [n][stages]{a, b}; valid until the next call.
  virtual std::span<const uint8_t> indices() = 0;
  /// Normal equations of all codes with these indices: DᴴWD and DᴴW·residuals of the design D, whose row of a key has 1
  /// in column (stage, a) and i in (stage, b).
  ///
  /// \param system  zeros, [stages · codes]²; only the lower triangle counts
  /// \param sides   zeros, [stages · codes][group]
  virtual void add_equations(const KeyEncoder& encoder, std::span<std::complex<double>> system,
                             std::span<std::complex<double>> sides) = 0;
};

}  // namespace kvq
