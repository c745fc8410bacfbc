#include "measure/needle.h"

#include <algorithm>
#include <array>

#include "llama/error.h"
#include "measure/generation.h"
#include "options/command.h"
#include "terminal/files.h"

namespace cli {
namespace {

using namespace std::string_view_literals;

constexpr std::array kOpenings{"In the morning"sv,        "After a while"sv,        "Some years later"sv,
                               "At the end of the day"sv, "For a long time"sv,      "Early in the spring"sv,
                               "Not far from there"sv,    "Without another word"sv, "As he expected"sv,
                               "On the following day"sv,  "To her great relief"sv,  "Whenever it rained"sv};
constexpr std::array kAdjectives{"old"sv,     "quiet"sv, "young"sv, "tall"sv,    "tired"sv, "honest"sv, "careful"sv,
                                 "patient"sv, "poor"sv,  "happy"sv, "strange"sv, "kind"sv,  "famous"sv, "silent"sv};
constexpr std::array kPeople{"gardener"sv, "doctor"sv, "captain"sv, "teacher"sv, "farmer"sv, "painter"sv, "servant"sv,
                             "merchant"sv, "sailor"sv, "soldier"sv, "widow"sv,   "priest"sv, "judge"sv,   "boy"sv};
constexpr std::array kVerbs{"walked slowly to"sv, "looked back at"sv,       "spoke softly about"sv, "returned to"sv,
                            "could not forget"sv, "wrote a letter about"sv, "waited beside"sv,      "dreamed of"sv,
                            "paid for"sv,         "turned away from"sv,     "took good care of"sv,  "was proud of"sv};
constexpr std::array kThings{"the garden"sv, "the river"sv,    "the house"sv,  "the open window"sv, "the long road"sv,
                             "the church"sv, "the harbour"sv,  "the fire"sv,   "the great hall"sv,  "the mountain"sv,
                             "the market"sv, "the old wall"sv, "the forest"sv, "the empty room"sv,  "the village"sv};
constexpr std::array kEndings{"and said nothing more"sv,           "while the others were asleep"sv,
                              "before the sun went down"sv,        "because there was nothing else to do"sv,
                              "as if nothing had happened"sv,      "though nobody could say why"sv,
                              "and the evening passed in peace"sv, "with a heavy heart"sv,
                              "until the wind began to rise"sv,    "and was never seen there again"sv};

template <size_t kSize>
std::string_view pick(std::mt19937_64& random, const std::array<std::string_view, kSize>& words) {
  return words[random() % kSize];
}

std::string sentence(std::mt19937_64& random) {
  std::string text(pick(random, kOpenings));
  text.append(" the ").append(pick(random, kAdjectives)).append(" ").append(pick(random, kPeople));
  text.append(" ").append(pick(random, kVerbs)).append(" ").append(pick(random, kThings));
  return text.append(" ").append(pick(random, kEndings)).append(".");
}

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
  Fact fact{.name = std::string(pick(random, kColours)) + "-", .key = {}};
  fact.name += pick(random, kObjects);
  fact.key = std::to_string(10000 + random() % 90000);
  return fact;
}

// BOS, filler with the fact at `depth` (0: first, 1: last), and the question: `size` tokens. Fact and question are
// encoded by themselves, the space that this tokenizer puts in front of a text included, as in the models' training.
std::vector<int32_t> make_prompt(const Engine& engine, const Fact& fact, double depth, size_t size,
                                 llama::Tokens filler, size_t filler_begin) {
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

std::string make_filler(size_t bytes, uint64_t seed) {
  constexpr int kSentencesOfParagraph = 6;
  std::mt19937_64 random(seed);
  std::string text;
  while (text.size() < bytes) {
    for (int i = 0; i < kSentencesOfParagraph; ++i) text.append(sentence(random)).append(" ");
    text.back() = '\n';
  }
  return text;
}

std::vector<int32_t> filler_tokens(const Engine& engine, const std::filesystem::path& model, const std::string& text,
                                   int32_t context, uint64_t seed) {
  const size_t enough = std::max<size_t>(size_t{1} << 19, 16 * static_cast<size_t>(context));
  const std::filesystem::path sample = model / "sample.txt";
  std::error_code ignored;
  std::string prose;
  if (!text.empty()) {
    prose = read_corpus(llama::path_of(text));
  } else if (std::filesystem::exists(sample, ignored)) {
    prose = read_corpus(sample);
  } else {
    prose = make_filler(enough, seed);
  }
  if (prose.size() > enough) {
    const size_t space = prose.rfind(' ', enough);
    prose.resize(space == std::string::npos ? enough : space);
  }
  return engine.tokenizer.encode(prose);
}

NeedlePrompts::NeedlePrompts(const Engine& engine, llama::Tokens filler, const NeedleOptions& options)
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

NeedleResult measure_needle(Engine& engine, const Spec& format, llama::Tokens filler, const NeedleOptions& options,
                            Progress& progress) {
  const bool evicts = format.evicts();
  llama::Session session(engine.model, engine.context, format);
  NeedlePrompts prompts(engine, filler, options);
  NeedleResult result;
  for (int32_t i = 0; i < options.samples; ++i) {
    const NeedlePrompt prompt = prompts.next();
    session.clear();
    const size_t question = evicts && options.compress_before_question ? prompt.question : 0;
    const llama::Tokens all = prompt.tokens;
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
