#include "train/training.h"

#include <algorithm>
#include <cstdio>
#include <iterator>

#include "llama/error.h"
#include "measure/generation.h"
#include "terminal/files.h"
#include "terminal/output.h"

namespace cli {
namespace {

/// How many of `wanted` windows each text gives, when `available` says how many it has.
std::vector<size_t> shares(const std::vector<size_t>& available, size_t wanted) {
  std::vector<size_t> taken(available.size(), 0);
  for (bool more = true; wanted > 0 && more;) {
    more = false;
    for (size_t i = 0; i < available.size() && wanted > 0; ++i) {
      if (taken[i] == available[i]) continue;
      ++taken[i];
      --wanted;
      more = true;
    }
  }
  return taken;
}

int32_t calibration_window(int32_t max_positions, int64_t tokens) {
  constexpr int64_t kWindow = 2048;
  return static_cast<int32_t>(std::min<int64_t>({kWindow, max_positions, tokens}));
}

std::vector<llama::Tokens> calibration_windows(const std::vector<std::vector<int32_t>>& texts, int64_t tokens,
                                               int32_t window) {
  const auto length = static_cast<size_t>(window);
  std::vector<size_t> available;
  for (const auto& text : texts) available.push_back(text.empty() ? 0 : std::max<size_t>(text.size() / length, 1));
  const auto wanted = static_cast<size_t>(std::max<int64_t>((tokens + window / 2) / window, 1));
  const std::vector<size_t> taken = shares(available, std::max(wanted, texts.size()));

  std::vector<llama::Tokens> windows;
  for (size_t round = 0; round < *std::ranges::max_element(taken); ++round) {
    for (size_t i = 0; i < texts.size(); ++i) {
      if (round >= taken[i]) continue;
      const size_t begin = round * available[i] / taken[i] * length;
      windows.push_back(std::span(texts[i]).subspan(begin, std::min(length, texts[i].size() - begin)));
    }
  }
  return windows;
}

uint64_t fingerprint(const std::vector<llama::Tokens>& windows) {
  uint64_t hash = 0xCBF29CE484222325u;  // FNV-1a
  const auto add = [&hash](uint64_t value) { hash = (hash ^ value) * 0x100000001B3u; };
  for (const auto& window : windows) {
    add(window.size());
    for (const int32_t token : window) add(static_cast<uint32_t>(token));
  }
  return hash ^ hash >> 32;
}

std::string describe_windows(const std::vector<std::string>& files, const std::vector<llama::Tokens>& windows,
                             int32_t window) {
  size_t tokens = 0;
  for (const auto& each : windows) tokens += each.size();
  std::vector<std::string> names;
  for (const std::string& file : files) names.push_back(llama::path_of(file).filename().string());
  return std::to_string(tokens) + " tokens in windows of " + std::to_string(window) + " of " + joined(names) + " (" +
         hexadecimal(fingerprint(windows)) + ")";
}

Engine open(const std::filesystem::path& model, ComputeOptions compute) {
  try {
    return Engine(model, compute);
  } catch (const llama::Error& error) {
    if (compute.device == "cpu") throw;
    std::fprintf(stderr, "kvq: the inputs of linear layers are collected on the CPU: %s\n", error.what());
    compute.device = "cpu";
    return Engine(model, compute);
  }
}

}  // namespace

void add_training_inputs(Command command, TrainingOptions& options) {
  add_model_option(command, options.model);
  command.add_option("--text", options.texts, "Text file; give several to mix them evenly")
      .required()
      .repeatable_with_dots();
}

void add_training_options(Command command, TrainingOptions& options, const std::string& out_help) {
  command.add_number("--tokens", options.tokens, int64_t{1}, int64_t{1} << 40,
                     "Tokens to train on, in windows of 2048");
  add_seed_option(command, options.seed, "Of everything random");
  command.add_option("--out", options.out, out_help).not_empty().required();
  add_run_options(command, options.compute, options.json);
}

TrainingInputs::TrainingInputs(const TrainingOptions& options)
    : contents(read_corpora(options.texts)),
      engine(llama::path_of(options.model), options.compute),
      texts(options.texts, contents, engine.tokenizer, engine.model.config(), options.tokens) {}

CalibrationTexts::CalibrationTexts(const std::vector<std::string>& files, const std::vector<std::string>& texts,
                                   const llama::Tokenizer& tokenizer, const llama::ModelConfig& config,
                                   int64_t wanted) {
  for (const std::string& text : texts) tokens.push_back(tokenizer.encode(text));
  const int32_t window = calibration_window(config.max_positions, wanted);
  windows = calibration_windows(tokens, wanted, window);
  note = describe_windows(files, windows, window);
}

void run_windows(llama::Session& session, std::span<const llama::Tokens> windows, const std::string& label) {
  constexpr int32_t kChunk = 256;  // tokens that the model takes at once
  int64_t tokens = 0;
  for (const auto& window : windows) tokens += static_cast<int64_t>(window.size());
  Progress progress(label, tokens);
  for (const llama::Tokens window : windows) {
    session.clear();
    prefill(session, window, kChunk, progress);
  }
}

void collect_tokens(Engine& engine, std::span<const llama::Tokens> windows, bool queries, const TakeTokens& take) {
  const llama::ModelConfig& config = engine.model.config();
  llama::Session session(engine.model, engine.context, nullptr);
  llama::Array q_copy;
  llama::Array k_copy;
  llama::Array v_copy;
  session.observe([&](int32_t layer, const llama::ObservedAttention& seen) {
    const auto read = [&](const float* numbers, int32_t heads, llama::Array& copy) {
      const auto n = static_cast<size_t>(int64_t{seen.n} * heads * config.head_dim);
      return engine.model.device().read({numbers, n}, copy).data();
    };
    take(layer, seen.n, queries ? read(seen.q, config.q_heads, q_copy) : nullptr, read(seen.k, config.kv_heads, k_copy),
         read(seen.v, config.kv_heads, v_copy));
  });
  run_windows(session, windows, "keys and values");
}

HessianCollection::HessianCollection(const std::filesystem::path& model, const ComputeOptions& compute,
                                     std::span<const llama::Tokens> windows, uint64_t bytes, IsWanted is_wanted)
    : engine_(open(model, compute)),
      windows_(windows),
      bytes_(bytes > 0 ? bytes : engine_.model.device().memory_bytes() / 2),
      is_wanted_(std::move(is_wanted)) {}

std::vector<HessianCollection::Layers> HessianCollection::runs(Layers layers) const {
  std::vector<Layers> runs;
  std::vector<llama::LinearLayer> together;
  size_t begin = 0;
  for (size_t i = 0; i < layers.size(); ++i) {
    if (!is_wanted_(layers[i])) continue;
    if (const uint64_t alone = llama::Hessians::bytes(layers.subspan(i, 1)); alone > bytes_) {
      throw llama::Error("--hessian needs " + bytes_text(alone) + " for the inputs of " + layers[i].name +
                         ", and sums may take " + bytes_text(bytes_) + ": see --hessian-memory");
    }
    together.push_back(layers[i]);
    if (llama::Hessians::bytes(together) <= bytes_) continue;
    runs.push_back(layers.subspan(begin, i - begin));
    begin = i;
    together = {layers[i]};
  }
  runs.push_back(layers.subspan(begin));
  return runs;
}

void HessianCollection::collect(Layers layers, const std::string& label) {
  std::vector<llama::LinearLayer> wanted;
  std::ranges::copy_if(layers, std::back_inserter(wanted), is_wanted_);
  hessians_.reset();  // there may not be room for both
  hessians_.emplace(engine_.model.device(), wanted);
  llama::Session session(engine_.model, engine_.context, nullptr);
  session.observe_inputs(
      [this](int32_t layer, llama::LinearInput which, std::span<const float> x) { hessians_->add(layer, which, x); });
  run_windows(session, windows_, label);
}

}  // namespace cli
