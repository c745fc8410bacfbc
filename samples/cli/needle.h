#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "llama/model.h"
#include "llama/tokenizer.h"
#include "progress.h"

namespace cli {

struct NeedleOptions {
  int32_t context = 4096;  // tokens of the prompt and its answer
  int32_t samples = 20;
  uint64_t seed = 1;
  int32_t chunk = 32;
  enum class Compress { kNever, kBeforeQuestion, kAfterPrompt };
  Compress compress = Compress::kNever;  // when tokens are evicted, once a sample
};

struct NeedleResult {
  int32_t found = 0;
  std::vector<bool> found_at;  // per sample, from the shallowest needle to the deepest
  kvq_usage usage{};           // of the last sample, at its end
};

/** Retrieval of a five-digit key from filler text: one random key per sample, at an even spread of depths, found when
 *  greedy decoding gives all five digits.
 *
 *  \param filler   tokens of prose, repeated as often as needed; each sample begins elsewhere in it.
 *  \param progress advances by the tokens of every prompt. */
NeedleResult measure_needle(llama::Model& model, const llama::Tokenizer& tokenizer, llama::Session& session,
                            std::span<const int32_t> filler, const NeedleOptions& options, Progress& progress);

}  // namespace cli
