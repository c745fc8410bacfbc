#pragma once

#include <vector>

#include "config_fields.h"

namespace llama {

/// How a decoder layer mixes tokens.
enum class Mixer {
  kFull,       // attends to all earlier tokens
  kWindowed,   // attends to the newest
  kRecurrent,  // linear attention: a state of fixed size
  kMamba,
  kConvolution,
  kNone  // an MLP alone
};

struct LayerKind {
  Mixer mixer = Mixer::kFull;
  bool dense = true;  // has an MLP
  bool experts = false;

  bool attends() const { return mixer == Mixer::kFull || mixer == Mixer::kWindowed; }
};

inline constexpr ConfigFields::Names kExpertCounts = {"num_experts", "num_local_experts", "n_routed_experts",
                                                      "moe_num_experts"};

/// What each decoder layer is. Models say so by lists of names, letters or numbers, or by a period.
std::vector<LayerKind> layer_kinds(const ConfigFields& fields, int n_layers);

}  // namespace llama
