// One layer's tokens with keys and values that FP16 holds exactly, and what a cache has made of them.
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

// Each token's Hadamard rotation.
std::vector<double> rotated(const std::vector<double>& tokens, int32_t head_dim);

// How far a decoded number may be from the stored one in a group whose numbers lie in [low, high].
double quantization_limit(double low, double high, const PageFormat& format);

// How far the tokens of a page of gain-shape codes, [kPageSlots, head_dim] in rotated channels, are from unbiased over
// how far they may be: the product of a token with what it is decoded to is that with itself. Relative to the mean of
// the page where it is stored so.
double page_bias(std::span<const double> given, std::span<const double> stored, int32_t head_dim, bool page_mean);

// Worst error of the sealed pages relative to what their format allows. Of integers quantization_limit: keys have a
// group per channel over a page's tokens, values a group per token and `group` channels; with a Hadamard rotation both
// in rotated channels. Of gain-shape codes page_bias.
double worst_key_error(const HeadTokens& given, const HeadTokens& stored, const Storage& storage);
double worst_value_error(const HeadTokens& given, const HeadTokens& stored, const Storage& storage);

}  // namespace conformance
