#include "measure/stop_texts.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace cli {
namespace {

/// Characters at the end of a text that a stop may begin with.
size_t begun(std::string_view text, std::string_view stop) {
  for (size_t n = std::min(text.size(), stop.size() - 1); n > 0; --n) {
    if (text.ends_with(stop.substr(0, n))) return n;
  }
  return 0;
}

}  // namespace

std::string StopTexts::add(const std::string& piece) {
  if (found_) return {};
  kept_ += piece;
  size_t first = std::string::npos;
  size_t most = 0;
  for (const std::string& stop : stops_) {
    first = std::min(first, kept_.find(stop));
    most = std::max(most, begun(kept_, stop));
  }
  found_ = first != std::string::npos;
  if (found_) return std::exchange(kept_, {}).substr(0, first);
  const std::string certain = kept_.substr(0, kept_.size() - most);
  kept_.erase(0, certain.size());
  return certain;
}

std::string StopTexts::finish() { return std::exchange(kept_, {}); }

}  // namespace cli
