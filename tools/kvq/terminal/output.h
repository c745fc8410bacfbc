#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "kvq.h"

namespace llama {
struct Weights;
}

namespace cli {

/// Members stay in the order in which they are added.
using Json = nlohmann::ordered_json;

/// One JSON object on standard output. Bytes that are not UTF-8 become U+FFFD.
void print_json(const Json& object);

/// Write to standard output now; an Error when that is not possible any more, as with a closed pipe.
void print_text(const std::string& text);

/// The bytes of a sequence that hold keys and values or serve to find them.
uint64_t kv_bytes(const kvq_usage& usage);

/// Add `kv_bits`, `kv_bytes` and `fp16_kv_bytes`; or these, `weight_bits` and, if layers are packed,
/// `linear_weight_bits`.
void add_usage(Json& object, const kvq_usage& usage);
void add_sizes(Json& object, const kvq_usage& usage, const llama::Weights& weights);
std::string joined(const std::vector<std::string>& words, const std::string& between = ", ");

/// Examples of texts: "12.5 MiB"; fixed point with `digits` decimals; nats, with five decimals or as many as show two
/// digits: "0.02461", "0.0000052"; "41 s", "2 min 5 s" or "3 h 20 min"; all 16
/// digits; "+1.70 %"; "3.9 MiB at 5.22 bits per scalar (plain FP16: 12.0 MiB)"; "4.06 bits per weight in packed layers,
/// 7.31 in all"; "written to FILE (12.5 MiB)" and a line's end.
std::string bytes_text(uint64_t bytes);
std::string number_text(double value, int digits);
std::string nats_text(double nats);
std::string duration_text(double seconds);
std::string hexadecimal(uint64_t value);
std::string signed_percent(double percent);
std::string usage_text(const kvq_usage& usage);
std::string weight_bits_text(const llama::Weights& weights);
std::string written_text(const std::string& file, uint64_t bytes);

/// To follow usage_text(): why a short text saves little on a cache of that SPEC; empty where FP16 is not the reason.
std::string fp16_text(const kvq_usage& usage, const std::string& kv);

/// Plain text in aligned columns: the first to the left, the others to the right.
class Table {
 public:
  /// Headings of one or more lines, separated by '\n'.
  explicit Table(std::vector<std::string> headings) : headings_(std::move(headings)) {}

  /// Cells may come in several lists, one behind the other.
  void add_row(std::vector<std::string> cells, const std::vector<std::string>& more = {},
               const std::vector<std::string>& rest = {});
  std::string text() const;

 private:
  std::vector<std::string> headings_;
  std::vector<std::vector<std::string>> rows_;
};

/// Rows of figures, each described once for a table and for an array of objects.
class Figures {
 public:
  /// \param in_objects  false: a row of the table alone, such as one of means.
  void begin_row(bool in_objects = true);
  /// \param heading  of its column; empty: none. \param field  of its object; empty: none.
  void add(const std::string& heading, const std::string& field, const Json& value, const std::string& text);
  void add(const std::string& heading, const std::string& field, double value, int digits) {
    add(heading, field, value, number_text(value, digits));
  }
  std::string table() const;
  const Json& objects() const { return objects_; }

 private:
  std::vector<std::string> headings_;
  std::vector<std::vector<std::string>> cells_;
  bool in_objects_ = true;
  Json objects_ = Json::array();
};

/// null where there is nothing.
template <class T>
Json json_of(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

}  // namespace cli
