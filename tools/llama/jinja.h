#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace llama::jinja {

using Json = nlohmann::ordered_json;

inline constexpr std::string_view kSpace = " \t\r\n\f\v";

/// Counts how deep the work is nested in `depth` while it lives.
class Nesting {
 public:
  explicit Nesting(int32_t& depth) : depth_(++depth) {}
  ~Nesting() { --depth_; }
  Nesting(const Nesting&) = delete;
  Nesting& operator=(const Nesting&) = delete;

 private:
  int32_t& depth_;
};

/// A part of an expression.
struct Expression {
  enum class Kind {
    kLiteral,    // value
    kName,       // text
    kList,       // operands
    kDict,       // operands: key, value, key, value…
    kAttribute,  // operands[0].text
    kItem,       // operands[0][operands[1]]
    kSlice,      // operands[0][operands[1]:operands[2]:operands[3]]; literals of null where left out
    kCall,       // operands[0](the others), names of keyword arguments in `names`
    kFilter,     // operands[0] | text(the others)
    kTest,       // operands[0] is text(the others)
    kNot,
    kNegative,
    kBinary,      // operands[0] text operands[1]
    kConditional  // operands[0] if operands[1] else operands[2], which may be missing
  };
  Kind kind = Kind::kLiteral;
  int32_t line = 0;
  std::string text = {};
  Json value = {};
  std::vector<Expression> operands = {};
  std::vector<std::string> names = {};  // of the operands after the first; empty: by place
};

/// A part of a template.
struct Statement {
  enum class Kind {
    kText,      // text
    kPrint,     // expression
    kSet,       // names, of which the second may be an attribute's, = expression
    kSetBlock,  // names = what the body prints
    kIf,        // expression: body, otherwise
    kFor,       // names in expression, if condition: body; otherwise where there is nothing
    kBreak,
    kContinue,
    kMacro,  // names[0](the others, of which the last have the expression's operands as defaults): body
    kBlock   // body
  };
  Kind kind = Kind::kText;
  int32_t line = 0;
  std::string text = {};
  std::vector<std::string> names = {};
  Expression expression = {};
  std::vector<Expression> condition = {};  // one or none
  std::vector<Statement> body = {};
  std::vector<Statement> otherwise = {};
};

/// Parse a template with `trim_blocks` and `lstrip_blocks`. Errors name `source` and the line.
std::vector<Statement> parse(std::string_view text, const std::string& source);

/// Throws Error: "<source>: line <line>: <what>".
[[noreturn]] void fail(const std::string& source, int32_t line, const std::string& what);

/// A template in the part of Jinja that chat templates are written in: for, if, set, macro, namespace(), filters,
/// tests, slices; with `trim_blocks` and `lstrip_blocks`, as transformers sets them. Templates come with downloaded
/// weights: what one may compute, print and nest is limited, and errors name the line.
class Template {
 public:
  /// \param source  for messages.
  Template(std::string_view text, std::string source);

  /// \param variables  a mapping of the names that the template may read.
  std::string render(const Json& variables) const;

 private:
  std::string source_;
  std::vector<Statement> statements_;
};

}  // namespace llama::jinja
