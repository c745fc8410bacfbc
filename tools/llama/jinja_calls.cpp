#include "jinja_values.h"

#include <array>
#include <cctype>
#include <cmath>
#include <cstdlib>

#include "error.h"
#include "jinja.h"
#include "json_document.h"

namespace llama::jinja {
namespace {

using Arguments = std::vector<Argument>;

Value argument(const Arguments& arguments, size_t place, std::string_view name) {
  for (const Argument& each : arguments) {
    if (!each.name.empty() && each.name == name) return each.value;
  }
  return place < arguments.size() && arguments[place].name.empty() ? arguments[place].value : std::nullopt;
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
  const std::vector<Json> items = items_of(value);
  for (const Json& item : items) {
    if (&item != items.data()) append(text, between);
    append(text, text_of(item));
  }
  return text;
}

std::string lower(const Value& value) { return mapped(text_of(value), std::tolower); }

/// "a.b" and "a.0" are items of items.
Value attribute_of(Value value, const Value& path) {
  if (path && path->is_number_integer()) return item_of(value, path);
  std::string_view rest = string_of(path, "no attribute is");
  while (value && !rest.empty()) {
    const std::string key(rest.substr(0, rest.find('.')));
    rest.remove_prefix(std::min(key.size() + 1, rest.size()));
    const bool is_index = !key.empty() && key.find_first_not_of("0123456789") == std::string::npos;
    value = is_index ? item_of(value, std::strtoll(key.c_str(), nullptr, 10)) : item_of(value, Json(key));
  }
  return value;
}

Arguments without_first(const Arguments& arguments, size_t n) {
  return {arguments.begin() + static_cast<ptrdiff_t>(std::min(n, arguments.size())), arguments.end()};
}

/// The items that a test holds for, or does not: of them or of an attribute; without a test, those that count as true.
Value chosen(const Value& value, const Arguments& arguments, bool wanted, bool by_attribute) {
  const size_t place = by_attribute ? 1 : 0;
  const Value test = argument(arguments, place, "");
  Json result = Json::array();
  if (!truth(value)) return result;  // as Jinja does
  for (const Json& item : items_of(value)) {
    const Value subject = by_attribute ? attribute_of(item, argument(arguments, 0, "")) : item;
    const bool holds =
        test ? apply_test(string_of(test, "no test is"), subject, without_first(arguments, place + 1)) : truth(subject);
    if (holds == wanted) result.push_back(item);
  }
  return result;
}

/// An attribute of every item, or what a filter makes of it.
Value mapped_items(const Value& value, const Arguments& arguments) {
  const Value attribute = argument(arguments, arguments.size(), "attribute");
  const Value otherwise = argument(arguments, arguments.size(), "default");
  Json result = Json::array();
  if (!truth(value)) return result;  // as Jinja does
  for (const Json& item : items_of(value)) {
    Value made = attribute ? attribute_of(item, attribute)
                           : apply_filter(string_of(argument(arguments, 0, ""), "no filter is"), item,
                                          without_first(arguments, 1));
    if (attribute && !made) made = otherwise;
    result.push_back(made.value_or(nullptr));
  }
  return result;
}

/// Texts without regard to capitals, unless they are to be told apart.
Value sort_key(const Json& item, const Value& attribute, bool case_sensitive) {
  Value key = attribute ? attribute_of(item, attribute) : Value(item);
  return key && key->is_string() && !case_sensitive ? Value(lower(key)) : key;
}

std::vector<Json> sorted_items(std::vector<Json> items, const Value& attribute, bool case_sensitive) {
  std::ranges::stable_sort(items, [&](const Json& left, const Json& right) {
    return truth(
        apply_binary("<", sort_key(left, attribute, case_sensitive), sort_key(right, attribute, case_sensitive)));
  });
  return items;
}

Value sorted(const Value& value, const Arguments& arguments) {
  std::vector<Json> items = items_of(value);
  const bool descending = truth(argument(arguments, 0, "reverse"));
  if (descending) std::ranges::reverse(items);  // so that equals stay in order
  items = sorted_items(std::move(items), argument(arguments, 2, "attribute"),
                       truth(argument(arguments, 1, "case_sensitive")));
  if (descending) std::ranges::reverse(items);
  return Json(items);
}

Value sorted_pairs(const Value& value, const Arguments& arguments) {
  if (!value || !value->is_object()) refuse("cannot sort the keys of", value);
  const Value by = argument(arguments, 1, "by");
  const int place = by && *by == "value" ? 1 : 0;
  return Json(sorted_items(items_of(pairs(*value)), Json(place), truth(argument(arguments, 0, "case_sensitive"))));
}

Value unique(const Value& value, const Arguments& arguments) {
  std::vector<Json> result;
  std::vector<Value> keys;
  for (Json& item : items_of(value)) {
    const Value key =
        sort_key(item, argument(arguments, 1, "attribute"), truth(argument(arguments, 0, "case_sensitive")));
    if (std::ranges::find(keys, key) != keys.end()) continue;
    keys.push_back(key);
    result.push_back(std::move(item));
  }
  return Json(result);
}

Value smallest(const Value& value, const Arguments& arguments, bool largest) {
  const std::vector<Json> items = sorted_items(items_of(value), argument(arguments, 1, "attribute"),
                                               truth(argument(arguments, 0, "case_sensitive")));
  if (items.empty()) return std::nullopt;
  return largest ? items.back() : items.front();
}

Value with_default(const Value& value, const Arguments& arguments) {
  const bool falsy_too = truth(argument(arguments, 1, "boolean"));
  if (value && !(falsy_too && !truth(value))) return value;
  const Value otherwise = argument(arguments, 0, "default_value");
  return otherwise ? otherwise : Json("");
}

Value to_json(const Value& value, const Arguments& arguments) {
  if (!value) refuse("cannot write as JSON", value);
  const Value indent = argument(arguments, 0, "indent");
  const bool given = indent && !indent->is_null();
  return json_text(*value, given ? std::clamp(integer_of(indent, "the indent is"), int64_t{0}, int64_t{16}) : -1);
}

Value integer(const Value& value, const Arguments& arguments) {
  if (value && value->is_number_float()) {
    const double number = value->get<double>();
    return std::abs(number) < 0x1p63 ? Value(static_cast<int64_t>(number)) : Value(0);
  }
  if (value && value->is_number()) return value;
  if (value && value->is_boolean()) return int64_t{value->get<bool>()};
  const std::string text = value && value->is_string() ? strip(text_of(value), {}, true, true) : std::string();
  char* end = nullptr;
  const auto number = static_cast<int64_t>(std::strtoll(text.c_str(), &end, 10));
  if (!text.empty() && *end == '\0') return number;
  const Value otherwise = argument(arguments, 0, "default");
  return otherwise ? otherwise : Json(0);
}

Value capitalized(const Value& value) {
  const std::string text = lower(value);
  return mapped(text.substr(0, 1), std::toupper) + (text.empty() ? "" : text.substr(1));
}

Value indented(const Value& value, const Arguments& arguments) {
  const Value given = argument(arguments, 0, "width");
  const bool first_too = truth(argument(arguments, 1, "first"));
  const int64_t width = given ? std::clamp(integer_of(given, "the width is"), int64_t{0}, int64_t{64}) : 4;
  const std::string space(static_cast<size_t>(width), ' ');
  const bool blank_too = truth(argument(arguments, 2, "blank"));
  const std::string text = text_of(value);
  std::string result;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    if (begin == 0 ? first_too : blank_too || !line.empty()) append(result, space);
    append(result, line);
    if (end < text.size()) append(result, "\n");
    begin = end + 1;
  }
  return result;
}

using In = const Value&;
using With = const Arguments&;
using Filter = Value (*)(In, With);
constexpr auto kFilters = std::to_array<Named<Filter>>({
    {"capitalize", [](In value, With) { return capitalized(value); }},
    {"count", [](In value, With) -> Value { return length_of(value); }},
    {"d", with_default},
    {"default", with_default},
    {"dictsort", sorted_pairs},
    {"first", [](In value, With) { return item_of(Json(items_of(value)), 0); }},
    {"indent", indented},
    {"int", integer},
    {"items",
     [](In value, With) -> Value {
       return value && value->is_object() ? pairs(*value) : Json::array();
     }},
    {"join",
     [](In value, With given) -> Value {
       const Value attribute = argument(given, 1, "attribute");
       const Value items = attribute ? mapped_items(value, {{"attribute", attribute}}) : value;
       return joined(items, argument(given, 0, "d"));
     }},
    {"last", [](In value, With) { return item_of(Json(items_of(value)), -1); }},
    {"length", [](In value, With) -> Value { return length_of(value); }},
    {"list", [](In value, With) -> Value { return Json(items_of(value)); }},
    {"lower", [](In value, With) -> Value { return lower(value); }},
    {"map", mapped_items},
    {"max", [](In value, With given) { return smallest(value, given, true); }},
    {"min", [](In value, With given) { return smallest(value, given, false); }},
    {"reject", [](In value, With given) { return chosen(value, given, false, false); }},
    {"rejectattr", [](In value, With given) { return chosen(value, given, false, true); }},
    {"replace",
     [](In value, With given) -> Value {
       return replaced(text_of(value), text_of(argument(given, 0, "old")), text_of(argument(given, 1, "new")));
     }},
    {"reverse", [](In value, With) { return slice(value, Json(), Json(), -1); }},
    {"safe", [](In value, With) { return value; }},
    {"select", [](In value, With given) { return chosen(value, given, true, false); }},
    {"selectattr", [](In value, With given) { return chosen(value, given, true, true); }},
    {"sort", sorted},
    {"string", [](In value, With) -> Value { return text_of(value); }},
    {"tojson", to_json},
    {"trim",
     [](In value, With given) -> Value {
       return strip(text_of(value), argument(given, 0, "chars"), true, true);
     }},
    {"unique", unique},
    {"upper", [](In value, With) -> Value { return mapped(text_of(value), std::toupper); }},
});

bool compares(const char* sign, const Value& value, const Arguments& arguments) {
  return truth(apply_binary(sign, value, argument(arguments, 0, "")));
}

bool is_odd(const Value& value) { return integer_of(value, "neither odd nor even is") % 2 != 0; }
bool is_sequence(const Value& value) { return !value || value->is_structured() || value->is_string(); }

using Test = bool (*)(In, With);
constexpr auto kTests = std::to_array<Named<Test>>({
    {"boolean", [](In value, With) { return value && value->is_boolean(); }},
    {"defined", [](In value, With) { return value.has_value(); }},
    {"eq", [](In value, With given) { return compares("==", value, given); }},
    {"equalto", [](In value, With given) { return compares("==", value, given); }},
    {"even", [](In value, With) { return !is_odd(value); }},
    {"false", [](In value, With) { return value && *value == false; }},
    {"float", [](In value, With) { return value && value->is_number_float(); }},
    {"ge", [](In value, With given) { return compares(">=", value, given); }},
    {"gt", [](In value, With given) { return compares(">", value, given); }},
    {"in", [](In value, With given) { return compares("in", value, given); }},
    {"integer", [](In value, With) { return value && value->is_number_integer(); }},
    {"iterable", [](In value, With) { return is_sequence(value); }},
    {"le", [](In value, With given) { return compares("<=", value, given); }},
    {"lt", [](In value, With given) { return compares("<", value, given); }},
    {"mapping", [](In value, With) { return value && value->is_object(); }},
    {"ne", [](In value, With given) { return compares("!=", value, given); }},
    {"none", [](In value, With) { return value && value->is_null(); }},
    {"number", [](In value, With) { return value && (value->is_number() || value->is_boolean()); }},
    {"odd", [](In value, With) { return is_odd(value); }},
    {"sequence", [](In value, With) { return is_sequence(value); }},
    {"string", [](In value, With) { return value && value->is_string(); }},
    {"true", [](In value, With) { return value && *value == true; }},
    {"undefined", [](In value, With) { return !value; }},
});

using Method = Value (*)(const Json&, With);
constexpr auto kMappingMethods = std::to_array<Named<Method>>({
    {"get",
     [](const Json& mapping, With given) -> Value {
       const Value found = item_of(mapping, argument(given, 0, ""));
       const Value otherwise = argument(given, 1, "");
       return found ? found : otherwise ? otherwise : Json();
     }},
    {"items", [](const Json& mapping, With) -> Value { return pairs(mapping); }},
    {"keys", [](const Json& mapping, With) -> Value { return Json(items_of(mapping)); }},
    {"values",
     [](const Json& mapping, With) -> Value {
       Json values = Json::array();
       for (const Json& value : mapping) values.push_back(value);
       return values;
     }},
});

Value stripped(const Json& text, const Arguments& arguments, bool left, bool right) {
  return strip(text.get_ref<const std::string&>(), argument(arguments, 0, ""), left, right);
}

/// With an argument at the place of every "{}".
Value formatted(const std::string& text, const Arguments& arguments) {
  std::string result;
  size_t begin = 0;
  for (const Argument& each : arguments) {
    const size_t at = text.find("{}", begin);
    if (at == std::string::npos || !each.name.empty()) throw Error("format() is known here with one {} an argument");
    append(result, text.substr(begin, at - begin));
    append(result, text_of(each.value));
    begin = at + 2;
  }
  if (text.find_first_of("{}", begin) != std::string::npos)
    throw Error("format() is known here with one {} an argument");
  append(result, text.substr(begin));
  return result;
}

constexpr auto kTextMethods = std::to_array<Named<Method>>({
    {"capitalize", [](const Json& text, With) { return capitalized(text); }},
    {"endswith",
     [](const Json& text, With given) -> Value {
       return text.get_ref<const std::string&>().ends_with(string_of(argument(given, 0, ""), "no text ends with"));
     }},
    {"format", [](const Json& text, With given) { return formatted(text.get_ref<const std::string&>(), given); }},
    {"lower", [](const Json& text, With) -> Value { return lower(text); }},
    {"lstrip", [](const Json& text, With given) { return stripped(text, given, true, false); }},
    {"replace",
     [](const Json& text, With given) -> Value {
       return replaced(text.get_ref<const std::string&>(), string_of(argument(given, 0, ""), "cannot replace"),
                       string_of(argument(given, 1, ""), "cannot replace by"));
     }},
    {"rstrip", [](const Json& text, With given) { return stripped(text, given, false, true); }},
    {"split",
     [](const Json& text, With given) -> Value {
       return split(text.get_ref<const std::string&>(), argument(given, 0, "sep"));
     }},
    {"startswith",
     [](const Json& text, With given) -> Value {
       return text.get_ref<const std::string&>().starts_with(string_of(argument(given, 0, ""), "no text begins with"));
     }},
    {"strip", [](const Json& text, With given) { return stripped(text, given, true, true); }},
    {"upper", [](const Json& text, With) -> Value { return mapped(text_of(text), std::toupper); }},
});

}  // namespace

Value apply_filter(const std::string& name, const Value& value, const Arguments& arguments) {
  const Filter* filter = find_named(kFilters, name);
  if (filter == nullptr) throw Error("the filter " + in_quotes(name) + " is not known here");
  return (*filter)(value, arguments);
}

bool apply_test(const std::string& name, const Value& value, const Arguments& arguments) {
  const Test* test = find_named(kTests, name);
  if (test == nullptr) throw Error("the test " + in_quotes(name) + " is not known here");
  return (*test)(value, arguments);
}

Value call_method(const std::string& name, const Value& object, const Arguments& arguments) {
  const Method* method = nullptr;
  if (object && object->is_object()) method = find_named(kMappingMethods, name);
  if (object && object->is_string()) method = find_named(kTextMethods, name);
  if (method == nullptr) refuse("the method " + in_quotes(name) + " is not known here of", object);
  return (*method)(*object, arguments);
}

}  // namespace llama::jinja
