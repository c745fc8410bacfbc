#pragma once

#include <algorithm>
#include <optional>

#include "jinja.h"

namespace llama::jinja {

/// Nothing: undefined.
using Value = std::optional<Json>;

/// A part of a table of what templates may call.
template <class Function>
struct Named {
  std::string_view name;
  Function function;
};

/// The function of that name; nullptr if there is none.
template <class Table>
const auto* find_named(const Table& table, std::string_view name) {
  const auto found = std::ranges::find(table, name, [](const auto& each) { return each.name; });
  return found != table.end() ? &found->function : nullptr;
}

/// Arguments of a filter, a test, a method or a function: names are empty for those given by place.
struct Argument {
  std::string name;
  Value value;
};

std::string type_name(const Value& value);
/// Throws Error: "<what> <type of the value>".
[[noreturn]] void refuse(const std::string& what, const Value& value);
/// A text or an integer; otherwise refuse().
const std::string& string_of(const Value& value, const std::string& what);
int64_t integer_of(const Value& value, const std::string& what);

/// Text that a template makes of other text cannot become arbitrarily long.
void append(std::string& text, std::string_view more);
std::string replaced(const std::string& text, const std::string& from, const std::string& to);
bool is_equal(const Value& left, const Value& right);
bool is_in(const Value& item, const Value& container);
/// What Python takes for true.
bool truth(const Value& value);
/// As it is printed. Throws Error for lists and mappings, which are printed by `tojson` alone.
std::string text_of(const Value& value);
/// As Python's json.dumps() writes it, without escapes of what is not ASCII; `indent` below 0: on one line.
std::string json_text(const Json& value, int64_t indent);
/// Characters of a text, items of others. Throws Error where there is no such number.
int64_t length_of(const Value& value);
/// What a loop over a value sees.
std::vector<Json> items_of(const Value& value);
Value slice(const Value& value, const Value& begin, const Value& end, const Value& step);
/// An item by number or key; undefined if there is none.
Value item_of(const Value& value, const Value& key);

/// All but `and` and `or`.
Value apply_binary(const std::string& sign, const Value& left, const Value& right);

// Tables of filters, tests and methods: jinja_calls.cpp.
Value apply_filter(const std::string& name, const Value& value, const std::vector<Argument>& arguments);
bool apply_test(const std::string& name, const Value& value, const std::vector<Argument>& arguments);
/// A method of a text or a mapping.
Value call_method(const std::string& name, const Value& object, const std::vector<Argument>& arguments);

}  // namespace llama::jinja
