#pragma once

#include "bench/timed_calls.h"
#include "bench/timing.h"
#include "measure/perplexity.h"
#include "options/common.h"
#include "options/model_options.h"
#include "terminal/output.h"

namespace cli {

struct AttentionSpeed {
  std::vector<double> microseconds;  // of each format, the best of all rounds
  int32_t rounds = 0;                // each of one call for every format
  Disturbance disturbance;
};

AttentionSpeed measure_attention_speed(const ComputeOptions& compute, const AttentionShape& shape,
                                       const std::vector<std::string>& formats);

struct ReadingSpeed {
  double tokens_per_second = 0.0;  // on a quiet machine
  Disturbance disturbance;         // of this one
};

/// A little of a text with an FP16 cache, in chunks of `chunk` tokens.
ReadingSpeed measure_reading_speed(Engine& engine, llama::Tokens tokens, int32_t chunk);

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
  std::vector<WeightsRow> measure(llama::Tokens tokens, const std::string& kv) const;
};

/// \param plain  the model as it is, on the same text.
Figures weights_figures(const std::vector<WeightsRow>& rows, const WeightsRow& plain);

/// The directory of the model that comes with the program: beside an installed program, else in the source tree. An
/// Error that names both places if it is in neither.
std::filesystem::path demo_model_directory();

}  // namespace cli
