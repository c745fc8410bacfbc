#include "measure/filler.h"

#include <algorithm>
#include <array>
#include <random>
#include <string_view>

#include "terminal/text_file.h"

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
    prose = read_corpus(text);
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

}  // namespace cli
