#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "measure/perplexity.h"
#include "options/compute.h"

namespace cli {

/// The demo model on weights in few bits, with a cache in some format.
struct WeightsRow {
  std::string scheme;
  std::string kv;
  double linear_bits = 0.0;  // of a weight in packed layers
  double bits = 0.0;         // of any weight
  uint64_t bytes = 0;        // of the model's file
  double seconds = 0.0;      // to quantize it
  PerplexityResult perplexity{};
};

/// Quantizes the demo model and measures what is left of it.
struct WeightsDemo {
  std::filesystem::path model;
  PerplexityOptions perplexity;
  int64_t hessian_tokens;
  std::vector<std::string> schemes;
  ComputeOptions compute;

  /// Every scheme with an FP16 cache, and the first one with `kv` too. \param tokens  of the text that is scored.
  std::vector<WeightsRow> measure(std::span<const int32_t> tokens, const std::string& kv) const;
};

/// \param plain  the model as it is, on the same text.
std::string weights_text(const std::vector<WeightsRow>& rows, const WeightsRow& plain);
nlohmann::ordered_json weights_json(const std::vector<WeightsRow>& rows, const WeightsRow& plain);

}  // namespace cli
