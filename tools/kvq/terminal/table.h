#pragma once

#include <string>
#include <vector>

namespace cli {

/// Plain text in aligned columns: the first to the left, the others to the right.
class Table {
 public:
  /// Headings of one or more lines, separated by '\n'.
  explicit Table(std::vector<std::string> headings) : headings_(std::move(headings)) {}

  void add_row(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  std::string text() const;

 private:
  std::vector<std::string> headings_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace cli
