// One layer's tokens with keys and values that FP16 holds exactly, and their decoded values.
#pragma once

#include "page_format.h"
#include "support/handles.h"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace conformance {

// Tokens of one KV head without rotary embedding, as doubles: [n, head_dim].
struct HeadTokens {
  int32_t head_dim;
  std::vector<double> k;
  std::vector<double> v;

  int32_t n() const { return static_cast<int32_t>(k.size()) / head_dim; }
};

// Normal numbers rounded to FP16.
HeadTokens normal_tokens(int32_t n, int32_t head_dim, uint64_t seed, double deviation = 1.0);

// Appends the tokens to a cache of one head on the given instruction set and decodes them again.
HeadTokens store(const HeadTokens& tokens, const Storage& storage, const std::string& isa);

// Each token's rotation.
std::vector<double> rotated(const std::vector<double>& tokens, int32_t head_dim);

// Largest error of a decoded number in a group whose numbers are in [low, high].
double quantization_limit(double low, double high, const PageFormat& format);

// Bias of a page of gain-shape codes, [kPageSlots, head_dim] in rotated channels, relative to its limit: the product of
// a token with its decoded vector must equal its squared norm. Relative to the page's mean if stored so.
double page_bias(std::span<const double> given, std::span<const double> stored, int32_t head_dim, bool page_mean);

// Worst error of the sealed pages relative to the limit of their format. For integers quantization_limit: keys have a
// group per channel over a page's tokens, values a group per token and `group` channels; with a Hadamard rotation both
// in rotated channels. For gain-shape codes page_bias.
double worst_key_error(const HeadTokens& given, const HeadTokens& stored, const Storage& storage);
double worst_value_error(const HeadTokens& given, const HeadTokens& stored, const Storage& storage);

}  // namespace conformance
