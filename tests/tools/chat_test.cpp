// Chats with the demo model under a template made for the test.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "kvq.hpp"
#include "llama/model.h"
#include "llama/tokenizer.h"
#include "program_run.h"
#include "support/places.h"
#include "support/scratch_directory.h"

namespace chat_test {
namespace {

using Tokens = std::vector<int32_t>;

constexpr int32_t kAnswer = 12;
constexpr const char* kTemplate =
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('late') }}"
    "{% endif %}{{ m.role }}:{{ m.content }}{{ eos_token }}{% endfor %}{% if add_generation_prompt %}assistant:{% "
    "endif %}";

/// A directory with the demo model and a template.
class ChatModel {
 public:
  explicit ChatModel(const std::string& chat_template = kTemplate) {
    for (const char* file : {"config.json", "model.safetensors", "tokenizer.json"}) {
      kvq_test::link_or_copy(std::filesystem::path(demo_model()) / file, directory_.path() / file);
    }
    const nlohmann::json config{{"bos_token", "<s>"}, {"eos_token", "</s>"}, {"chat_template", chat_template}};
    directory_.write("tokenizer_config.json", config.dump());
  }

  std::string path() const { return directory_.path().string(); }
  Arguments chat(const Arguments& more) const {
    return with({"chat", "--model", path(), "--max-tokens", std::to_string(kAnswer), "--threads", "1"}, more);
  }
  /// What it says to these lines.
  Outcome talk(const std::string& lines, const Arguments& more = {}) const {
    return run(chat(more), "", directory_.write("lines", lines).string());
  }

 private:
  ScratchDirectory directory_;
};

/// The likeliest tokens after these, as far as there are no more than an answer's, and the whole text so far.
Tokens answer(llama::Session& session, const Tokens& prompt) {
  Tokens tokens;
  std::span<const float> logits = session.forward(prompt, false);
  while (tokens.size() < size_t{kAnswer}) {
    const auto token = static_cast<int32_t>(std::ranges::max_element(logits) - logits.begin());
    if (token == 2) break;  // </s>
    tokens.push_back(token);
    if (tokens.size() < size_t{kAnswer}) logits = session.forward(std::span(&token, 1), false);
  }
  return tokens;
}

std::string text_of(const llama::Tokenizer& tokenizer, const Tokens& tokens) {
  std::string text;
  for (const int32_t token : tokens) text += tokenizer.decode_piece(token);
  return text;
}

}  // namespace

TEST_CASE("added tokens that a template spells are encoded as such, all else as plain text") {
  const llama::Tokenizer tokenizer(std::filesystem::path(demo_model()) / "tokenizer.json");
  Tokens expected{1};
  for (const char* text : {"some text", "more"}) {
    const Tokens plain = tokenizer.encode(text);
    expected.insert(expected.end(), plain.begin(), plain.end());
    expected.push_back(2);
  }
  expected.push_back(2);
  CHECK(tokenizer.encode_with_added("<s>some text</s>more</s></s>") == expected);
  CHECK(tokenizer.encode_with_added("<s") == tokenizer.encode("<s"));
  CHECK(tokenizer.encode_with_added("").empty());
}

TEST_CASE("a chat answers line by line and reads no more than what is new") {
  const ChatModel model;
  const Outcome outcome = model.talk("Hello there\n\nAnd then?\n/exit\nnever read\n", {"--system", "Be brief"});
  REQUIRE(outcome.exit_code == 0);

  llama::Model runner(model.path(), 1);
  const llama::Tokenizer tokenizer(model.path() + "/tokenizer.json");
  const kvq::Context context{kvq::initialised<kvq_context_options>()};
  llama::Session session(runner, context, nullptr);
  const Tokens prompt = tokenizer.encode_with_added("<s>system:Be brief</s>user:Hello there</s>assistant:");
  const Tokens first = answer(session, prompt);
  Tokens unread = tokenizer.encode_with_added("</s>user:And then?</s>assistant:");
  if (first.size() == size_t{kAnswer}) unread.insert(unread.begin(), first.back());
  const Tokens second = answer(session, unread);
  CHECK(outcome.out == text_of(tokenizer, first) + "\n" + text_of(tokenizer, second) + "\n");
  CHECK(outcome.err.find("[" + std::to_string(prompt.size()) + " tokens read") == 0);
  CHECK(outcome.err.find("\n[" + std::to_string(unread.size()) + " tokens read") != std::string::npos);
}

TEST_CASE("a template that rewrites answers has the conversation read anew, on compressed caches too") {
  const ChatModel model(std::string(kTemplate) + "{{ messages|length }}");
  for (const char* format : {"fp16", "int4", "int4+snapkv:64"}) {
    CAPTURE(format);
    const Outcome outcome = model.talk("Hello there\nAnd then?", {"--kv", format});
    CHECK(outcome.exit_code == 0);
    const size_t second = outcome.err.find("\n[");
    REQUIRE(second != std::string::npos);
    CHECK(std::stoi(outcome.err.substr(second + 2)) > std::stoi(outcome.err.substr(1)) + kAnswer);
  }
}

TEST_CASE("an answer ends before a text that it is to stop at, and the conversation goes on from there") {
  const ChatModel model;
  const std::string whole = model.talk("Hello there\n").out;
  const std::string stop = whole.substr(whole.size() / 2, 4);
  const std::string cut = whole.substr(0, whole.find(stop));
  const Outcome outcome = model.talk("Hello there\nAnd then?\n", {"--stop", "\x01", "--stop", stop});
  REQUIRE(outcome.exit_code == 0);
  REQUIRE(outcome.out.starts_with(cut + "\n"));

  llama::Model runner(model.path(), 1);
  const llama::Tokenizer tokenizer(model.path() + "/tokenizer.json");
  const kvq::Context context{kvq::initialised<kvq_context_options>()};
  llama::Session session(runner, context, nullptr);
  const std::string said =
      text_of(tokenizer, answer(session, tokenizer.encode_with_added("<s>user:Hello there</s>assistant:" + cut +
                                                                     "</s>user:And then?</s>assistant:")));
  CHECK(outcome.out == cut + "\n" + said.substr(0, said.find(stop)) + "\n");
}

TEST_CASE("a refused turn changes nothing: whoever types asks otherwise") {
  const ChatModel model(
      std::string("{% if messages[-1].content == 'no' %}{{ raise_exception('not this') }}{% endif %}") + kTemplate);

  check_failure(model.chat({"--prompt", "no"}), 1, "not this");
  CHECK(model.talk("Hello there\nno\n").exit_code == 1);
  const std::optional<Outcome> good = run_in_terminal(model.chat({}), "Hello there\nAnd then?\n/exit\n");
  const std::optional<Outcome> outcome = run_in_terminal(model.chat({}), "Hello there\nno\nAnd then?\n/exit\n");
  if (!good || !outcome) {
    MESSAGE("skipped: this system has no terminals for tests");
    return;
  }
  CHECK(good->exit_code == 0);
  CHECK(outcome->exit_code == 0);
  CHECK(outcome->out.find("not this") != std::string::npos);
  const auto reads = [](const std::string& text) {
    std::vector<std::string> all;
    for (size_t at = text.find(" tokens read"); at != std::string::npos; at = text.find(" tokens read", at + 1)) {
      const size_t begin = text.rfind('[', at);
      all.push_back(text.substr(begin, text.find(',', at + 20) - begin));
    }
    return all;
  };
  CHECK(reads(good->out).size() == 2);
  CHECK(reads(outcome->out) == reads(good->out));
}

TEST_CASE("one turn of a chat is one JSON object") {
  const ChatModel model;
  const nlohmann::json turn = run_json(model.chat({"--prompt", "Hello there", "--json"}));
  CHECK(turn["generated_tokens"] == turn["tokens"].size());
  CHECK(turn["text"].get<std::string>() + "\n" == run_text(model.chat({"--prompt", "Hello there"})));
  CHECK(turn["text"].get<std::string>() + "\n" == model.talk("Hello there\n").out);
  check_numbers(turn, {"prompt_tokens", "tokens_per_second", "kv_bits", "kv_bytes", "fp16_kv_bytes", "weight_bits"});
}

TEST_CASE("a chat that cannot be is refused with what to do") {
  check_failure({"chat", "--model", demo_model(), "--prompt", "x"}, 1, "has no chat template");
  const ChatModel model("\n{{ raise_exception('no such talk') }}");
  check_failure(model.chat({"--prompt", "x"}), 1,
                "chat_template: line 2: the template refuses these messages: no such");
  check_failure(ChatModel("{% if %}").chat({"--prompt", "x"}), 1, "line 1: expected a value");
  check_failure(ChatModel("").chat({"--prompt", "x"}), 1, "writes nothing");
  const ChatModel good;
  check_failure(good.chat({"--json"}), 2, "--prompt");
  check_failure(good.chat({"--prompt", ""}), 2, "must not be empty");
  check_failure(with(good.chat({"--prompt", "x"}), {"--chunk", "8", "--kv", "int5"}), 2, "int5");
}

}  // namespace chat_test
