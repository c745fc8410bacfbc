#include "jinja_values.h"

#include <cctype>
#include <cmath>

#include "error.h"
#include "json_document.h"
#include "system.h"

namespace llama::jinja {
namespace {

constexpr int32_t kMaxValueDepth = 64;
constexpr size_t kPlaceBytes = 16;  // of an item in a list, a key in a mapping

size_t bytes_in(const Json& value, int32_t depth) {
  if (depth > kMaxValueDepth) throw Error("values are nested too deeply");
  size_t bytes = Budget::kStep;
  if (value.is_string()) bytes += value.get_ref<const std::string&>().size();
  if (!value.is_structured()) return bytes;
  for (const auto& [key, item] : value.items()) {
    bytes += bytes_in(item, depth + 1) + (value.is_object() ? kPlaceBytes + key.size() : 0);
  }
  return bytes;
}

/// The end of the UTF-8 character that begins there; bytes that are none go with the character before.
size_t end_of_character(const std::string& text, size_t begin) {
  size_t end = begin + 1;
  while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) ++end;
  return end;
}

std::vector<Value> characters(const std::string& text, Budget& budget) {
  std::vector<Value> all;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = end_of_character(text, begin);
    budget.take(2 * Budget::kStep);
    all.emplace_back(text.substr(begin, end - begin));
    begin = end;
  }
  return all;
}

Value arithmetic(const std::string& sign, const Value& left, const Value& right) {
  const std::string what = "cannot compute " + in_quotes(sign) + " with";
  if (left && right && left->is_number() && right->is_number() &&
      (left->is_number_float() || right->is_number_float() || sign == "/")) {
    const auto a = left->get<double>();
    const auto b = right->get<double>();
    if (sign == "+") return a + b;
    if (sign == "-") return a - b;
    if (sign == "*") return a * b;
    if (b == 0.0) throw Error("division by 0");
    if (sign == "/") return a / b;
    return sign == "//" ? std::floor(a / b) : a - b * std::floor(a / b);
  }
  const int64_t a = integer_of(left, what);
  const int64_t b = integer_of(right, what);
  int64_t result = 0;
  bool overflow = false;
  if (sign == "+") {
    overflow = __builtin_add_overflow(a, b, &result);
  } else if (sign == "-") {
    overflow = __builtin_sub_overflow(a, b, &result);
  } else if (sign == "*") {
    overflow = __builtin_mul_overflow(a, b, &result);
  } else {
    if (b == 0) throw Error("division by 0");
    overflow = b == -1;  // of the smallest number, and nobody divides by it
    if (!overflow) {
      const int64_t rest = (a % b + b) % b;  // as in Python of the divisor's sign
      result = sign == "%" ? rest : (a - rest) / b;
    }
  }
  if (overflow) throw Error("a number becomes too large");
  return result;
}

}  // namespace

std::string type_name(const Value& value) {
  if (!value) return "an undefined value";
  if (value->is_null()) return "none";
  if (value->is_boolean()) return "a boolean";
  if (value->is_number()) return "a number";
  if (value->is_string()) return "a text";
  return value->is_array() ? "a list" : "a mapping";
}

[[noreturn]] void refuse(const std::string& what, const Value& value) { throw Error(what + " " + type_name(value)); }

const std::string& string_of(const Value& value, const std::string& what) {
  if (!value || !value->is_string()) refuse(what, value);
  return value->get_ref<const std::string&>();
}

int64_t integer_of(const Value& value, const std::string& what) {
  if (!value || !(value->is_number_integer() || value->is_boolean())) refuse(what, value);
  return value->is_boolean() ? int64_t{value->get<bool>()} : value->get<int64_t>();
}

size_t bytes_in(const Json& value) { return bytes_in(value, 0); }

size_t text_bytes(const Value& value) {
  return value && value->is_string() ? value->get_ref<const std::string&>().size() : 0;
}

size_t place_bytes(const Value& value) { return kPlaceBytes * value->size(); }

Json& Value::own(Budget& budget) {
  if (json_.use_count() > 1) *this = Value(copy_of(*this, budget));
  return *json_;
}

Json copy_of(const Value& value, Budget& budget) {
  if (!value) return nullptr;
  budget.take(bytes_in(*value));
  return *value;
}

Json copy_of(std::span<const Value> items, Budget& budget) {
  Json list = Json::array();
  for (const Value& item : items) list.push_back(copy_of(item, budget));
  return list;
}

void append(std::string& text, std::string_view more, Budget& budget) {
  budget.take(more.size());
  text += more;
}

std::string replaced(const std::string& text, const std::string& from, const std::string& to, Budget& budget) {
  if (from.empty()) throw Error("cannot replace an empty text");
  std::string result;
  size_t begin = 0;
  for (size_t at = find_text(text, from); at != std::string::npos; at = find_text(text, from, begin)) {
    append(result, std::string_view(text).substr(begin, at - begin), budget);
    append(result, to, budget);
    begin = at + from.size();
  }
  append(result, std::string_view(text).substr(begin), budget);
  return result;
}

bool is_equal(const Value& left, const Value& right, Budget& budget) {
  if (!left || !right) return !left && !right;
  const bool structured = left->is_structured() && right->is_structured();
  budget.take(structured ? bytes_in(*left) : std::min(text_bytes(left), text_bytes(right)));
  return *left == *right;
}

bool is_in(const Value& item, const Value& container, Budget& budget) {
  if (container && container->is_string()) {
    return find_text(container->get_ref<const std::string&>(), string_of(item, "a text contains no such thing as")) !=
           std::string::npos;
  }
  if (container && container->is_object()) {
    budget.take(place_bytes(container));
    return item && item->is_string() && container->contains(item->get_ref<const std::string&>());
  }
  return std::ranges::any_of(items_of(container, budget),
                             [&](const Value& each) { return is_equal(each, item, budget); });
}

bool truth(const Value& value) {
  if (!value || value->is_null()) return false;
  if (value->is_boolean()) return value->get<bool>();
  if (value->is_number()) return value->get<double>() != 0.0;
  return value->is_string() ? !value->get_ref<const std::string&>().empty() : !value->empty();
}

std::string text_of(const Value& value) {
  if (!value) return {};
  if (value->is_string()) return value->get<std::string>();
  if (value->is_null()) return "None";
  if (value->is_boolean()) return value->get<bool>() ? "True" : "False";
  if (value->is_number()) return value->dump();
  throw Error("cannot print " + type_name(value) + ", but by the filter 'tojson'");
}

std::string json_text(const Json& value, int64_t indent, Budget& budget) {
  if (!value.is_structured() || value.empty()) {
    return value.dump(-1, ' ', false, Json::error_handler_t::replace);
  }
  std::string text;
  for (const auto& [key, item] : value.items()) {
    append(text, text.empty() ? "" : indent < 0 ? ", " : ",\n", budget);
    if (value.is_object()) append(text, json_text(key, -1, budget) + ": ", budget);
    append(text, json_text(item, indent, budget), budget);
  }
  if (indent >= 0) {
    const std::string space(static_cast<size_t>(indent), ' ');
    text = replaced("\n" + text, "\n", "\n" + space, budget) + "\n";
  }
  return value.is_object() ? "{" + text + "}" : "[" + text + "]";
}

int64_t length_of(const Value& value) {
  if (value && value->is_string()) {
    const auto& text = value->get_ref<const std::string&>();
    int64_t length = 0;
    for (size_t at = 0; at < text.size(); at = end_of_character(text, at)) ++length;
    return length;
  }
  if (!value || !value->is_structured()) refuse("there is no length of", value);
  return static_cast<int64_t>(value->size());
}

std::vector<Value> items_of(const Value& value, Budget& budget) {
  if (!value) return {};
  if (value->is_string()) return characters(value->get_ref<const std::string&>(), budget);
  if (!value->is_structured()) refuse("there are no items in", value);
  budget.take(place_bytes(value));
  std::vector<Value> items;
  for (const auto& [key, item] : value->items()) {
    if (value->is_object()) {
      budget.take(Budget::kStep + key.size());
      items.emplace_back(key);
    } else {
      items.emplace_back(value, item);
    }
  }
  return items;
}

Value slice(const Value& value, const Value& begin, const Value& end, const Value& step, Budget& budget) {
  if (!value || value->is_object()) refuse("cannot take a slice of", value);
  const std::vector<Value> items = items_of(value, budget);
  const auto size = static_cast<int64_t>(items.size());
  const auto given = [](const Value& part) { return part && !part->is_null(); };
  const int64_t by = given(step) ? integer_of(step, "the step of a slice is") : 1;
  if (by == 0) throw Error("the step of a slice is 0");
  const int64_t lowest = by > 0 ? 0 : -1;
  const int64_t highest = by > 0 ? size : size - 1;
  const auto bound = [&](const Value& part, int64_t otherwise) {
    if (!given(part)) return otherwise;
    const int64_t at = integer_of(part, "a bound of a slice is");
    return std::clamp(at < 0 ? std::max(at, -size - 1) + size : at, lowest, highest);
  };
  const int64_t last = bound(end, by > 0 ? size : -1);
  std::vector<Value> chosen;
  const int64_t stride = std::clamp(by, -size - 1, size + 1);
  for (int64_t i = bound(begin, by > 0 ? 0 : size - 1); by > 0 ? i < last : i > last; i += stride) {
    chosen.push_back(items[static_cast<size_t>(i)]);
  }
  if (!value->is_string()) return copy_of(chosen, budget);
  std::string text;
  for (const Value& each : chosen) append(text, each->get_ref<const std::string&>(), budget);
  return text;
}

Value item_of(const Value& value, const Value& key, Budget& budget) {
  if (!value || value->is_null()) refuse("cannot take an item of", value);
  if (value->is_object()) {
    budget.take(place_bytes(value));
    const auto found = key && key->is_string() ? value->find(key->get_ref<const std::string&>()) : value->end();
    return found != value->end() ? Value(value, *found) : Value();
  }
  if (!key || !key->is_number_integer() || !(value->is_array() || value->is_string())) return std::nullopt;
  const std::vector<Value> characters = value->is_string() ? items_of(value, budget) : std::vector<Value>();
  const auto size = static_cast<int64_t>(value->is_string() ? characters.size() : value->size());
  const auto at = key->get<int64_t>();
  if (at >= size || at < -size) return std::nullopt;
  const auto place = static_cast<size_t>(at < 0 ? at + size : at);
  return value->is_string() ? characters[place] : Value(value, (*value)[place]);
}

Value apply_binary(const std::string& sign, const Value& left, const Value& right, Budget& budget) {
  if (sign == "==") return is_equal(left, right, budget);
  if (sign == "!=") return !is_equal(left, right, budget);
  budget.take(text_bytes(left) + text_bytes(right));
  if (sign == "in") return is_in(left, right, budget);
  const bool texts = left && right && left->is_string() && right->is_string();
  if (sign == "~" || (sign == "+" && texts)) {
    std::string text = text_of(left);
    append(text, text_of(right), budget);
    return text;
  }
  if (sign.starts_with('<') || sign.starts_with('>')) {
    if (!texts && !(left && right && left->is_number() && right->is_number())) {
      throw Error("cannot compare " + type_name(left) + " with " + type_name(right));
    }
    if (sign == "<") return *left < *right;
    if (sign == "<=") return *left <= *right;
    return sign == ">" ? *left > *right : *left >= *right;
  }
  if (sign == "+" && left && right && left->is_array() && right->is_array()) {
    Json sum = copy_of(left, budget);
    for (const Json& item : *right) sum.push_back(copy_of(Value(right, item), budget));
    return sum;
  }
  return arithmetic(sign, left, right);
}

}  // namespace llama::jinja
