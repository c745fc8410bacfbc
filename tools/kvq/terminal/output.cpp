#include "terminal/output.h"

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <sstream>

#include "llama/error.h"
#include "llama/weights.h"

namespace cli {
namespace {

// The headings as rows of cells, bottom-aligned.
std::vector<std::vector<std::string>> heading_rows(const std::vector<std::string>& headings) {
  const auto lines_of = [](const std::string& text) { return static_cast<size_t>(std::ranges::count(text, '\n')) + 1; };
  size_t height = 0;
  for (const std::string& heading : headings) height = std::max(height, lines_of(heading));
  std::vector<std::vector<std::string>> rows(height, std::vector<std::string>(headings.size()));
  for (size_t column = 0; column < headings.size(); ++column) {
    std::istringstream lines(headings[column]);
    for (size_t row = height - lines_of(headings[column]); row < height; ++row) std::getline(lines, rows[row][column]);
  }
  return rows;
}

std::string padded(const std::string& cell, size_t width, bool left) {
  const std::string spaces(width - std::min(width, cell.size()), ' ');
  return left ? cell + spaces : spaces + cell;
}

}  // namespace

std::string joined(const std::vector<std::string>& words, const std::string& between) {
  std::string text;
  for (const std::string& word : words) text += (&word == words.data() ? "" : between) + word;
  return text;
}

void print_text(const std::string& text) {
  std::cout << text << std::flush;
  if (!std::cout) throw llama::Error("cannot write to standard output");
}

void print_json(const Json& object) { print_text(object.dump(2, ' ', false, Json::error_handler_t::replace) + "\n"); }
uint64_t kv_bytes(const kvq_usage& usage) { return usage.sealed_bytes + usage.fp16_bytes + usage.metadata_bytes; }

void add_usage(Json& object, const kvq_usage& usage) {
  object["kv_bits"] = usage.bits_per_scalar;
  object["kv_bytes"] = kv_bytes(usage);
  object["fp16_kv_bytes"] = usage.plain_fp16_bytes;
}

void add_sizes(Json& object, const kvq_usage& usage, const llama::Weights& weights) {
  add_usage(object, usage);
  object["weight_bits"] = weights.bits;
  if (weights.linear_bits > 0.0) object["linear_weight_bits"] = weights.linear_bits;
}

std::string number_text(double value, int digits) {
  std::array<char, 64> text;
  const int length = std::snprintf(text.data(), text.size(), "%.*f", digits, value);
  return std::string(text.data(), static_cast<size_t>(length));
}

std::string nats_text(double nats) {
  constexpr int kDecimals = 5;
  constexpr int kMostDecimals = 9;  // FP32's rounding is what is less
  int decimals = kDecimals;
  for (double least = 1e-4; nats > 0.0 && nats < least && decimals < kMostDecimals; least /= 10.0) ++decimals;
  return number_text(nats, decimals);
}

std::string duration_text(double seconds) {
  constexpr int64_t kMinute = 60;
  constexpr int64_t kHour = 60 * kMinute;
  const int64_t whole = std::llround(seconds);
  if (whole < kMinute) return std::to_string(whole) + " s";
  if (whole < kHour) return std::to_string(whole / kMinute) + " min " + std::to_string(whole % kMinute) + " s";
  return std::to_string(whole / kHour) + " h " + std::to_string(whole % kHour / kMinute) + " min";
}

std::string hexadecimal(uint64_t value) {
  std::array<char, 17> text;
  std::snprintf(text.data(), text.size(), "%016" PRIx64, value);
  return text.data();
}

std::string signed_percent(double percent) {
  const std::string text = number_text(std::abs(percent), 2);
  return (percent < 0.0 && text != "0.00" ? "-" : "+") + text + " %";
}

std::string bytes_text(uint64_t bytes) {
  constexpr double kStep = 1024.0;
  const auto value = static_cast<double>(bytes);
  if (value < kStep) return std::to_string(bytes) + " B";
  if (value < kStep * kStep) return number_text(value / kStep, 1) + " KiB";
  if (value < kStep * kStep * kStep) return number_text(value / (kStep * kStep), 1) + " MiB";
  return number_text(value / (kStep * kStep * kStep), 2) + " GiB";
}

std::string written_text(const std::string& file, uint64_t bytes) {
  return "written to " + file + " (" + bytes_text(bytes) + ")\n";
}

std::string usage_text(const kvq_usage& usage) {
  return bytes_text(kv_bytes(usage)) + " at " + number_text(usage.bits_per_scalar, 2) +
         " bits per scalar (plain FP16: " + bytes_text(usage.plain_fp16_bytes) + ")";
}

std::string fp16_text(const kvq_usage& usage, const std::string& kv) {
  if (kv == "fp16" || usage.fp16_bytes <= usage.sealed_bytes) return {};
  return ", of which " + std::to_string(usage.fp16_pages) + " of " +
         std::to_string(usage.fp16_pages + usage.sealed_pages) + " pages of " + std::to_string(KVQ_PAGE_SLOTS) +
         " tokens are in FP16, as each head's newest always is: longer texts save more";
}

std::string weight_bits_text(const llama::Weights& weights) {
  const std::string packed =
      weights.linear_bits > 0.0 ? number_text(weights.linear_bits, 2) + " bits per weight in packed layers, " : "";
  return packed + number_text(weights.bits, 2) + (packed.empty() ? " bits per weight" : " in all");
}

void Table::add_row(std::vector<std::string> cells, const std::vector<std::string>& more,
                    const std::vector<std::string>& rest) {
  for (const auto* each : {&more, &rest}) cells.insert(cells.end(), each->begin(), each->end());
  rows_.push_back(std::move(cells));
}

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

void Figures::begin_row(bool in_objects) {
  in_objects_ = in_objects;
  if (in_objects) objects_.emplace_back();
  cells_.emplace_back();
}

void Figures::add(const std::string& heading, const std::string& field, const Json& value, const std::string& text) {
  if (in_objects_ && !field.empty()) objects_.back()[field] = value;
  if (heading.empty()) return;
  if (cells_.size() == 1) headings_.push_back(heading);
  cells_.back().push_back(text);
}

std::string Figures::table() const {
  Table table(headings_);
  for (const std::vector<std::string>& cells : cells_) table.add_row(cells);
  return table.text();
}

}  // namespace cli
