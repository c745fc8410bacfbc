#include "terminal/bar_chart.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <string_view>

namespace cli {
namespace {

constexpr int64_t kBarWidth = 40;
constexpr int64_t kEighths = 8;

std::string blocks_of(double share) {
  constexpr std::array kPart = {"", "\u258f", "\u258e", "\u258d", "\u258c", "\u258b", "\u258a", "\u2589"};
  const int64_t eighths = std::llround(share * kBarWidth * kEighths);
  std::string text;
  for (int64_t i = 0; i < eighths / kEighths; ++i) text += "\u2588";
  return text + kPart[static_cast<size_t>(eighths % kEighths)];
}

std::string_view variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

/// By the first of the variables that decide on the character set.
bool shows_unicode() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const std::string_view locale = variable(name);
    if (locale.empty()) continue;
    return locale.ends_with("UTF-8") || locale.ends_with("utf8") || locale.ends_with("UTF8");
  }
  return false;
}

bool wants_charts() {
  return isatty(STDOUT_FILENO) == 1 && std::getenv("KVQ_NO_CHARTS") == nullptr && variable("TERM") != "dumb";
}

}  // namespace

std::string bars_text(const std::string& title, const std::vector<Bar>& bars, bool blocks) {
  size_t name_width = 0;
  double longest = 0.0;
  for (const Bar& bar : bars) {
    name_width = std::max(name_width, bar.name.size());
    longest = std::max(longest, bar.length);
  }
  std::string text = title + "\n";
  for (const Bar& bar : bars) {
    const double share = longest > 0.0 ? bar.length / longest : 0.0;
    text += bar.name + std::string(name_width - bar.name.size() + 2, ' ') +
            (blocks ? blocks_of(share) : std::string(static_cast<size_t>(std::llround(share * kBarWidth)), '#')) +
            (share > 0.0 ? " " : "") + bar.text + "\n";
  }
  return text;
}

std::string chart_for_terminal(const std::string& title, const std::vector<Bar>& bars) {
  return wants_charts() ? "\n" + bars_text(title, bars, shows_unicode()) : "";
}

}  // namespace cli
