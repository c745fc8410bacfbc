#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "llama/chat_template.h"
#include "llama/error.h"
#include "measure/generation.h"
#include "options/engine.h"
#include "options/spec.h"

namespace cli {

/// What one answer took.
struct Turn {
  std::string text;
  int32_t read_tokens = 0;  // that entered the cache before the answer
  std::vector<int32_t> tokens;
  Pace pace;
};

/// Why a turn cannot be.
class RefusedTurn : public llama::Error {
 public:
  using Error::Error;
};

/// A chat with a model, whose cache keeps what was said: a turn reads no more than what is new.
class Conversation {
 public:
  /// \param stops  texts before which an answer ends.
  Conversation(Engine& engine, const Spec& format, llama::Sampler sampler, int32_t chunk, int32_t max_tokens,
               std::vector<std::string> stops);

  /// Before the first turn.
  void set_system(const std::string& text) { messages_.push_back({"system", text}); }
  /// Ask, and show the answer piece by piece. A RefusedTurn if the template refuses the messages or the model has no
  /// positions left. After any failure the conversation is as if this had not been asked.
  Turn ask(const std::string& text, const std::function<void(const std::string&)>& show);

  const llama::Session& session() const { return session_; }

 private:
  struct Unread {
    std::string rendered;         // the whole conversation
    int32_t kept = 0;             // tokens that the cache has; 0: it is to be cleared
    std::vector<int32_t> tokens;  // that it lacks
  };

  Unread unread(const std::string& rendered) const;
  Unread prompt_of(const std::vector<llama::ChatMessage>& messages) const;

  Engine& engine_;
  llama::ChatTemplate template_;
  bool evicts_;
  llama::Session session_;
  llama::Sampler sampler_;
  llama::ModelConfig config_;  // with the template's end of an answer
  int32_t chunk_;
  int32_t max_tokens_;
  std::vector<std::string> stops_;
  std::vector<llama::ChatMessage> messages_;
  std::string read_;              // what the cache holds, and `pending_`
  std::vector<int32_t> pending_;  // the last token of an answer that was cut off
};

}  // namespace cli
