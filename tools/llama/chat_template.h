#pragma once

#include <filesystem>

#include "jinja.h"

namespace llama {

struct ChatMessage {
  std::string role;  // "system", "user" or "assistant"
  std::string content;
};

/// How a model wants conversations written: the template of a checkpoint's `chat_template.jinja` or, where there is
/// none, the `chat_template` of its `tokenizer_config.json`.
class ChatTemplate {
 public:
  /// An Error that says what to do if the checkpoint has none.
  explicit ChatTemplate(const std::filesystem::path& model_directory);

  /// The conversation as the model reads it before it answers.
  std::string render(const std::vector<ChatMessage>& messages) const;

  /// The token that ends an answer; empty if the checkpoint does not say.
  const std::string& eos_token() const { return eos_token_; }

 private:
  std::string bos_token_;
  std::string eos_token_;
  jinja::Template template_;
};

}  // namespace llama
