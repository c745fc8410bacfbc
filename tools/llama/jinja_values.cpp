#include "jinja_values.h"

#include <cctype>
#include <cmath>

#include "error.h"
#include "json_document.h"

namespace llama::jinja {
namespace {

/// UTF-8 text by character; bytes that are none go with the character before.
std::vector<Json> characters(const std::string& text) {
  std::vector<Json> all;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = begin + 1;
    while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) ++end;
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

void append(std::string& text, std::string_view more) {
  constexpr size_t kMaxTextBytes = size_t{64} << 20;
  if (text.size() + more.size() > kMaxTextBytes) throw Error("a text becomes longer than 64 MiB");
  text += more;
}

std::string replaced(const std::string& text, const std::string& from, const std::string& to) {
  if (from.empty()) throw Error("cannot replace an empty text");
  std::string result;
  size_t begin = 0;
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, begin)) {
    append(result, text.substr(begin, at - begin));
    append(result, to);
    begin = at + from.size();
  }
  append(result, text.substr(begin));
  return result;
}

bool is_equal(const Value& left, const Value& right) {
  if (!left || !right) return !left && !right;
  return *left == *right;
}

bool is_in(const Value& item, const Value& container) {
  if (container && container->is_string()) {
    return container->get_ref<const std::string&>().find(string_of(item, "a text contains no such thing as")) !=
           std::string::npos;
  }
  if (container && container->is_object())
    return item && item->is_string() && container->contains(item->get<std::string>());
  return std::ranges::any_of(items_of(container), [&](const Json& each) { return is_equal(each, item); });
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

std::string json_text(const Json& value, int64_t indent) {
  if (!value.is_structured() || value.empty()) {
    return value.dump(-1, ' ', false, Json::error_handler_t::replace);
  }
  std::string text;
  for (const auto& [key, item] : value.items()) {
    text += text.empty() ? "" : indent < 0 ? ", " : ",\n";
    if (value.is_object()) text += json_text(key, -1) + ": ";
    text += json_text(item, indent);
  }
  if (indent >= 0) text = replaced("\n" + text, "\n", "\n" + std::string(static_cast<size_t>(indent), ' ')) + "\n";
  return value.is_object() ? "{" + text + "}" : "[" + text + "]";
}

int64_t length_of(const Value& value) {
  if (value && value->is_string()) {
    return static_cast<int64_t>(characters(value->get_ref<const std::string&>()).size());
  }
  if (!value || !value->is_structured()) refuse("there is no length of", value);
  return static_cast<int64_t>(value->size());
}

std::vector<Json> items_of(const Value& value) {
  if (!value) return {};
  if (value->is_string()) return characters(value->get_ref<const std::string&>());
  if (!value->is_structured()) refuse("there are no items in", value);
  std::vector<Json> items;
  for (const auto& [key, item] : value->items()) items.push_back(value->is_object() ? Json(key) : item);
  return items;
}

Value slice(const Value& value, const Value& begin, const Value& end, const Value& step) {
  if (!value || value->is_object()) refuse("cannot take a slice of", value);
  const std::vector<Json> items = items_of(value);
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
  Json result = value->is_string() ? Json(std::string()) : Json::array();
  const int64_t stride = std::clamp(by, -size - 1, size + 1);
  for (int64_t i = bound(begin, by > 0 ? 0 : size - 1); by > 0 ? i < last : i > last; i += stride) {
    const Json& item = items[static_cast<size_t>(i)];
    if (value->is_string()) {
      result.get_ref<std::string&>() += item.get_ref<const std::string&>();
    } else {
      result.push_back(item);
    }
  }
  return result;
}

Value item_of(const Value& value, const Value& key) {
  if (!value || value->is_null()) refuse("cannot take an item of", value);
  if (value->is_object()) {
    if (!key || !key->is_string() || !value->contains(key->get<std::string>())) return std::nullopt;
    return value->at(key->get<std::string>());
  }
  if (!key || !key->is_number_integer() || !(value->is_array() || value->is_string())) return std::nullopt;
  const std::vector<Json> items = items_of(value);
  const auto size = static_cast<int64_t>(items.size());
  const auto at = key->get<int64_t>();
  if (at >= size || at < -size) return std::nullopt;
  return items[static_cast<size_t>(at < 0 ? at + size : at)];
}

Value apply_binary(const std::string& sign, const Value& left, const Value& right) {
  if (sign == "==") return is_equal(left, right);
  if (sign == "!=") return !is_equal(left, right);
  if (sign == "in") return is_in(left, right);
  if (sign == "~") return text_of(left) + text_of(right);
  const bool texts = left && right && left->is_string() && right->is_string();
  if (sign.starts_with('<') || sign.starts_with('>')) {
    if (!texts && !(left && right && left->is_number() && right->is_number())) {
      throw Error("cannot compare " + type_name(left) + " with " + type_name(right));
    }
    if (sign == "<") return *left < *right;
    if (sign == "<=") return *left <= *right;
    return sign == ">" ? *left > *right : *left >= *right;
  }
  if (sign == "+" && texts) return left->get<std::string>() + right->get<std::string>();
  if (sign == "+" && left && right && left->is_array() && right->is_array()) {
    Json sum = *left;
    sum.insert(sum.end(), right->begin(), right->end());
    return sum;
  }
  return arithmetic(sign, left, right);
}

}  // namespace llama::jinja
