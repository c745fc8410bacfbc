#include "jinja_values.h"

#include <algorithm>
#include <cctype>
#include <cmath>

#include "error.h"
#include "json_document.h"

namespace llama::jinja {
namespace {

constexpr std::string_view kSpace = " \t\r\n\f\v";

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

Value argument(const std::vector<Argument>& arguments, size_t place, std::string_view name) {
  for (const Argument& each : arguments) {
    if (!each.name.empty() && each.name == name) return each.value;
  }
  return place < arguments.size() && arguments[place].name.empty() ? arguments[place].value : std::nullopt;
}

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

std::string strip(const std::string& text, const Value& characters, bool left, bool right) {
  const std::string set =
      characters && !characters->is_null() ? string_of(characters, "cannot strip") : std::string(kSpace);
  const size_t begin = left ? std::min(text.find_first_not_of(set), text.size()) : 0;
  const size_t end = right ? text.find_last_not_of(set) + 1 : text.size();
  return end > begin ? text.substr(begin, end - begin) : std::string();
}

std::string mapped(std::string text, int (*map)(int)) {  // ASCII alone
  for (char& c : text) c = static_cast<unsigned char>(c) < 0x80 ? static_cast<char>(map(c)) : c;
  return text;
}

/// Text that a template makes of other text cannot become arbitrarily long.
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

Json split(const std::string& text, const Value& separator) {
  Json parts = Json::array();
  if (separator && !separator->is_null()) {
    const std::string& by = string_of(separator, "cannot split at");
    if (by.empty()) throw Error("cannot split at an empty text");
    size_t begin = 0;
    for (size_t at = text.find(by); at != std::string::npos; at = text.find(by, begin)) {
      parts.push_back(text.substr(begin, at - begin));
      begin = at + by.size();
    }
    parts.push_back(text.substr(begin));
    return parts;
  }
  for (size_t begin = text.find_first_not_of(kSpace); begin != std::string::npos;) {
    const size_t end = std::min(text.find_first_of(kSpace, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = text.find_first_not_of(kSpace, end);
  }
  return parts;
}

Json pairs(const Json& mapping) {
  Json all = Json::array();
  for (const auto& [key, value] : mapping.items()) all.push_back(Json::array({key, value}));
  return all;
}

std::string joined(const Value& value, const Value& separator) {
  const std::string between = separator ? text_of(separator) : std::string();
  std::string text;
  bool first = true;
  for (const Json& item : items_of(value)) {
    if (!first) append(text, between);
    append(text, text_of(item));
    first = false;
  }
  return text;
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

Value apply_filter(const std::string& name, const Value& value, const std::vector<Argument>& arguments) {
  const Value first = argument(arguments, 0, "");
  if (name == "default" || name == "d") {
    const bool falsy_too = truth(argument(arguments, 1, "boolean"));
    if (value && !(falsy_too && !truth(value))) return value;
    const Value otherwise = argument(arguments, 0, "default_value");
    return otherwise ? otherwise : Json("");
  }
  if (name == "tojson") {
    if (!value) refuse("cannot write as JSON", value);
    const Value indent = argument(arguments, 0, "indent");
    const bool given = indent && !indent->is_null();
    return json_text(*value, given ? std::clamp(integer_of(indent, "the indent is"), int64_t{0}, int64_t{16}) : -1);
  }
  if (name == "length" || name == "count") return length_of(value);
  if (name == "string") return text_of(value);
  if (name == "safe") return value;
  if (name == "int")
    return value && value->is_number() ? value->get<int64_t>() : std::strtoll(text_of(value).c_str(), nullptr, 10);
  if (name == "join") return joined(value, argument(arguments, 0, "d"));
  if (name == "list") return Json(items_of(value));
  if (name == "items") return value && value->is_object() ? pairs(*value) : Json::array();
  if (name == "first") return item_of(Json(items_of(value)), 0);
  if (name == "last") return item_of(Json(items_of(value)), -1);
  if (name == "reverse") return slice(value, Json(), Json(), -1);
  if (name == "trim") return strip(text_of(value), argument(arguments, 0, "chars"), true, true);
  if (name == "upper") return mapped(text_of(value), std::toupper);
  if (name == "lower") return mapped(text_of(value), std::tolower);
  if (name == "capitalize") {
    std::string text = mapped(text_of(value), std::tolower);
    return mapped(text.substr(0, 1), std::toupper) + (text.empty() ? "" : text.substr(1));
  }
  if (name == "replace") return replaced(text_of(value), text_of(first), text_of(argument(arguments, 1, "")));
  throw Error("the filter " + in_quotes(name) + " is not known here");
}

bool apply_test(const std::string& name, const Value& value, const std::vector<Argument>& arguments) {
  const Value first = argument(arguments, 0, "");
  if (name == "defined") return value.has_value();
  if (name == "undefined") return !value;
  if (name == "none") return value && value->is_null();
  if (name == "string") return value && value->is_string();
  if (name == "mapping") return value && value->is_object();
  if (name == "sequence" || name == "iterable") return !value || value->is_structured() || value->is_string();
  if (name == "number") return value && (value->is_number() || value->is_boolean());
  if (name == "integer") return value && value->is_number_integer();
  if (name == "boolean") return value && value->is_boolean();
  if (name == "true") return value && *value == true;
  if (name == "false") return value && *value == false;
  if (name == "equalto" || name == "eq") return is_equal(value, first);
  if (name == "in") return is_in(value, first);
  if (name == "odd") return integer_of(value, "neither odd nor even is") % 2 != 0;
  if (name == "even") return integer_of(value, "neither odd nor even is") % 2 == 0;
  throw Error("the test " + in_quotes(name) + " is not known here");
}

Value call_method(const std::string& name, const Value& object, const std::vector<Argument>& arguments) {
  const Value first = argument(arguments, 0, "");
  if (object && object->is_object()) {
    if (name == "items") return pairs(*object);
    if (name == "keys") return Json(items_of(object));
    if (name == "values") {
      Json values = Json::array();
      for (const Json& value : *object) values.push_back(value);
      return values;
    }
    if (name == "get") {
      const Value found = item_of(object, first);
      const Value otherwise = argument(arguments, 1, "");
      return found ? found : otherwise ? otherwise : Json();
    }
  }
  if (object && object->is_string()) {
    const std::string& text = object->get_ref<const std::string&>();
    if (name == "strip") return strip(text, first, true, true);
    if (name == "lstrip") return strip(text, first, true, false);
    if (name == "rstrip") return strip(text, first, false, true);
    if (name == "startswith") return text.starts_with(string_of(first, "no text begins with"));
    if (name == "endswith") return text.ends_with(string_of(first, "no text ends with"));
    if (name == "split") return split(text, first);
    if (name == "upper") return mapped(text, std::toupper);
    if (name == "lower") return mapped(text, std::tolower);
    if (name == "replace") {
      return replaced(text, string_of(first, "cannot replace"),
                      string_of(argument(arguments, 1, ""), "cannot replace by"));
    }
  }
  refuse("the method " + in_quotes(name) + " is not known here of", object);
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
