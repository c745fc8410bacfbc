#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <set>

#include "error.h"
#include "jinja_text.h"
#include "jinja_values.h"
#include "json_document.h"

namespace llama::jinja {
namespace {

Value argument(const Arguments& arguments, size_t place, std::string_view name) {
  const std::span<const Argument> given = arguments.given;
  for (const Argument& each : given) {
    if (!each.name.empty() && each.name == name) return each.value;
  }
  return place < given.size() && given[place].name.empty() ? given[place].value : Value();
}

Json pairs(const Value& mapping, Budget& budget) {
  Json all = Json::array();
  for (const auto& [key, value] : mapping->items()) {
    budget.take(2 * Budget::kStep + key.size());
    all.push_back(Json::array({key, copy_of(Value(mapping, value), budget)}));
  }
  return all;
}

std::string joined(const Value& value, const Value& separator, Budget& budget) {
  const std::string between = separator ? text_of(separator) : std::string();
  std::string text;
  const std::vector<Value> items = items_of(value, budget);
  for (const Value& item : items) {
    if (&item != items.data()) append(text, between, budget);
    append(text, text_of(item), budget);
  }
  return text;
}

/// "a.b" and "a.0" are items of items.
Value attribute_of(Value value, const Value& path, Budget& budget) {
  if (path && path->is_number_integer()) return item_of(value, path, budget);
  std::string_view rest = string_of(path, "no attribute is");
  while (value && !rest.empty()) {
    const std::string key(rest.substr(0, rest.find('.')));
    budget.take(Budget::kStep + key.size());
    rest.remove_prefix(std::min(key.size() + 1, rest.size()));
    const bool is_index = !key.empty() && key.find_first_not_of("0123456789") == std::string::npos;
    value = item_of(value, is_index ? Value(int64_t{std::strtoll(key.c_str(), nullptr, 10)}) : Value(key), budget);
  }
  return value;
}

Arguments without_first(const Arguments& arguments, size_t n) {
  return {arguments.given.subspan(std::min(n, arguments.given.size())), arguments.budget};
}

/// The items that a test holds for, or does not: of them or of an attribute; without a test, those that count as true.
Value chosen(const Value& value, const Arguments& arguments, bool wanted, bool by_attribute) {
  const size_t place = by_attribute ? 1 : 0;
  const Value test = argument(arguments, place, "");
  std::vector<Value> result;
  if (!truth(value)) return Json::array();  // as Jinja does
  for (const Value& item : items_of(value, arguments.budget)) {
    const Value subject = by_attribute ? attribute_of(item, argument(arguments, 0, ""), arguments.budget) : item;
    const bool holds =
        test ? apply_test(string_of(test, "no test is"), subject, without_first(arguments, place + 1)) : truth(subject);
    if (holds == wanted) result.push_back(item);
  }
  return copy_of(result, arguments.budget);
}

/// An attribute of every item, or what a filter makes of it.
Value mapped_items(const Value& value, const Arguments& arguments) {
  const Value attribute = argument(arguments, SIZE_MAX, "attribute");
  const Value otherwise = argument(arguments, SIZE_MAX, "default");
  Json result = Json::array();
  if (!truth(value)) return result;  // as Jinja does
  for (const Value& item : items_of(value, arguments.budget)) {
    Value made = attribute ? attribute_of(item, attribute, arguments.budget)
                           : apply_filter(string_of(argument(arguments, 0, ""), "no filter is"), item,
                                          without_first(arguments, 1));
    if (attribute && !made) made = otherwise;
    result.push_back(copy_of(made, arguments.budget));
  }
  return result;
}

struct KeyedItem {
  Value key;
  Value item;
};

/// Items with what they are sorted by: texts without regard to capitals, unless they are to be told apart.
std::vector<KeyedItem> with_keys(const std::vector<Value>& items, const Value& attribute, bool case_sensitive,
                                 Budget& budget) {
  std::vector<KeyedItem> all;
  for (const Value& item : items) {
    Value key = attribute ? attribute_of(item, attribute, budget) : item;
    if (key) budget.take(bytes_in(*key) * static_cast<size_t>(std::bit_width(items.size())));  // to compare it
    if (key && key->is_string() && !case_sensitive) key = lower(text_of(key));
    all.push_back({std::move(key), item});
  }
  return all;
}

std::vector<Value> sorted_items(const std::vector<Value>& items, const Value& attribute, bool case_sensitive,
                                Budget& budget) {
  std::vector<KeyedItem> keyed = with_keys(items, attribute, case_sensitive, budget);
  std::ranges::stable_sort(keyed, [&budget](const KeyedItem& left, const KeyedItem& right) {
    return truth(apply_binary("<", left.key, right.key, budget));
  });
  std::vector<Value> sorted;
  for (KeyedItem& each : keyed) sorted.push_back(std::move(each.item));
  return sorted;
}

Value sorted(const Value& value, const Arguments& arguments) {
  std::vector<Value> items = items_of(value, arguments.budget);
  const bool descending = truth(argument(arguments, 0, "reverse"));
  if (descending) std::ranges::reverse(items);  // so that equals stay in order
  items = sorted_items(items, argument(arguments, 2, "attribute"), truth(argument(arguments, 1, "case_sensitive")),
                       arguments.budget);
  if (descending) std::ranges::reverse(items);
  return copy_of(items, arguments.budget);
}

Value sorted_pairs(const Value& value, const Arguments& arguments) {
  if (!value || !value->is_object()) refuse("cannot sort the keys of", value);
  const Value by = argument(arguments, 1, "by");
  const int place = by && *by == "value" ? 1 : 0;
  const std::vector<Value> all = items_of(pairs(value, arguments.budget), arguments.budget);
  const bool case_sensitive = truth(argument(arguments, 0, "case_sensitive"));
  return copy_of(sorted_items(all, place, case_sensitive, arguments.budget), arguments.budget);
}

Value unique(const Value& value, const Arguments& arguments) {
  const auto precedes = [](const Value& left, const Value& right) {  // an undefined one all others
    return left && right ? *left < *right : !left && right;
  };
  std::vector<Value> result;
  std::set<Value, decltype(precedes)> keys(precedes);
  for (KeyedItem& each : with_keys(items_of(value, arguments.budget), argument(arguments, 1, "attribute"),
                                   truth(argument(arguments, 0, "case_sensitive")), arguments.budget)) {
    if (keys.insert(std::move(each.key)).second) result.push_back(std::move(each.item));
  }
  return copy_of(result, arguments.budget);
}

Value smallest(const Value& value, const Arguments& arguments, bool largest) {
  const std::vector<Value> items = sorted_items(items_of(value, arguments.budget), argument(arguments, 1, "attribute"),
                                                truth(argument(arguments, 0, "case_sensitive")), arguments.budget);
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
  const int64_t width = given ? std::clamp(integer_of(indent, "the indent is"), int64_t{0}, int64_t{16}) : -1;
  return json_text(*value, width, arguments.budget);
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
    if (begin == 0 ? first_too : blank_too || !line.empty()) append(result, space, arguments.budget);
    append(result, line, arguments.budget);
    if (end < text.size()) append(result, "\n", arguments.budget);
    begin = end + 1;
  }
  return result;
}

Value end_item(const Value& value, bool last, Budget& budget) {
  const std::vector<Value> items = items_of(value, budget);
  if (items.empty()) return std::nullopt;
  return last ? items.back() : items.front();
}

using In = const Value&;
using With = const Arguments&;
using Filter = Value (*)(In, With);
constexpr auto kFilters = std::to_array<Named<Filter>>({
    {"capitalize", [](In value, With) -> Value { return capitalized(text_of(value)); }},
    {"count", [](In value, With) -> Value { return length_of(value); }},
    {"d", with_default},
    {"default", with_default},
    {"dictsort", sorted_pairs},
    {"first", [](In value, With given) { return end_item(value, false, given.budget); }},
    {"indent", indented},
    {"int", integer},
    {"items",
     [](In value, With given) -> Value {
       return value && value->is_object() ? pairs(value, given.budget) : Json::array();
     }},
    {"join",
     [](In value, With given) -> Value {
       const Value attribute = argument(given, 1, "attribute");
       const std::array<Argument, 1> by_attribute{{{"attribute", attribute}}};
       const Value items = attribute ? mapped_items(value, {by_attribute, given.budget}) : value;
       return joined(items, argument(given, 0, "d"), given.budget);
     }},
    {"last", [](In value, With given) { return end_item(value, true, given.budget); }},
    {"length", [](In value, With) -> Value { return length_of(value); }},
    {"list", [](In value, With given) -> Value { return copy_of(items_of(value, given.budget), given.budget); }},
    {"lower", [](In value, With) -> Value { return lower(text_of(value)); }},
    {"map", mapped_items},
    {"max", [](In value, With given) { return smallest(value, given, true); }},
    {"min", [](In value, With given) { return smallest(value, given, false); }},
    {"reject", [](In value, With given) { return chosen(value, given, false, false); }},
    {"rejectattr", [](In value, With given) { return chosen(value, given, false, true); }},
    {"replace",
     [](In value, With given) -> Value {
       return replaced(text_of(value), text_of(argument(given, 0, "old")), text_of(argument(given, 1, "new")),
                       given.budget);
     }},
    {"reverse", [](In value, With given) { return slice(value, {}, {}, -1, given.budget); }},
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
    {"upper", [](In value, With) -> Value { return upper(text_of(value)); }},
});

bool compares(const char* sign, const Value& value, const Arguments& arguments) {
  return truth(apply_binary(sign, value, argument(arguments, 0, ""), arguments.budget));
}

bool is_odd(const Value& value) { return integer_of(value, "neither odd nor even is") % 2 != 0; }
bool is_sequence(const Value& value) { return !value || value->is_structured() || value->is_string(); }

using Test = bool (*)(In, With);
constexpr auto kTests = std::to_array<Named<Test>>({
    {"boolean", [](In value, With) { return value && value->is_boolean(); }},
    {"defined", [](In value, With) { return static_cast<bool>(value); }},
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

using Method = Value (*)(In, With);
constexpr auto kMappingMethods = std::to_array<Named<Method>>({
    {"get",
     [](In mapping, With given) -> Value {
       const Value found = item_of(mapping, argument(given, 0, ""), given.budget);
       const Value otherwise = argument(given, 1, "");
       return found ? found : otherwise ? otherwise : Json();
     }},
    {"items", [](In mapping, With given) -> Value { return pairs(mapping, given.budget); }},
    {"keys", [](In mapping, With given) -> Value { return copy_of(items_of(mapping, given.budget), given.budget); }},
    {"values",
     [](In mapping, With given) -> Value {
       Json values = Json::array();
       for (const Json& value : *mapping) values.push_back(copy_of(Value(mapping, value), given.budget));
       return values;
     }},
});

const std::string& text_in(In text) { return text->get_ref<const std::string&>(); }

Value stripped(In text, With arguments, bool left, bool right) {
  return strip(text_in(text), argument(arguments, 0, ""), left, right);
}

/// With an argument at the place of every "{}".
Value formatted(const std::string& text, const Arguments& arguments) {
  std::string result;
  size_t begin = 0;
  for (const Argument& each : arguments.given) {
    const size_t at = text.find("{}", begin);
    if (at == std::string::npos || !each.name.empty()) throw Error("format() is known here with one {} an argument");
    append(result, std::string_view(text).substr(begin, at - begin), arguments.budget);
    append(result, text_of(each.value), arguments.budget);
    begin = at + 2;
  }
  if (text.find_first_of("{}", begin) != std::string::npos)
    throw Error("format() is known here with one {} an argument");
  append(result, std::string_view(text).substr(begin), arguments.budget);
  return result;
}

constexpr auto kTextMethods = std::to_array<Named<Method>>({
    {"capitalize", [](In text, With) -> Value { return capitalized(text_of(text)); }},
    {"endswith",
     [](In text, With given) -> Value {
       return text_in(text).ends_with(string_of(argument(given, 0, ""), "no text ends with"));
     }},
    {"format", [](In text, With given) { return formatted(text_in(text), given); }},
    {"lower", [](In text, With) -> Value { return lower(text_of(text)); }},
    {"lstrip", [](In text, With given) { return stripped(text, given, true, false); }},
    {"replace",
     [](In text, With given) -> Value {
       const Value from = argument(given, 0, "");
       const Value to = argument(given, 1, "");
       return replaced(text_in(text), string_of(from, "cannot replace"), string_of(to, "cannot replace by"),
                       given.budget);
     }},
    {"rstrip", [](In text, With given) { return stripped(text, given, false, true); }},
    {"split",
     [](In text, With given) -> Value { return split(text_in(text), argument(given, 0, "sep"), given.budget); }},
    {"startswith",
     [](In text, With given) -> Value {
       return text_in(text).starts_with(string_of(argument(given, 0, ""), "no text begins with"));
     }},
    {"strip", [](In text, With given) { return stripped(text, given, true, true); }},
    {"upper", [](In text, With) -> Value { return upper(text_of(text)); }},
});

/// What reading texts among a value and its arguments takes; items are paid for where they are read.
void take_given(In value, With arguments) {
  arguments.budget.take(Budget::kStep * (1 + arguments.given.size()) + text_bytes(value));
  for (const Argument& each : arguments.given) arguments.budget.take(text_bytes(each.value));
}

}  // namespace

Value apply_filter(const std::string& name, const Value& value, const Arguments& arguments) {
  const Filter* filter = find_named(kFilters, name);
  if (filter == nullptr) throw Error("the filter " + in_quotes(name) + " is not known here");
  const Nesting inner = arguments.budget.nested();
  take_given(value, arguments);
  return (*filter)(value, arguments);
}

bool apply_test(const std::string& name, const Value& value, const Arguments& arguments) {
  const Test* test = find_named(kTests, name);
  if (test == nullptr) throw Error("the test " + in_quotes(name) + " is not known here");
  take_given(value, arguments);
  return (*test)(value, arguments);
}

Value call_method(const std::string& name, const Value& object, const Arguments& arguments) {
  const Method* method = nullptr;
  if (object && object->is_object()) method = find_named(kMappingMethods, name);
  if (object && object->is_string()) method = find_named(kTextMethods, name);
  if (method == nullptr) refuse("the method " + in_quotes(name) + " is not known here of", object);
  take_given(object, arguments);
  return (*method)(object, arguments);
}

}  // namespace llama::jinja
