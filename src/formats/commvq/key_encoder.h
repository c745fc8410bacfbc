// Keys to indices: the nearest centres, stage by stage, by the shortcut ‖k − c(a,b)‖² = ‖k‖² − 2u_a − 2v_b + n_ab with
// u_a = Re Σ conj(z_a)·k and v_b = Im Σ conj(z_b)·k: 2·Nc products and Nc² additions instead of Nc² distances.
#pragma once

#include "core/memory.h"
#include "formats/commvq/codebook.h"
#include "formats/commvq/key_kernels.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvq {

/// Addresses of one group's pairs in an array of keys: pair j of token t is at t · token_stride + j · pair_stride.
struct KeyPairs {
  const float* real = nullptr;
  const float* imaginary = nullptr;
  size_t token_stride = 0;
  size_t pair_stride = 1;

  KeyPairs from(int32_t token) const {
    const size_t offset = static_cast<size_t>(token) * token_stride;
    return {real + offset, imaginary + offset, token_stride, pair_stride};
  }
};

namespace keys {
/// Read one group's key divided by `norm`, or zeros if that is 0, as a planar vector (key_kernels.h).
void read_vector(const KeyPairs& key, int32_t group, float norm, float* vector);
}  // namespace keys

/// Relation of a sum of centres u to its key k: for one group, or summed over all that share a number.
struct KeyFit {
  double energy = 0.0;   // ⟨k, k⟩
  double product = 0.0;  // ⟨k, u⟩

  void add(const KeyFit& other) {
    energy += other.energy;
    product += other.product;
  }
  /// Factor of u, in FP16 and at most 65504: g with ⟨k, g·u⟩ = ⟨k, k⟩. If u cannot stand for k, because g would exceed
  /// two norms or does not exist, the norm of k, which may be 0.
  uint16_t gain() const;
};

/// Throws KVQ_E_ARGUMENT on an impossible number of codes, or of pairs in a group.
void check_key_codes(int32_t codes, int32_t group);

/// A group of a head in keys before RoPE, [tokens][kv_heads][head_dim]. Throws KVQ_E_ARGUMENT if groups do not divide a
/// head's pairs.
KeyPairs key_pairs(const CodebookShape& shape, const float* keys, int32_t head, int32_t group);

/// Divisor of a key, or of all keys of a token, for encoding: its Euclidean norm in FP16, at most 65504.
float key_norm(std::span<const float> channels);

/// Codes of one group of one head, arranged for encoding. Indices do not depend on the instruction set, the number of
/// tokens encoded together, or threads; of equally near centres the one with the lowest (a, b) is taken.
class KeyEncoder {
 public:
  static constexpr int32_t kMaxBeam = 16;

  /// \param z  [stages][codes][group]{re, im}, finite; copied.
  KeyEncoder(Allocator& allocator, int32_t stages, int32_t codes, int32_t group, std::span<const float> z,
             const keys::KeyKernels& kernels = *keys::key_kernels().front());

  int32_t stages() const { return stages_; }
  int32_t codes() const { return codes_; }
  int32_t group() const { return group_; }

  /// Encode n tokens. Concurrent calls need separate work space.
  ///
  /// \param keys     finite, before RoPE
  /// \param norms    [n], divisors of the keys; indices are 0 where it is 0. Null: keys are already divided
  /// \param beam     sums of centres kept from stage to stage, up to kMaxBeam; 1: each stage takes the nearest; larger
  ///                 beams are never worse
  /// \param work     work_bytes(), aligned for floats
  /// \param indices  [n][stages]{a, b}
  /// \param fits     [n], incremented by those of the keys; may be null
  void encode(const KeyPairs& keys, const float* norms, int32_t n, int32_t beam, std::span<std::byte> work,
              uint8_t* indices, KeyFit* fits = nullptr) const noexcept;
  size_t work_bytes() const;

  // Accessors for kernels (key_kernels.h); `width` is the padded number of codes.
  int32_t width() const { return width_; }
  // 2z: [group]{re[width], im[width]}
  const float* planes(int32_t stage) const { return planes_.data() + at(stage * group_, 2 * width_); }
  // n_ab: [b][width of a], infinite where there is no a
  const float* norms(int32_t stage) const { return norms_.data() + at(stage * codes_, width_); }
  // z, planar
  const float* code(int32_t stage, int32_t index) const {
    return rows_.data() + at(stage * codes_ + index, 2 * keys::padded(group_));
  }
  const float* bounds() const { return bounds_.data(); }  // [padded(group)]: |a sum of one code a stage|

 private:
  struct Step;
  struct Work;
  struct Candidates;

  static size_t at(int32_t row, int32_t stride) { return static_cast<size_t>(row) * static_cast<size_t>(stride); }
  void add_bounds();
  int32_t search(int32_t tokens, int32_t beam, Work& work) const;
  int32_t step(int32_t stage, int32_t tokens, int32_t live, int32_t beam, const Work& work) const;
  void add_candidates(int32_t stage, int32_t row, const Work& work, Candidates& best) const;

  const keys::KeyKernels* kernels_;
  int32_t stages_;
  int32_t codes_;
  int32_t group_;
  int32_t width_;
  Vector<float> planes_;
  Vector<float> norms_;
  Vector<float> rows_;
  Vector<float> bounds_;
};

}  // namespace kvq
