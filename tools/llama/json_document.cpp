#include "json_document.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>
#include <vector>

#include "error.h"
#include "mapped_file.h"

namespace llama {

namespace {

constexpr int kMaxDepth = 64;
constexpr size_t kMaxQuoted = 120;
constexpr size_t kMaxReason = 240;

/// Sees every event of a parse, because the parser itself keeps the last of two equal names without a word.
class StructureCheck {
 public:
  explicit StructureCheck(const std::string& source) : source_(source) {}

  bool operator()(int depth, nlohmann::json::parse_event_t event, const nlohmann::json& value) {
    using Event = nlohmann::json::parse_event_t;
    if (depth > kMaxDepth) throw Error(source_ + ": JSON is nested deeper than " + std::to_string(kMaxDepth));
    if (event == Event::object_start) names_.emplace_back();
    if (event == Event::object_end) names_.pop_back();
    if (event == Event::key && !names_.back().insert(value.get_ref<const std::string&>()).second) {
      throw Error(source_ + ": the name " + in_quotes(value.get_ref<const std::string&>()) +
                  " occurs twice in one object");
    }
    return true;
  }

 private:
  const std::string& source_;
  std::vector<std::unordered_set<std::string>> names_;
};

}  // namespace

std::string in_quotes(std::string_view text) {
  std::string out = "'";
  for (char c : text.substr(0, kMaxQuoted)) {
    if (static_cast<unsigned char>(c) >= 0x20 && c != 0x7f) {
      out += c;
    } else {
      constexpr char kHex[] = "0123456789abcdef";
      out += "\\x";
      out += kHex[(c >> 4) & 0xf];
      out += kHex[c & 0xf];
    }
  }
  return out + (text.size() > kMaxQuoted ? "...'" : "'");
}

nlohmann::json parse_json(std::string_view text, const std::string& source) {
  StructureCheck check(source);
  try {
    return nlohmann::json::parse(text.begin(), text.end(),
                                 [&check](int depth, nlohmann::json::parse_event_t event, nlohmann::json& value) {
                                   return check(depth, event, value);
                                 });
  } catch (const nlohmann::json::exception& error) {
    if (text.empty()) throw Error(source + ": not valid JSON: it is empty");
    const std::string reason = error.what();  // "[json.exception.parse_error.101] parse error at line 1, ..."
    throw Error(source + ": not valid JSON: " + reason.substr(reason.find("] ") + 2, kMaxReason));
  }
}

nlohmann::json read_json(const std::filesystem::path& path) {
  const MappedFile file(path);
  const auto bytes = file.bytes();
  return parse_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path.string());
}

std::optional<int64_t> as_integer(const nlohmann::json& value) {
  if (!value.is_number_integer()) return std::nullopt;
  if (value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{INT64_MAX}) return std::nullopt;
  return value.get<int64_t>();
}

JsonObject::JsonObject(const nlohmann::json& value, std::string place) : value_(&value), place_(std::move(place)) {
  if (!value.is_object()) throw Error(place_ + ": expected an object, found " + value.type_name());
}

const nlohmann::json* JsonObject::find(const char* key) const {
  const auto found = value_->find(key);
  return found == value_->end() || found->is_null() ? nullptr : &*found;
}

const nlohmann::json& JsonObject::at(const char* key) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) throw Error(place_ + ": " + key + " is missing");
  return *value;
}

JsonObject JsonObject::object(const char* key) const { return {at(key), place_ + ": " + key}; }

std::string JsonObject::string(const char* key) const {
  const nlohmann::json& value = at(key);
  if (!value.is_string()) refuse(key, "expected a string");
  return value.get<std::string>();
}

bool JsonObject::boolean(const char* key, bool fallback) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) refuse(key, "expected true or false");
  return value->get<bool>();
}

int64_t JsonObject::integer(const char* key, int64_t low, int64_t high) const {
  const std::optional<int64_t> value = as_integer(at(key));
  if (!value || *value < low || *value > high) {
    refuse(key, "expected an integer from " + std::to_string(low) + " to " + std::to_string(high));
  }
  return *value;
}

double JsonObject::number(const char* key, double low, double high) const {
  const nlohmann::json& value = at(key);
  const double number = value.is_number() ? value.get<double>() : std::nan("");
  if (!(number >= low && number <= high)) {
    refuse(key, "expected a number from " + nlohmann::json(low).dump() + " to " + nlohmann::json(high).dump());
  }
  return number;
}

void JsonObject::refuse(const char* key, const std::string& expected) const {
  const nlohmann::json* value = find(key);
  std::string shown = value == nullptr ? "null" : value->dump(-1, ' ', true);
  if (shown.size() > kMaxQuoted) shown = shown.substr(0, kMaxQuoted) + "...";
  throw Error(place_ + ": " + key + " is " + shown + ", " + expected);
}

}  // namespace llama
