#pragma once

#include <algorithm>
#include <concepts>
#include <memory>
#include <optional>
#include <span>

#include "jinja.h"
#include "jinja_budget.h"

namespace llama::jinja {

/// A value of a template, or undefined. Copies and parts share its memory.
class Value {
 public:
  Value() = default;
  Value(std::nullopt_t /*undefined*/) {}
  template <class T>
  requires(!std::same_as<std::remove_cvref_t<T>, Value> && std::constructible_from<Json, T>) Value(T&& value)
      : json_(std::make_shared<Json>(std::forward<T>(value))) {}
  /// `part` is inside `whole`.
  Value(const Value& whole, const Json& part) : json_(whole.json_, const_cast<Json*>(&part)) {}

  explicit operator bool() const { return json_ != nullptr; }
  const Json& operator*() const { return *json_; }
  const Json* operator->() const { return json_.get(); }

  /// For changes, which only this value sees.
  Json& own(Budget& budget);

 private:
  std::shared_ptr<Json> json_;
};

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

/// Names are empty for arguments given by place.
struct Argument {
  std::string name;
  Value value;
};

/// Arguments of a filter, a test, a method or a function, and the budget of what it makes.
struct Arguments {
  std::span<const Argument> given;
  Budget& budget;
};

std::string type_name(const Value& value);
/// Throws Error: "<what> <type of the value>".
[[noreturn]] void refuse(const std::string& what, const Value& value);
/// A text or an integer; otherwise refuse().
const std::string& string_of(const Value& value, const std::string& what);
int64_t integer_of(const Value& value, const std::string& what);

/// What copying or comparing it costs. Throws Error for values that are nested too deeply.
size_t bytes_in(const Json& value);
/// What reading a text costs; nothing for other values.
size_t text_bytes(const Value& value);
/// What going through the places of a list or the keys of a mapping costs, which are compared one by one.
size_t place_bytes(const Value& value);
/// For a list or a mapping that is made; null for undefined.
Json copy_of(const Value& value, Budget& budget);
Json copy_of(std::span<const Value> items, Budget& budget);

void append(std::string& text, std::string_view more, Budget& budget);
std::string replaced(const std::string& text, const std::string& from, const std::string& to, Budget& budget);
bool is_equal(const Value& left, const Value& right, Budget& budget);
bool is_in(const Value& item, const Value& container, Budget& budget);
/// What Python takes for true.
bool truth(const Value& value);
/// As it is printed. Throws Error for lists and mappings, which are printed by `tojson` alone.
std::string text_of(const Value& value);
/// As Python's json.dumps() writes it, without escapes of what is not ASCII; `indent` below 0: on one line.
std::string json_text(const Json& value, int64_t indent, Budget& budget);
/// Characters of a text, items of others. Throws Error where there is no such number.
int64_t length_of(const Value& value);
/// What a loop over a value sees.
std::vector<Value> items_of(const Value& value, Budget& budget);
Value slice(const Value& value, const Value& begin, const Value& end, const Value& step, Budget& budget);
/// An item by number or key; undefined if there is none.
Value item_of(const Value& value, const Value& key, Budget& budget);

/// All but `and` and `or`.
Value apply_binary(const std::string& sign, const Value& left, const Value& right, Budget& budget);

// Tables of filters, tests and methods: jinja_calls.cpp.
Value apply_filter(const std::string& name, const Value& value, const Arguments& arguments);
bool apply_test(const std::string& name, const Value& value, const Arguments& arguments);
/// A method of a text or a mapping.
Value call_method(const std::string& name, const Value& object, const Arguments& arguments);

}  // namespace llama::jinja
