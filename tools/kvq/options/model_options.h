#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "llama/sampler.h"
#include "options/command.h"
#include "options/engine.h"
#include "options/spec.h"

namespace cli {

/// What every command that runs a model on a cache can be told.
struct ModelOptions {
  std::string model;    // directory
  std::string weights;  // a file of `kvq quantize` to take the weights from; empty: those in the directory
  std::string kv = "fp16";
  std::string plan;  // a file of `kvq plan`; empty: none
  ComputeOptions compute;
  bool json = false;

  /// An Error if the plan gives matrices other schemes than they have.
  Engine load() const;
};

/// Add `--model`.
void add_model_option(Command command, std::string& model,
                      const std::string& help = "Model directory: config.json, tokenizer.json and *.safetensors");

/// Add `--model`, `--weights` and `--plan`, which takes the place of a `--kv` that is not given.
void add_model_options(Command command, ModelOptions& options);

/// How tokens are chosen.
struct SamplingOptions {
  double temperature = 0.0;
  double top_p = 0.95;
  uint64_t seed = 1;

  llama::Sampler sampler() const { return llama::Sampler(temperature, top_p, seed); }
};

/// Add `--temperature`, `--top-p` and `--seed`.
void add_sampling_options(Command command, SamplingOptions& options);

/// Add `--stop`, texts before which an answer ends.
void add_stop_option(Command command, std::vector<std::string>& stops);

/// Add `--text`, the file to evaluate a model on.
void add_text_option(Command command, std::string& text);

/// Add `--kv`, whose value is the default.
void add_kv_option(Command command, std::string& kv, const std::string& help = kSpecHelp);

/// Add `--context`, whose value is the default.
Option add_context_option(Command command, int32_t& context, int32_t least, const std::string& help);

/// Add `--chunk`, whose value is the default.
void add_chunk_option(Command command, int32_t& chunk, const std::string& help = "Tokens that enter the cache at once");

/// A UsageError if the model has fewer positions.
void check_context(int32_t context, const llama::ModelConfig& config);

}  // namespace cli
