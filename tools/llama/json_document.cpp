#include "json_document.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "error.h"
#include "mapped_file.h"

namespace llama {

namespace {

constexpr size_t kMaxDepth = 64;
constexpr size_t kMaxQuoted = 120;
constexpr size_t kMaxReason = 240;

/// Builds a document from the events of a parse. The library's own builder keeps the last of two equal names without a
/// word and, with a callback that could object, takes quadratic time for a list of objects.
class DocumentBuilder : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit DocumentBuilder(const std::string& source) : source_(source) {}

  nlohmann::json take() { return std::move(root_); }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t& /*text*/) override { return add(value); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t& value) override { return add(std::move(value)); }
  bool start_object(size_t /*members*/) override { return open(nlohmann::json::object()); }
  bool start_array(size_t /*elements*/) override { return open(nlohmann::json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    const auto [member, is_new] = open_.back()->emplace(name, nullptr);
    if (!is_new) throw Error(source_ + ": the name " + in_quotes(name) + " occurs twice in one object");
    member_ = &*member;
    return true;
  }

  bool parse_error(size_t /*position*/, const std::string& /*token*/, const nlohmann::json::exception& error) override {
    const std::string reason = error.what();  // "[json.exception.parse_error.101] parse error at line 1, ..."
    throw Error(source_ + ": not valid JSON: " + reason.substr(reason.find("] ") + 2, kMaxReason));
  }

 private:
  bool add(nlohmann::json value) {
    place(std::move(value));
    return true;
  }

  nlohmann::json& place(nlohmann::json value) {
    if (!open_.empty() && open_.back()->is_array()) return open_.back()->emplace_back(std::move(value));
    nlohmann::json& at = open_.empty() ? root_ : *member_;
    at = std::move(value);
    return at;
  }

  bool open(nlohmann::json value) {
    if (open_.size() == kMaxDepth) throw Error(source_ + ": JSON is nested deeper than " + std::to_string(kMaxDepth));
    open_.push_back(&place(std::move(value)));
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  const std::string& source_;
  nlohmann::json root_;
  std::vector<nlohmann::json*> open_;  // objects and lists, the innermost last
  nlohmann::json* member_ = nullptr;   // of the innermost object, by the last name
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
  if (text.empty()) throw Error(source + ": not valid JSON: it is empty");
  DocumentBuilder builder(source);
  nlohmann::json::sax_parse(text.begin(), text.end(), &builder);
  return builder.take();
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
