// CommVQ codebooks of a model: codes for keys and values, layer by layer.
#pragma once

#include "core/memory.h"
#include "kvq.h"

#include <cstddef>
#include <cstdint>

namespace kvq {

/// Scope of one number or code: a head of a token, or all KV heads of a token in a layer.
enum class Scope : int32_t { kLayer = 0, kHead = 1 };

/// Initial guess for the bits of a value's code.
enum class ValueProposal : int32_t { kLinear = 0, kNetwork = 1 };

inline constexpr int32_t kMaxKeyStages = KVQ_MAX_KEY_STAGES;

/// Keys before RoPE, as complex numbers: with ::KVQ_ROPE_HALF pair j of a head is channels (j, j + head_dim / 2), with
/// ::KVQ_ROPE_INTERLEAVED (2j, 2j + 1). A group of `group` successive pairs of one head shares, for each stage r, two
/// indices a and b into `codes` codes z, and pair j decodes to norm · Σ_r (z[r][a_r][j] + i·z[r][b_r][j]).
struct KeyCodebookShape {
  int32_t stages = 0;  // R; 0: no codes for keys
  int32_t codes = 64;  // Nc, a power of two from 2 to 256
  int32_t group = 64;  // g, a divisor of head_dim / 2
  Scope norms = Scope::kHead;

  bool operator==(const KeyCodebookShape&) const = default;
};

/// Values: a vector of a token (one head's channels, or those of all heads, by scope) decodes to channel_scale ∘
/// token_scale · (offset + Σ of the rows of C with a set bit).
struct ValueCodebookShape {
  int32_t bits = 0;  // code bits per scalar; 0: no codes for values
  Scope scope = Scope::kLayer;
  ValueProposal proposal = ValueProposal::kLinear;
  int32_t hidden = 0;  // hidden units of the network, 0 without one

  bool operator==(const ValueCodebookShape&) const = default;
};

struct CodebookShape {
  int32_t n_layers = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  kvq_rope pairing = KVQ_ROPE_HALF;
  KeyCodebookShape keys;
  ValueCodebookShape values;

  bool operator==(const CodebookShape&) const = default;

  int32_t pairs() const { return head_dim / 2; }
  int32_t groups() const { return pairs() / keys.group; }  // per head
  /// Complex codes of one head: [groups][stages][codes][group].
  size_t key_codes_of_head() const {
    return static_cast<size_t>(keys.stages) * static_cast<size_t>(keys.codes) * static_cast<size_t>(pairs());
  }
  int32_t vectors() const { return values.scope == Scope::kLayer ? 1 : kv_heads; }  // value vectors per token
  int32_t width() const { return values.scope == Scope::kLayer ? kv_heads * head_dim : head_dim; }  // channels of one
  int32_t code_bits() const { return values.bits * width(); }                                       // Nc of values
};

/// Parameters of one layer, row-major.
struct LayerCodebook {
  explicit LayerCodebook(Allocator& allocator)
      : key_codes(allocator),
        channel_scale(allocator),
        value_codes(allocator),
        value_offset(allocator),
        proposal(allocator),
        proposal_bias(allocator),
        network_norm_gain(allocator),
        network_norm_bias(allocator),
        network_first(allocator),
        network_first_bias(allocator),
        network_second(allocator),
        network_second_bias(allocator) {}

  Vector<float> key_codes;      // [kv_heads][groups][stages][codes][group]{re, im}
  Vector<float> channel_scale;  // [kv_heads * head_dim], positive
  Vector<float> value_codes;    // C: [vectors][code_bits][width]
  Vector<float> value_offset;   // [vectors][width]
  // Initial code, before bits are flipped. Linear: bit n is set if row n · x + bias > 0, where x is the unit vector of
  // a value over channel_scale; with 2 bits, rows from `width` see the residual of the bits before them.
  Vector<float> proposal;       // [vectors][code_bits][width]
  Vector<float> proposal_bias;  // [vectors][code_bits]
  // Network: see ValueNetwork.
  Vector<float> network_norm_gain;    // [vectors][width]
  Vector<float> network_norm_bias;    // [vectors][width]
  Vector<float> network_first;        // [vectors][hidden][width]
  Vector<float> network_first_bias;   // [vectors][hidden]
  Vector<float> network_second;       // [vectors][2 * code_bits][hidden]
  Vector<float> network_second_bias;  // [vectors][2 * code_bits]
};

}  // namespace kvq
