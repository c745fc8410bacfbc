#include "plan/probe_text.h"

#include <algorithm>

#include "llama/sampler.h"
#include "measure/generation.h"
#include "terminal/interrupt.h"
#include "terminal/text_file.h"
#include "train/calibration.h"

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
