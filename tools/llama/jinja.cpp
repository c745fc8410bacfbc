#include "jinja.h"

#include <algorithm>
#include <array>
#include <ctime>
#include <iterator>
#include <map>
#include <span>
#include <utility>

#include "error.h"
#include "jinja_values.h"
#include "json_document.h"
#include "system.h"

namespace llama::jinja {
namespace {

constexpr size_t kMaxTemplateBytes = size_t{1} << 20;
constexpr size_t kParameterBytes = 256;  // of a macro, in a map
constexpr int64_t kMaxRange = 100'000;

/// An Error of the template that already names its line.
class LocatedError : public Error {
 public:
  using Error::Error;
};

[[noreturn]] Value raise_exception(const Arguments& arguments) {
  throw Error("the template refuses these messages: " +
              (arguments.given.empty() ? "" : text_of(arguments.given[0].value)));
}

/// Copies the object first if other values share it.
void set_item(Value& object, const std::string& key, Value value, Budget& budget) {
  budget.take(Budget::kStep + key.size() + place_bytes(object));
  Json item = copy_of(value, budget);
  value = {};  // may be a part of the object
  object.own(budget)[key] = std::move(item);
}

Value make_mapping(const Arguments& arguments) {
  Value object = Json::object();
  for (const Argument& each : arguments.given) set_item(object, each.name, each.value, arguments.budget);
  return object;
}

/// The time of day, as transformers gives it to templates.
Value strftime_now(const Arguments& arguments) {
  const std::span<const Argument> given = arguments.given;
  if (given.size() != 1 || !given[0].value || !given[0].value->is_string()) {
    throw Error("strftime_now() takes a format, such as '%d %b %Y'");
  }
  const std::time_t now = std::time(nullptr);
  const std::tm local = local_time(now);
  std::array<char, 256> text{};
  const size_t length =
      std::strftime(text.data(), text.size(), given[0].value->get_ref<const std::string&>().c_str(), &local);
  return std::string(text.data(), length);
}

Value range(const Arguments& arguments) {
  std::vector<int64_t> bounds;
  for (const Argument& each : arguments.given) {
    if (!each.value || !each.value->is_number_integer()) throw Error("a bound of range() is not an integer");
    bounds.push_back(each.value->get<int64_t>());
  }
  if (bounds.empty() || bounds.size() > 3) throw Error("range() takes one to three integers");
  if (bounds.size() == 1) bounds.insert(bounds.begin(), 0);
  const int64_t step = bounds.size() == 3 ? bounds[2] : 1;
  if (step == 0) throw Error("the step of range() is 0");
  Json items = Json::array();
  for (int64_t i = bounds[0]; step > 0 ? i < bounds[1] : i > bounds[1];) {
    if (std::cmp_equal(items.size(), kMaxRange)) throw Error("range() is too long");
    arguments.budget.take(Budget::kStep);
    items.push_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return items;
}

using Function = Value (*)(const Arguments&);
constexpr std::array<Named<Function>, 5> kFunctions = {{{"raise_exception", raise_exception},
                                                        {"namespace", make_mapping},
                                                        {"dict", make_mapping},
                                                        {"range", range},
                                                        {"strftime_now", strftime_now}}};

class Renderer {
 public:
  Renderer(const Json& variables, const std::string& source) : source_(source), budget_(bytes_in(variables)) {
    scopes_.emplace_back();
    for (const auto& [name, value] : variables.items()) scopes_.back()[name] = value;
  }

  std::string run(const std::vector<Statement>& statements) {
    std::string out;
    run_all(statements, out);
    return out;
  }

 private:
  /// What a part gives; errors get its line, of the innermost part.
  template <class Part>
  auto at(int32_t line, Part part) {
    try {
      const Nesting inner = budget_.nested();
      budget_.take(Budget::kStep);
      return part();
    } catch (const LocatedError&) {
      throw;
    } catch (const Error& error) {
      throw LocatedError(source_ + ": line " + std::to_string(line) + ": " + error.what());
    }
  }

  enum class Next { kStatement, kBreak, kContinue };

  Next run_all(const std::vector<Statement>& statements, std::string& out) {
    for (const Statement& statement : statements) {
      const Next next = at(statement.line, [&] { return run_one(statement, out); });
      if (next != Next::kStatement) return next;
    }
    return Next::kStatement;
  }

  Next run_one(const Statement& statement, std::string& out) {
    switch (statement.kind) {
      case Statement::Kind::kText:
        append(out, statement.text, budget_);
        break;
      case Statement::Kind::kPrint:
        append(out, text_of(evaluate(statement.expression)), budget_);
        break;
      case Statement::Kind::kSet:
        assign(statement.names, evaluate(statement.expression));
        break;
      case Statement::Kind::kSetBlock: {
        std::string text;
        run_all(statement.body, text);
        assign(statement.names, std::move(text));
        break;
      }
      case Statement::Kind::kIf:
        return run_all(truth(evaluate(statement.expression)) ? statement.body : statement.otherwise, out);
      case Statement::Kind::kFor:
        run_loop(statement, out);
        break;
      case Statement::Kind::kBreak:
        return Next::kBreak;
      case Statement::Kind::kContinue:
        return Next::kContinue;
      case Statement::Kind::kMacro:
        macros_[statement.names[0]] = &statement;
        break;
      case Statement::Kind::kBlock:
        return run_all(statement.body, out);
    }
    return Next::kStatement;
  }

  void assign(const std::vector<std::string>& names, Value value) {
    if (names.size() == 1) {
      scopes_.back()[names[0]] = std::move(value);
      return;
    }
    Value* object = find(names[0]);
    if (object == nullptr || !*object || !(*object)->is_object()) {
      throw Error("cannot set " + in_quotes(names[1]) + " of " + in_quotes(names[0]) + ", which is no namespace");
    }
    set_item(*object, names[1], std::move(value), budget_);
  }

  Value* find(const std::string& name) {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      if (const auto found = scope->find(name); found != scope->end()) return &found->second;
    }
    return nullptr;
  }

  void unpack(const std::vector<std::string>& names, const Value& item) {
    if (names.size() == 1) {
      scopes_.back()[names[0]] = item;
      return;
    }
    if (!item->is_array() || item->size() != names.size()) {
      throw Error("an item of the loop is not a list of " + std::to_string(names.size()));
    }
    for (size_t i = 0; i < names.size(); ++i) scopes_.back()[names[i]] = Value(item, (*item)[i]);
  }

  void run_loop(const Statement& loop, std::string& out) {
    std::vector<Value> items = items_of(evaluate(loop.expression), budget_);
    scopes_.emplace_back();
    if (!loop.condition.empty()) {
      std::erase_if(items, [&](const Value& item) {
        unpack(loop.names, item);
        return !truth(evaluate(loop.condition.front()));
      });
    }
    for (size_t i = 0; i < items.size(); ++i) {
      scopes_.back().clear();
      scopes_.back()["loop"] = loop_variables(items, i);
      unpack(loop.names, items[i]);
      if (run_all(loop.body, out) == Next::kBreak) break;
    }
    scopes_.pop_back();
    if (items.empty()) run_all(loop.otherwise, out);
  }

  Json loop_variables(const std::vector<Value>& items, size_t i) {
    const size_t n = items.size();
    Json loop = {{"index", i + 1},         {"index0", i}, {"first", i == 0}, {"last", i + 1 == n}, {"revindex", n - i},
                 {"revindex0", n - i - 1}, {"length", n}};
    budget_.take(bytes_in(loop));
    if (i > 0) loop["previtem"] = copy_of(items[i - 1], budget_);
    if (i + 1 < n) loop["nextitem"] = copy_of(items[i + 1], budget_);
    return loop;
  }

  Value evaluate(const Expression& expression) {
    return at(expression.line, [&] { return value_of(expression); });
  }

  Value value_of(const Expression& expression) {
    const std::vector<Expression>& operands = expression.operands;
    switch (expression.kind) {
      case Expression::Kind::kLiteral:
        budget_.take(bytes_in(expression.value));
        return expression.value;
      case Expression::Kind::kName: {
        const Value* found = find(expression.text);
        return found != nullptr ? *found : Value();
      }
      case Expression::Kind::kList:
        return list(operands);
      case Expression::Kind::kDict:
        return dict(operands);
      case Expression::Kind::kAttribute:
        return item(operands[0], Json(expression.text));
      case Expression::Kind::kItem:
        return item(operands[0], evaluate(operands[1]));
      case Expression::Kind::kSlice:
        return slice(evaluate(operands[0]), evaluate(operands[1]), evaluate(operands[2]), evaluate(operands[3]),
                     budget_);
      case Expression::Kind::kCall:
        return call(expression);
      case Expression::Kind::kFilter:
        return apply_filter(expression.text, evaluate(operands[0]), {arguments(expression), budget_});
      case Expression::Kind::kTest:
        if (names_function(operands[0]) && (expression.text == "defined" || expression.text == "undefined")) {
          return expression.text == "defined";
        }
        return apply_test(expression.text, evaluate(operands[0]), {arguments(expression), budget_});
      case Expression::Kind::kNot:
        return !truth(evaluate(operands[0]));
      case Expression::Kind::kNegative:
        return apply_binary("-", 0, evaluate(operands[0]), budget_);
      case Expression::Kind::kBinary:
        return binary(expression);
      case Expression::Kind::kConditional:
        if (truth(evaluate(operands[1]))) return evaluate(operands[0]);
        return operands.size() > 2 ? evaluate(operands[2]) : Value();
    }
    return std::nullopt;
  }

  Value list(const std::vector<Expression>& operands) {
    Json items = Json::array();
    for (const Expression& each : operands) items.push_back(copy_of(evaluate(each), budget_));
    return items;
  }

  Value dict(const std::vector<Expression>& operands) {
    Value mapping = Json::object();
    for (size_t i = 0; i < operands.size(); i += 2) {
      const std::string key = text_of(evaluate(operands[i]));
      set_item(mapping, key, evaluate(operands[i + 1]), budget_);
    }
    return mapping;
  }

  Value item(const Expression& object, const Value& key) {
    const Value value = evaluate(object);
    if (!value && object.kind == Expression::Kind::kName) throw Error(in_quotes(object.text) + " is undefined");
    return item_of(value, key, budget_);
  }

  Value binary(const Expression& expression) {
    Value left = evaluate(expression.operands[0]);
    if (expression.text == "and") return truth(left) ? evaluate(expression.operands[1]) : left;
    if (expression.text == "or") return truth(left) ? left : evaluate(expression.operands[1]);
    return apply_binary(expression.text, left, evaluate(expression.operands[1]), budget_);
  }

  std::vector<Argument> arguments(const Expression& expression) {
    std::vector<Argument> all;
    for (size_t i = 1; i < expression.operands.size(); ++i) {
      all.push_back({expression.names[i], evaluate(expression.operands[i])});
    }
    return all;
  }

  Value call(const Expression& expression) {
    const Expression& callee = expression.operands[0];
    const std::vector<Argument> given = arguments(expression);
    if (callee.kind == Expression::Kind::kAttribute) {
      return call_method(callee.text, evaluate(callee.operands[0]), {given, budget_});
    }
    const std::string name = callee.kind == Expression::Kind::kName ? callee.text : std::string();
    if (const auto macro = macros_.find(name); macro != macros_.end()) return expand(*macro->second, given);
    if (const Function* function = find_named(kFunctions, name)) return (*function)({given, budget_});
    throw Error("the function " + in_quotes(name) + " is not known here");
  }

  bool names_function(const Expression& expression) {
    return expression.kind == Expression::Kind::kName && find(expression.text) == nullptr &&
           (macros_.contains(expression.text) || find_named(kFunctions, expression.text) != nullptr);
  }

  /// What a macro prints, which sees its arguments and what is set outside of all blocks.
  Value expand(const Statement& macro, const std::vector<Argument>& given) {
    std::map<std::string, Value> arguments = arguments_of(macro, given);
    std::vector<std::map<std::string, Value>> outer(std::make_move_iterator(scopes_.begin() + 1),
                                                    std::make_move_iterator(scopes_.end()));
    scopes_.resize(1);
    scopes_.push_back(std::move(arguments));
    std::string text;
    run_all(macro.body, text);
    scopes_.resize(1);
    std::ranges::move(outer, std::back_inserter(scopes_));
    return text;
  }

  std::map<std::string, Value> arguments_of(const Statement& macro, const std::vector<Argument>& given) {
    const std::span<const std::string> names = std::span(macro.names).subspan(1);
    const std::vector<Expression>& defaults = macro.expression.operands;
    std::map<std::string, Value> arguments;
    for (size_t i = 0; i < given.size(); ++i) {
      const std::string name = !given[i].name.empty() ? given[i].name : i < names.size() ? names[i] : std::string();
      if (std::ranges::find(names, name) == names.end()) {
        throw Error("the macro " + in_quotes(macro.names[0]) + " takes no argument " +
                    (name.empty() ? std::to_string(i + 1) : in_quotes(name)));
      }
      budget_.take(Budget::kStep * (1 + names.size() / 8));  // which are compared one by one
      arguments[name] = given[i].value;
    }
    for (size_t i = 0; i < names.size(); ++i) {
      budget_.take(kParameterBytes);
      if (arguments.contains(names[i])) continue;
      const size_t without = names.size() - defaults.size();
      arguments[names[i]] = i < without ? Value() : evaluate(defaults[i - without]);
    }
    return arguments;
  }

  const std::string& source_;
  std::vector<std::map<std::string, Value>> scopes_;  // the innermost last
  std::map<std::string, const Statement*> macros_;
  Budget budget_;
};

}  // namespace

Template::Template(std::string_view text, std::string source) : source_(std::move(source)) {
  if (text.size() > kMaxTemplateBytes) throw Error(source_ + ": the template is longer than 1 MiB");
  statements_ = parse(text, source_);
}

std::string Template::render(const Json& variables) const { return Renderer(variables, source_).run(statements_); }

}  // namespace llama::jinja
