// From keys to indices: the nearest centres, stage by stage, by the shortcut ‖k − c(a,b)‖² = ‖k‖² − 2u_a − 2v_b + n_ab
// with u_a = Re Σ conj(z_a)·k and v_b = Im Σ conj(z_b)·k: 2·Nc products and Nc² additions instead of Nc² distances.
#pragma once

#include "core/memory.h"
#include "formats/commvq/codebook.h"
#include "formats/commvq/key_kernels.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvq {

/// Where the pairs of one group lie in an array of keys: pair j of token t is at t · token_stride + j · pair_stride.
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
/// One group's key divided by `norm`, or zeros if that is 0, as a planar vector (key_kernels.h).
void read_vector(const KeyPairs& key, int32_t group, float norm, float* vector);
}  // namespace keys

/// What a sum of centres u is to the key k that it stands for: of one group, or summed over all that share a number.
struct KeyFit {
  double energy = 0.0;   // ⟨k, k⟩
  double product = 0.0;  // ⟨k, u⟩

  void add(const KeyFit& other) {
    energy += other.energy;
    product += other.product;
  }
  /// What u is multiplied by: g with ⟨k, g·u⟩ = ⟨k, k⟩, as a half, at most 65504. The norm of k, which may be 0, where
  /// u is none that could stand for k: where g would be more than two norms or there is none.
  uint16_t gain() const;
};

/// Throws KVQ_E_ARGUMENT if there cannot be that many codes, or groups of that many pairs.
void check_key_codes(int32_t codes, int32_t group);

/// A group of a head in keys before RoPE, [tokens][kv_heads][head_dim]. Throws KVQ_E_ARGUMENT if groups do not divide a
/// head's pairs.
KeyPairs key_pairs(const CodebookShape& shape, const float* keys, int32_t head, int32_t group);

/// The number that a key, or all keys of a token, is divided by to be encoded: its Euclidean norm as a half, at most
/// 65504.
float key_norm(std::span<const float> channels);

/// Codes of one group of one head, arranged for encoding. Indices do not depend on the instruction set, on the number
/// of tokens encoded together, or on threads; of equally near centres the one with the lowest (a, b) is taken.
class KeyEncoder {
 public:
  static constexpr int32_t kMaxBeam = 16;

  /// \param z  [stages][codes][group]{re, im}, finite; copied.
  KeyEncoder(Allocator& allocator, int32_t stages, int32_t codes, int32_t group, std::span<const float> z,
             const keys::KeyKernels& kernels = *keys::key_kernels().front());

  int32_t stages() const { return stages_; }
  int32_t codes() const { return codes_; }
  int32_t group() const { return group_; }

  /// Encode n tokens. Any number of calls may run at once, each with work space of its own.
  ///
  /// \param keys     finite, before RoPE
  /// \param norms    [n], by which keys are divided; where it is 0, indices are 0. Null: they are divided already
  /// \param beam     sums of centres kept from stage to stage, up to kMaxBeam; 1: each stage takes the nearest, which
  ///                 more never do worse than
  /// \param work     work_bytes(), aligned for floats
  /// \param indices  [n][stages]{a, b}
  /// \param fits     [n], to which those of the keys are added; may be null
  void encode(const KeyPairs& keys, const float* norms, int32_t n, int32_t beam, std::span<std::byte> work,
              uint8_t* indices, KeyFit* fits = nullptr) const noexcept;
  size_t work_bytes() const;

  // What the kernels read (key_kernels.h); `width` is the codes, padded.
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
