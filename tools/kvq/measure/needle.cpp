#include "measure/needle.h"

#include <array>
#include <random>
#include <string>
#include <string_view>

#include "llama/error.h"
#include "measure/generation.h"
#include "options/command.h"

namespace cli {
namespace {

using namespace std::string_view_literals;

constexpr std::array kColours{"amber"sv, "silver"sv, "crimson"sv, "violet"sv,  "golden"sv,
                              "green"sv, "copper"sv, "ivory"sv,   "scarlet"sv, "grey"sv};
constexpr std::array kObjects{"bridge"sv, "lantern"sv, "garden"sv, "river"sv,  "tower"sv,
                              "window"sv, "anchor"sv,  "forest"sv, "harbor"sv, "meadow"sv};
constexpr size_t kKeyDigits = 5;
constexpr int32_t kAnswerTokens = 8;  // the digits, a space before them and some slack for other tokenizers

struct Fact {
  std::string name;
  std::string key;

  std::string statement() const {
    return "\nThe pass key of " + name + " is " + key + ". Remember it: " + name + " is " + key + ".\n";
  }
  std::string question() const {
    return "\nQuestion: what is the pass key of " + name + "? Answer: the pass key of " + name + " is";
  }
};

Fact make_fact(std::mt19937_64& random) {
  Fact fact;
  fact.name =
      std::string(kColours[random() % kColours.size()]) + "-" + std::string(kObjects[random() % kObjects.size()]);
  fact.key = std::to_string(10000 + random() % 90000);
  return fact;
}

// BOS, filler with the fact at `depth` (0: first, 1: last), and the question: `size` tokens. Fact and question are
// encoded by themselves, the space that this tokenizer puts in front of a text included, as in the models' training.
std::vector<int32_t> make_prompt(const Engine& engine, const Fact& fact, double depth, size_t size,
                                 std::span<const int32_t> filler, size_t filler_begin) {
  const std::vector<int32_t> statement = engine.tokenizer.encode(fact.statement());
  const std::vector<int32_t> question = engine.tokenizer.encode(fact.question());
  std::vector<int32_t> prompt = with_bos(engine.model.config(), {});
  const size_t needed = prompt.size() + statement.size() + question.size();
  if (size < needed) {
    throw UsageError("--context leaves " + std::to_string(size) + " tokens for the prompt, but the fact and the " +
                     "question alone take " + std::to_string(needed));
  }
  const size_t filler_size = size - needed;
  const auto before = static_cast<size_t>(depth * static_cast<double>(filler_size) + 0.5);
  for (size_t i = 0; i < filler_size; ++i) {
    if (i == before) prompt.insert(prompt.end(), statement.begin(), statement.end());
    prompt.push_back(filler[(filler_begin + i) % filler.size()]);
  }
  if (before == filler_size) prompt.insert(prompt.end(), statement.begin(), statement.end());
  prompt.insert(prompt.end(), question.begin(), question.end());
  return prompt;
}

}  // namespace

NeedlePrompts::NeedlePrompts(const Engine& engine, std::span<const int32_t> filler, const NeedleOptions& options)
    : engine_(engine), filler_(filler), options_(options), random_(options.seed) {
  if (filler.empty()) throw llama::Error("the filler text has no tokens");
}

NeedlePrompt NeedlePrompts::next() {
  const Fact fact = make_fact(random_);
  const double depth = options_.samples > 1 ? static_cast<double>(index_) / (options_.samples - 1) : 0.5;
  ++index_;
  const auto size = static_cast<size_t>(options_.context - kAnswerTokens);
  return {make_prompt(engine_, fact, depth, size, filler_, random_() % filler_.size()),
          engine_.tokenizer.encode(fact.question()).size(), fact.key};
}

bool finds_key(const Engine& engine, llama::Session& session, std::span<const float> logits, const std::string& key) {
  llama::Sampler greedy(0.0, 1.0, 0);
  std::string answer;
  generate_tokens(engine.model.config(), session, logits, kAnswerTokens, greedy, [&](int32_t token) {
    answer += engine.tokenizer.decode_piece(token);
    answer.erase(0, answer.find_first_not_of(' '));
    return answer.size() < kKeyDigits;
  });
  return answer.starts_with(key);
}

NeedleResult measure_needle(Engine& engine, const Spec& format, std::span<const int32_t> filler,
                            const NeedleOptions& options, Progress& progress) {
  const bool evicts = format.evicts();
  llama::Session session(engine.model, engine.context, format);
  NeedlePrompts prompts(engine, filler, options);
  NeedleResult result;
  for (int32_t i = 0; i < options.samples; ++i) {
    const NeedlePrompt prompt = prompts.next();
    session.clear();
    const size_t question = evicts && options.compress_before_question ? prompt.question : 0;
    const std::span<const int32_t> all = prompt.tokens;
    std::span<const float> logits = prefill(session, all.first(all.size() - question), options.chunk, progress);
    if (evicts) session.compress();
    if (question > 0) logits = prefill(session, all.last(question), options.chunk, progress);
    const bool found = finds_key(engine, session, logits, prompt.key);
    result.found_at.push_back(found);
    result.found += found ? 1 : 0;
  }
  result.usage = session.usage();
  return result;
}

}  // namespace cli
