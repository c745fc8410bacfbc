#include "options/model_options.h"

#include "llama/balance.h"
#include "llama/config.h"
#include "llama/cuda_module.h"
#include "llama/error.h"
#include "terminal/files.h"
#include "terminal/progress.h"

namespace cli {
namespace {

// nullptr: the model's own threads.
std::unique_ptr<llama::Device> make_device(const ComputeOptions& options) {
  return options.device == "cuda" ? llama::make_cuda_device(options.device_index) : nullptr;
}

kvq::Context make_model_context(const ComputeOptions& options, llama::ThreadPool& threads) {
  kvq_context_options context = context_options(options);
  context.parallel_for = llama::ThreadPool::parallel_for_hook;
  context.parallel_for_user = &threads;
  return kvq::Context(context);
}

std::optional<llama::WeightsFile> weights_file(const std::string& path, kvq_context* context) {
  if (path.empty()) return {};
  return llama::WeightsFile{llama::path_of(path), context};
}

llama::Model load_model(const std::filesystem::path& directory, const std::shared_ptr<llama::ThreadPool>& threads,
                        std::unique_ptr<llama::Device> device, const std::optional<llama::WeightsFile>& weights) {
  const Progress progress("loading", 1);
  return {directory, threads, std::move(device), weights};
}

/// An Error unless the model's matrices are those of the plan.
void check_schemes(const kvq::Plan& plan, const std::string& path, Engine& engine) {
  for (const llama::LinearLayer& layer : llama::all_linear_layers(engine.model.config())) {
    const char* planned = plan.scheme(layer.name);
    if (planned == nullptr) continue;
    const auto& packed = engine.model.linear(layer).packed;
    const std::string found = packed != nullptr ? packed->describe().scheme : "";
    if (found == planned) continue;
    throw llama::Error(path + " has " + planned + " for " + layer.name + ", which is " +
                       (found.empty() ? "not packed" : found) + ": make the weights with `kvq quantize --plan " + path +
                       " --out FILE` and give --weights FILE, or take the formats of the cache alone with --kv " +
                       path);
  }
}

constexpr const char* kDefault = "fp16";
constexpr const char* kNone = "none";

constexpr size_t kMostBytes = size_t{16} << 20U;

using Shared = std::vector<const qp_matrix*>;

std::vector<Shared> shared_layers(llama::Model& model) {
  std::vector<Shared> all;
  for (int32_t i = 0; i < model.config().n_layers; ++i) {
    llama::LinearInput before = llama::LinearInput::kDown;
    for (const llama::LinearLayer& layer : llama::linear_layers(model.config(), i)) {
      if (all.empty() || layer.input != before) all.emplace_back();
      before = layer.input;
      if (const auto& packed = model.linear(layer).packed; packed != nullptr) all.back().push_back(*packed);
    }
  }
  std::erase_if(all, [](const Shared& shared) { return shared.empty(); });
  return all;
}

}  // namespace

Engine::Engine(const std::filesystem::path& model_directory, const ComputeOptions& options, const std::string& weights)
    : directory(model_directory),
      threads(std::make_shared<llama::ThreadPool>(options.threads)),
      context(make_model_context(options, *threads)),
      model(load_model(model_directory, threads, make_device(options), weights_file(weights, context))),
      tokenizer(model_directory / "tokenizer.json") {}

bool Engine::has_scales_by_weights() const {
  return llama::Checkpoint::is_in(directory) &&
         llama::has_attention_weights(llama::Checkpoint(directory), model.config());
}

kvq::Centres Engine::scales_by_weights() const {
  if (scales_.empty()) {
    scales_ = llama::find_scales(context.get(), llama::Checkpoint(directory), model.config(),
                                 {.model_id = model.weights().fingerprint})
                  .save();
  }
  return kvq::Centres::load(context.get(), scales_);
}

Engine ModelOptions::load() const {
  Engine engine(llama::path_of(model), compute, weights);
  if (plan.empty()) return engine;
  check_schemes(load_plan(engine.context, plan), plan, engine);
  return engine;
}

void add_model_option(Command command, std::string& model, const std::string& help) {
  command.add_option("--model", model, help).not_empty().required();
}

void add_model_options(Command command, ModelOptions& options) {
  add_model_option(command, options.model);
  command.add_option("--weights", options.weights,
                     "File of `kvq quantize` to take the weights from (default: the model's own)");
  command.add_option("--plan", options.plan,
                     "File of `kvq plan`: stands for --kv with its formats, and for weights that were made with it");
  command.on_parsed([command, &options] {
    if (!options.plan.empty() && !command.was_given("--kv")) options.kv = options.plan;
  });
}

void add_text_option(Command command, std::string& text) {
  command.add_option("--text", text, "Text file; its tokens are used without BOS").required();
}

void add_kv_option(Command command, std::string& kv, const std::string& help) {
  command.add_option("--kv", kv, help).show_default();
}

Option add_context_option(Command command, int32_t& context, int32_t least, const std::string& help) {
  return command.add_number("--context", context, least, 1 << 24, help);
}

void add_chunk_option(Command command, int32_t& chunk, const std::string& help) {
  command.add_number("--chunk", chunk, 1, 1 << 16, help);
}

void check_context(int32_t context, const llama::ModelConfig& config) {
  if (context <= config.max_positions) return;
  throw UsageError("--context " + std::to_string(context) + " exceeds the model's " +
                   std::to_string(config.max_positions) + " positions");
}

std::string ReferenceOptions::reference() const {
  if (!against && kv == kDefault && !against_original) return "";  // it would be compared with itself
  return against == kNone ? "" : against.value_or(kDefault);
}

std::string ReferenceOptions::why_no_reference() const {
  return against == kNone ? "--against none" : std::string("--kv is ") + kDefault + ", the reference itself";
}

std::optional<Spec> ReferenceOptions::load_reference(const Engine& engine) const {
  const std::string spec = reference();
  if (spec.empty()) return std::nullopt;
  Spec loaded = load_spec(engine, spec, "--against");
  if (loaded.evicts()) throw UsageError("--against " + spec + " evicts: a reference must see all tokens");
  return loaded;
}

void add_against_option(Command command, ReferenceOptions& options) {
  command
      .add_option("--against", options.against,
                  "What to compare --kv with, in a run beside it that takes as long again: a format as for --kv, but "
                  "without eviction, or none. Left out, --kv fp16 is compared with nothing")
      .show_default(kDefault);
}

void add_tuning_option(Command command, std::string& path) {
  command.add_option(
      "--tuning", path,
      "On a GPU: go by measurements of which kernels are the fastest for the linear layers, kept in this "
      "file; those that it lacks are made and added (default: by an estimate)");
}

void add_writing_options(Command command, WritingOptions& options, const std::string& max_help,
                         const std::string& chunk_help) {
  command.add_option("--stop", options.stops, "End before this text; may be repeated").repeatable().not_empty();
  command.add_number("--max-tokens", options.max_tokens, 1, 1 << 24, max_help);
  add_kv_option(command, options.kv);
  SamplingOptions& sampling = options.sampling;
  command.add_number("--temperature", sampling.temperature, 0.0, 100.0, "0: always the likeliest token");
  command.add_number("--top-p", sampling.top_p, 0.0, 1.0,
                     "With a temperature: choose among the likeliest tokens of this mass");
  add_seed_option(command, sampling.seed, "With a temperature: start of the random numbers");
  add_chunk_option(command, options.chunk, chunk_help);
  add_tuning_option(command, options.tuning);
  add_run_options(command, options.compute, options.json);
}

Tuning::Tuning(const kvq::Context& context, std::string path) : context_(&context), path_(std::move(path)) {
  if (path_.empty()) return;
  if (std::string_view(context_->describe().backend) == "cpu") {
    throw UsageError("--tuning " + path_ + ": only a GPU's kernels are measured; give --device cuda, too");
  }
  if (!std::filesystem::exists(llama::path_of(path_))) {
    check_writable(llama::path_of(path_));
    return;
  }
  try {
    context_->tuning_load(read_text(llama::path_of(path_), kMostBytes));
  } catch (const kvq::Error& error) {
    throw llama::Error("--tuning " + path_ + ": " + error.what());
  }
}

void Tuning::measure(std::span<const qp_matrix* const> matrices, int32_t batch) const {
  if (!path_.empty()) kvq::Matrix::tune(matrices, batch);
}

void Tuning::keep() const {
  if (!path_.empty()) write_file(llama::path_of(path_), context_->tuning_save());
}

void tune(Engine& engine, const std::string& path, int32_t chunk) {
  const Tuning tuning(engine.context, path);
  if (path.empty()) return;
  const std::vector<Shared> layers = shared_layers(engine.model);
  {
    Progress progress("tuning", static_cast<int64_t>(layers.size()));
    for (const Shared& shared : layers) {
      for (const int32_t batch : {1, chunk}) tuning.measure(shared, batch);
      progress.advance(1);
    }
  }
  tuning.keep();
}

}  // namespace cli
