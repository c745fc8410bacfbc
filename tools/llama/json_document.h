#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace llama {

/// `text` between single quotes for a message: control characters escaped, long texts cut.
std::string in_quotes(std::string_view text);

/// Parse JSON that nobody vouches for. Throws Error, naming `source`, for a syntax error, invalid UTF-8, a name that
/// occurs twice in one object, or nesting deeper than 64.
nlohmann::json parse_json(std::string_view text, const std::string& source);
nlohmann::json read_json(const std::filesystem::path& path);

/// The value as an integer, if it is one that fits. 1.0 is not one.
std::optional<int64_t> as_integer(const nlohmann::json& value);

/// An object inside a parsed document together with its place for messages, for example "config.json: rope_scaling".
/// A member that is null counts as absent. Every getter throws Error if the member has the wrong type or value, and
/// without a fallback if it is absent. Refers to the document.
class JsonObject {
 public:
  JsonObject(const nlohmann::json& value, std::string place);

  bool has(const char* key) const { return find(key) != nullptr; }
  const nlohmann::json* find(const char* key) const;
  const nlohmann::json& at(const char* key) const;
  JsonObject object(const char* key) const;
  std::string string(const char* key) const;
  std::string string(const char* key, const std::string& fallback) const { return has(key) ? string(key) : fallback; }
  bool boolean(const char* key, bool fallback) const;
  int64_t integer(const char* key, int64_t low, int64_t high) const;
  int64_t integer(const char* key, int64_t low, int64_t high, int64_t fallback) const {
    return has(key) ? integer(key, low, high) : fallback;
  }
  /// A finite number in [low, high].
  double number(const char* key, double low, double high) const;
  double number(const char* key, double low, double high, double fallback) const {
    return has(key) ? number(key, low, high) : fallback;
  }

  const nlohmann::json& json() const { return *value_; }
  const std::string& place() const { return place_; }
  /// Throws Error: "<place>: <key> is <value>, <expected>".
  [[noreturn]] void refuse(const char* key, const std::string& expected) const;

 private:
  const nlohmann::json* value_;
  std::string place_;
};

}  // namespace llama
