#pragma once

#include <string>
#include <vector>

namespace cli {

struct Bar {
  std::string name;
  double length = 0.0;  // in any unit, not negative
  std::string text;     // behind it
};

/// Horizontal bars, the longest of 40 characters. \param blocks  Unicode's, an eighth of a character fine, or plain
/// "#".
std::string bars_text(const std::string& title, const std::vector<Bar>& bars, bool blocks);

inline constexpr const char* kChartHelp =
    "In a terminal a chart of bars follows; the variable KVQ_NO_CHARTS in the environment turns it off.";

/// The same behind an empty line if standard output is a terminal that wants it, in characters that it shows; otherwise
/// nothing. The variable KVQ_NO_CHARTS in the environment, whatever it is, turns charts off.
std::string chart_for_terminal(const std::string& title, const std::vector<Bar>& bars);

}  // namespace cli
