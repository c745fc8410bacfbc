#include "terminal/table.h"

#include <algorithm>
#include <sstream>

namespace cli {
namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// The headings as rows of cells, bottom-aligned.
std::vector<std::vector<std::string>> heading_rows(const std::vector<std::string>& headings) {
  std::vector<std::vector<std::string>> columns;
  size_t height = 0;
  for (const std::string& heading : headings) {
    columns.push_back(lines_of(heading));
    height = std::max(height, columns.back().size());
  }
  std::vector<std::vector<std::string>> rows(height, std::vector<std::string>(headings.size()));
  for (size_t column = 0; column < columns.size(); ++column) {
    const size_t blank = height - columns[column].size();
    for (size_t line = 0; line < columns[column].size(); ++line) rows[blank + line][column] = columns[column][line];
  }
  return rows;
}

std::string padded(const std::string& cell, size_t width, bool left) {
  const std::string spaces(width - std::min(width, cell.size()), ' ');
  return left ? cell + spaces : spaces + cell;
}

}  // namespace

std::string Table::text() const {
  std::vector<std::vector<std::string>> rows = heading_rows(headings_);
  const size_t heading_height = rows.size();
  rows.insert(rows.end(), rows_.begin(), rows_.end());

  std::vector<size_t> widths(headings_.size(), 0);
  for (const auto& row : rows) {
    for (size_t column = 0; column < row.size(); ++column) {
      widths[column] = std::max(widths[column], row[column].size());
    }
  }

  std::string result;
  for (size_t i = 0; i < rows.size(); ++i) {
    std::string line;
    for (size_t column = 0; column < rows[i].size(); ++column) {
      line += (column == 0 ? "" : "  ") + padded(rows[i][column], widths[column], column == 0);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    result += line + "\n";
    if (i + 1 == heading_height) {
      size_t total = 2 * (widths.size() - 1);
      for (const size_t width : widths) total += width;
      result += std::string(total, '-') + "\n";
    }
  }
  return result;
}

}  // namespace cli
