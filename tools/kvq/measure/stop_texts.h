#pragma once

#include <string>
#include <vector>

namespace cli {

/// Finds where a text that comes in pieces has to end.
class StopTexts {
 public:
  /// None of them is empty.
  explicit StopTexts(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  /// Takes the next piece and returns what of the text is certainly before the first stop.
  std::string add(const std::string& piece);
  /// Whether a stop was found; pieces are ignored then.
  bool found() const { return found_; }
  /// What was kept back because a stop could have begun there.
  std::string finish();

 private:
  std::vector<std::string> stops_;
  std::string kept_;
  bool found_ = false;
};

}  // namespace cli
