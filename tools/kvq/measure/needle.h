#pragma once

#include <random>

#include "options/model_options.h"
#include "options/spec.h"
#include "terminal/progress.h"

namespace cli {

/// Plain English sentences about nothing in particular, at least `bytes` long, without digits. The same seed gives the
/// same text everywhere.
std::string make_filler(size_t bytes, uint64_t seed);

/// Tokens of prose between which a fact of a prompt of `context` tokens may hide: of the file `text` or, if that is
/// empty, of what comes with the model or else made up.
std::vector<int32_t> filler_tokens(const Engine& engine, const std::filesystem::path& model, const std::string& text,
                                   int32_t context, uint64_t seed);

struct NeedleOptions {
  int32_t context = 4096;  // tokens of the prompt and its answer
  int32_t samples = 20;
  uint64_t seed = 1;
  int32_t chunk = 32;
  bool compress_before_question = false;  // where tokens are evicted, once a sample; else after the whole prompt
};

struct NeedleResult {
  int32_t found = 0;
  std::vector<bool> found_at;  // per sample, from the shallowest needle to the deepest
  kvq_usage usage{};           // of the last sample, at its end
};

/// Filler that hides a key, and at its end the question for it.
struct NeedlePrompt {
  std::vector<int32_t> tokens;
  size_t question = 0;  // tokens of the question
  std::string key;
};

/// One prompt after the other, with one random key each, at an even spread of depths. All arguments must outlive it.
///
/// \param filler  tokens of prose, repeated as often as needed; each prompt begins elsewhere in it.
class NeedlePrompts {
 public:
  NeedlePrompts(const Engine& engine, llama::Tokens filler, const NeedleOptions& options);

  /// At most `options.samples` times.
  NeedlePrompt next();

 private:
  const Engine& engine_;
  llama::Tokens filler_;
  const NeedleOptions& options_;
  std::mt19937_64 random_;
  int32_t index_ = 0;
};

/// Whether greedy decoding from `logits`, those of a prompt's last token, gives all digits of the key.
bool finds_key(const Engine& engine, llama::Session& session, std::span<const float> logits, const std::string& key);

/// Retrieval of a five-digit key from filler text on a cache of that format, with the prompts of NeedlePrompts.
///
/// \param filler   as there.
/// \param progress advances by the tokens of every prompt.
NeedleResult measure_needle(Engine& engine, const Spec& format, llama::Tokens filler, const NeedleOptions& options,
                            Progress& progress);

}  // namespace cli
