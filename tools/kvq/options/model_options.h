#pragma once

#include "kvq.hpp"
#include "llama/model.h"
#include "llama/sampler.h"
#include "llama/tokenizer.h"
#include "options/command.h"
#include "options/common.h"
#include "options/spec.h"

namespace cli {

/// A model with its tokenizer and a context that computes where the model does: on its threads, or on its GPU.
struct Engine {
  /// \param weights  a file of `kvq quantize` to take the weights from; empty: those of the model.
  Engine(const std::filesystem::path& model_directory, const ComputeOptions& options, const std::string& weights = {});

  /// Whether the directory has the weights that scales of channels are found by: numbers, not packed.
  bool has_scales_by_weights() const;
  /// Scales of channels by the model's weights, which are found once.
  kvq::Centres scales_by_weights() const;

  std::filesystem::path directory;  // of the model
  std::shared_ptr<llama::ThreadPool> threads;
  kvq::Context context;
  llama::Model model;
  llama::Tokenizer tokenizer;

 private:
  mutable std::vector<std::byte> scales_;  // by weights, as a file; empty: not found yet
};

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

struct SamplingOptions {
  double temperature = 0.0;
  double top_p = 0.95;
  uint64_t seed = 1;

  llama::Sampler sampler() const { return llama::Sampler(temperature, top_p, seed); }
};

/// A UsageError if the model has fewer positions.
void check_context(int32_t context, const llama::ModelConfig& config);

/// What every command that writes text can be told.
struct WritingOptions : ModelOptions {
  std::vector<std::string> stops;
  int32_t max_tokens = 128;
  int32_t chunk = 256;
  std::string tuning;
  SamplingOptions sampling;
};

/// What every command that compares a format with a reference can be told.
struct ReferenceOptions : ModelOptions {
  std::optional<std::string> against;  // nothing: not given
  bool against_original = false;       // with the model's own weights, not those of a file

  /// The SPEC of the cache to compare with; empty: nothing is compared.
  std::string reference() const;
  /// Why there is no reference, for a report.
  std::string why_no_reference() const;
  /// The reference; a UsageError that names `--against` if it evicts.
  std::optional<Spec> load_reference(const Engine& engine) const;
};

/// Each adds options whose targets' values are the defaults: `--model`; that, `--weights` and `--plan`, which takes the
/// place of a `--kv` that is not given; those of the function's name.
void add_model_option(Command command, std::string& model,
                      const std::string& help = "Model directory: config.json, tokenizer.json and *.safetensors");
void add_model_options(Command command, ModelOptions& options);
/// All but those of add_model_options().
void add_writing_options(Command command, WritingOptions& options, const std::string& max_help,
                         const std::string& chunk_help);
void add_text_option(Command command, std::string& text);
void add_kv_option(Command command, std::string& kv, const std::string& help = spec_help());
Option add_context_option(Command command, int32_t& context, int32_t least, const std::string& help);
void add_chunk_option(Command command, int32_t& chunk, const std::string& help = "Tokens that enter the cache at once");
void add_against_option(Command command, ReferenceOptions& options);
void add_tuning_option(Command command, std::string& path);

/// Which of a GPU's kernels are the fastest for linear layers, measured and kept in a file.
class Tuning {
 public:
  Tuning() = default;
  /// Reads the file if there is one. \param path  empty: nothing is measured. A UsageError if there is no GPU.
  Tuning(const kvq::Context& context, std::string path);

  /// For calls with these matrices and so many rows, unless it is known.
  void measure(std::span<const qp_matrix* const> matrices, int32_t batch) const;
  void keep() const;

 private:
  const kvq::Context* context_ = nullptr;
  std::string path_;
};

/// For the packed layers of a model, one row and `chunk` rows at a time.
void tune(Engine& engine, const std::string& path, int32_t chunk);

}  // namespace cli
