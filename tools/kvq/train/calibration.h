#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "llama/model.h"
#include "llama/tokenizer.h"

namespace cli {

/// Texts to train on, in a model's tokens and in windows of 2048, or of what the model or few tokens allow.
struct CalibrationTexts {
  /// None.
  CalibrationTexts() = default;

  /// Takes about `wanted` tokens, as many from each text and spread evenly over it. Where a text is too short for its
  /// share, the others give more; one shorter than a window gives what it has. Windows of different texts alternate.
  /// \param files  names of the texts.
  CalibrationTexts(const std::vector<std::string>& files, const std::vector<std::string>& texts,
                   const llama::Tokenizer& tokenizer, const llama::ModelConfig& config, int64_t wanted);

  std::vector<std::vector<int32_t>> tokens;  // of each text
  std::vector<std::span<const int32_t>> windows;
  std::string note;  // in words; the same only for the same tokens in the same windows
};

/// Keys and values that an observer sees, where the host can read them.
class HostTokens {
 public:
  HostTokens(llama::Model& model, const llama::ObservedAttention& seen);

  const float* k() const { return k_.data(); }
  const float* v() const { return v_.data(); }

 private:
  llama::Array k_copy_, v_copy_;  // empty if the device is the host
  std::span<const float> k_, v_;
};

/// Run a model over windows, each from an empty session, for what the session's observers see. Ends with an Error on an
/// interruption. \param label  of the progress bar.
void run_windows(llama::Session& session, std::span<const std::span<const int32_t>> windows, const std::string& label);

}  // namespace cli
