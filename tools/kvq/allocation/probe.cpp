#include "allocation/probe.h"

#include <algorithm>

#include "llama/sampler.h"
#include "measure/generation.h"
#include "measure/perplexity.h"
#include "terminal/files.h"
#include "terminal/progress.h"
#include "train/training.h"

namespace cli {
namespace {

constexpr int64_t kWindow = 2048;

/// What the model writes at temperature 1, after nothing but BOS.
std::vector<int32_t> written_by(Engine& engine, int32_t length, uint64_t seed, Progress& progress) {
  llama::Session session(engine.model, engine.context, {});
  llama::Sampler sampler(1.0, 1.0, seed);
  const int32_t bos = std::max(engine.model.config().bos_token, 0);
  std::vector<int32_t> tokens = {bos};
  std::span<const float> logits = session.forward(tokens, false);
  while (static_cast<int32_t>(tokens.size()) < length) {
    Interrupt::check();
    tokens.push_back(sampler.choose(logits));
    logits = session.forward(std::span(tokens).last(1), false);
    progress.advance(1);
  }
  return tokens;
}

}  // namespace

Probe::Probe(Engine& engine, std::vector<std::vector<int32_t>> windows, int32_t chunk, Progress& progress)
    : engine_(engine), chunk_(chunk) {
  for (std::vector<int32_t>& tokens : windows) {
    Window& window = windows_.emplace_back();
    window.tokens = std::move(tokens);
    read(window, progress);
  }
}

void Probe::read(Window& window, Progress& progress) {
  const int32_t n_layers = engine_.model.config().n_layers;
  window.inputs.resize(static_cast<size_t>(n_layers));
  llama::Session session(engine_.model, engine_.context, {});
  llama::Array copy;
  session.observe_hidden([&](int32_t layer, std::span<const float> x) {
    const std::span<const float> read = engine_.model.device().read(x, copy);
    std::vector<float>& inputs = window.inputs[static_cast<size_t>(layer)];
    inputs.insert(inputs.end(), read.begin(), read.end());
  });
  for (llama::Tokens rest = window.tokens; !rest.empty();) {
    Interrupt::check();
    const auto tokens = rest.first(std::min(static_cast<size_t>(chunk_), rest.size()));
    const std::span<const float> logits = session.forward(tokens, true);
    window.logits.insert(window.logits.end(), logits.begin(), logits.end());
    rest = rest.subspan(tokens.size());
  }
  progress.advance(n_layers);
}

double Probe::divergence(const llama::CacheFormat& format, int32_t first_layer, Progress& progress) const {
  const llama::ModelConfig& config = engine_.model.config();
  const auto hidden = static_cast<size_t>(config.hidden_size);
  const auto vocabulary = static_cast<size_t>(config.vocab_size);
  Divergences divergences;
  for (const Window& window : windows_) {
    llama::Session session(engine_.model, engine_.context, format);
    const std::span<const float> inputs = window.inputs[static_cast<size_t>(first_layer)];
    for (size_t begin = 0; begin < window.tokens.size();) {
      Interrupt::check();
      const size_t n = std::min(static_cast<size_t>(chunk_), window.tokens.size() - begin);
      const auto logits = session.forward_from(first_layer, inputs.subspan(begin * hidden, n * hidden), true);
      const auto expected = std::span(window.logits).subspan(begin * vocabulary, n * vocabulary);
      divergences.add(engine_.model.threads(), expected, logits, vocabulary);
      begin += n;
    }
    progress.advance(config.n_layers - first_layer);
  }
  return divergences.mean();
}

int64_t Probe::steps(int32_t first_layer) const {
  return static_cast<int64_t>(windows_.size()) * (engine_.model.config().n_layers - first_layer);
}

std::vector<std::vector<int32_t>> Probe::windows() const {
  std::vector<std::vector<int32_t>> windows;
  for (const Window& window : windows_) windows.push_back(window.tokens);
  return windows;
}

ProbeWindows::ProbeWindows(const Engine& engine, ProbeText text)
    : text_(std::move(text)),
      length_(static_cast<int32_t>(std::min<int64_t>({kWindow, engine.model.config().max_positions, text_.tokens}))) {
  if (text_.file.empty()) {
    note_ = std::to_string(text_.tokens) + " tokens in windows of " + std::to_string(length_) +
            ", written by the model with seed " + std::to_string(text_.seed);
    return;
  }
  const CalibrationTexts texts({text_.file}, {read_corpus(text_.file)}, engine.tokenizer, engine.model.config(),
                               text_.tokens);
  note_ = texts.note;
  for (const auto each : texts.windows) read_.emplace_back(each.begin(), each.end());
}

std::vector<std::vector<int32_t>> ProbeWindows::tokens(Engine& engine) const {
  if (!read_.empty()) return read_;
  std::vector<std::vector<int32_t>> windows;
  Progress progress("writing a text", text_.tokens);
  for (int64_t done = 0; done < text_.tokens; done += length_) {
    windows.push_back(written_by(engine, length_, text_.seed + windows.size(), progress));
  }
  return windows;
}

}  // namespace cli
