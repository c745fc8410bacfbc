#include "jinja.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <utility>

#include "error.h"
#include "json_document.h"

namespace llama::jinja {
namespace {

constexpr int32_t kMaxDepth = 64;

struct Token {
  enum class Kind { kName, kString, kNumber, kSign, kEnd };
  Kind kind = Kind::kEnd;
  std::string text = {};
  int32_t line = 0;
};

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// What is between the braces of a tag, in tokens.
class Lexer {
 public:
  Lexer(std::string_view text, int32_t line, const std::string& source) : text_(text), line_(line), source_(source) {}

  std::vector<Token> tokens() {
    std::vector<Token> all;
    do {
      all.push_back(next());
    } while (all.back().kind != Token::Kind::kEnd);
    return all;
  }

 private:
  Token next() {
    while (at_ < text_.size() && kSpace.find(text_[at_]) != std::string_view::npos) line_ += text_[at_++] == '\n';
    if (at_ == text_.size()) return {Token::Kind::kEnd, "the end of the tag", line_};
    const char c = text_[at_];
    if (c == '\'' || c == '"') return string(c);
    if (is_letter(c))
      return {Token::Kind::kName, take([](char each) { return is_letter(each) || is_digit(each); }), line_};
    if (is_digit(c)) return number();
    for (const std::string_view sign : {"==", "!=", "<=", ">=", "//", "**"}) {
      if (text_.substr(at_, 2) == sign) return this->sign(2);
    }
    if (std::string_view("()[]{}.,:|~+-*/%=<>").find(c) == std::string_view::npos) {
      fail(source_, line_, "unexpected " + in_quotes(text_.substr(at_, 1)));
    }
    return sign(1);
  }

  template <class Is>
  std::string take(Is is) {
    const size_t begin = at_;
    while (at_ < text_.size() && is(text_[at_])) ++at_;
    return std::string(text_.substr(begin, at_ - begin));
  }

  Token sign(size_t length) {
    at_ += length;
    return {Token::Kind::kSign, std::string(text_.substr(at_ - length, length)), line_};
  }

  Token number() {
    std::string digits = take(is_digit);
    if (at_ + 1 < text_.size() && text_[at_] == '.' && is_digit(text_[at_ + 1])) {
      ++at_;
      digits += "." + take(is_digit);
    }
    return {Token::Kind::kNumber, digits, line_};
  }

  Token string(char quote) {
    Token token{Token::Kind::kString, {}, line_};
    for (++at_; at_ < text_.size() && text_[at_] != quote; ++at_) {
      line_ += text_[at_] == '\n';
      if (text_[at_] != '\\') {
        token.text += text_[at_];
        continue;
      }
      if (++at_ == text_.size()) break;
      constexpr std::string_view kEscapes = "nrt\\'\"";
      const size_t escape = kEscapes.find(text_[at_]);
      if (escape == std::string_view::npos) {
        fail(source_, line_, "the escape " + in_quotes(text_.substr(at_ - 1, 2)) + " in a string is not known here");
      }
      token.text += std::string_view("\n\r\t\\'\"")[escape];
    }
    if (at_ == text_.size()) fail(source_, token.line, "a string does not end");
    ++at_;
    return token;
  }

  std::string_view text_;
  size_t at_ = 0;
  int32_t line_;
  const std::string& source_;
};

struct Piece {
  enum class Kind { kText, kPrint, kStatement };
  Kind kind = Kind::kText;
  std::string text = {};
  int32_t line = 0;
};

/// Cuts a template at its tags and takes away the white space that they ask to.
class Cutter {
 public:
  Cutter(std::string_view text, const std::string& source) : text_(text), source_(source) {
    if (text_.ends_with('\n')) text_.remove_suffix(1);
  }

  std::vector<Piece> pieces() {
    while (at_ < text_.size()) {
      const size_t tag = next_tag();
      add_text(tag);
      if (tag < text_.size()) add_tag();
    }
    return std::move(pieces_);
  }

 private:
  size_t next_tag() const {
    for (size_t i = at_; i + 1 < text_.size(); ++i) {
      if (text_[i] == '{' && std::string_view("{%#").find(text_[i + 1]) != std::string_view::npos) return i;
    }
    return text_.size();
  }

  void advance(size_t to) {
    line_ += static_cast<int32_t>(
        std::count(text_.begin() + static_cast<ptrdiff_t>(at_), text_.begin() + static_cast<ptrdiff_t>(to), '\n'));
    at_ = to;
  }

  void add_text(size_t tag) {
    std::string_view text = text_.substr(at_, tag - at_);
    const int32_t line = line_;
    const size_t begin = at_;
    advance(tag);
    if (strip_next_) text.remove_prefix(std::min(text.find_first_not_of(kSpace), text.size()));
    strip_next_ = false;
    if (tag + 2 < text_.size() && text_[tag + 2] == '-') {
      text = text.substr(0, text.find_last_not_of(kSpace) + 1);
    } else if (tag < text_.size() && text_[tag + 1] != '{' && text_.substr(tag + 2, 1) != "+") {  // lstrip_blocks
      const size_t end = text.find_last_not_of(" \t") + 1;
      const bool at_line_begin = end == 0 ? begin == 0 || text_[begin - 1] == '\n' : text[end - 1] == '\n';
      if (at_line_begin) text = text.substr(0, end);
    }
    if (!text.empty()) pieces_.push_back({Piece::Kind::kText, std::string(text), line});
  }

  size_t end_of_tag(std::string_view close) const {
    if (close == "#}") return text_.find(close, at_ + 2);
    char quote = '\0';
    int32_t open = 0;  // braces of dictionaries
    for (size_t i = at_ + 2; i + 1 < text_.size(); ++i) {
      if (quote != '\0') {
        if (text_[i] == '\\') {
          ++i;
        } else if (text_[i] == quote) {
          quote = '\0';
        }
      } else if (text_[i] == '\'' || text_[i] == '"') {
        quote = text_[i];
      } else if (text_[i] == '{') {
        ++open;
      } else if (text_[i] == '}' && open > 0) {
        --open;
      } else if (text_.substr(i, 2) == close) {
        return i;
      }
    }
    return std::string_view::npos;
  }

  void add_tag() {
    const char kind = text_[at_ + 1];
    const std::string close = kind == '{' ? "}}" : std::string(1, kind) + "}";
    const size_t end = end_of_tag(close);
    if (end == std::string_view::npos) fail(source_, line_, "a tag has no end, " + in_quotes(close));
    std::string_view inside = text_.substr(at_ + 2, end - at_ - 2);
    if (inside.starts_with('-') || inside.starts_with('+')) inside.remove_prefix(1);
    bool trim = kind != '{';
    if (inside.ends_with('-')) strip_next_ = true;
    if (inside.ends_with('+')) trim = false;
    if (inside.ends_with('-') || inside.ends_with('+')) inside.remove_suffix(1);
    const auto which = kind == '{' ? Piece::Kind::kPrint : Piece::Kind::kStatement;
    if (kind != '#') pieces_.push_back({which, std::string(inside), line_});
    advance(end + 2);
    if (trim && text_.substr(at_, 1) == "\n") advance(at_ + 1);  // trim_blocks
  }

  std::string_view text_;
  const std::string& source_;
  size_t at_ = 0;
  int32_t line_ = 1;
  bool strip_next_ = false;
  std::vector<Piece> pieces_;
};

class ExpressionParser {
 public:
  ExpressionParser(const Piece& piece, const std::string& source)
      : tokens_(Lexer(piece.text, piece.line, source).tokens()), source_(source) {}

  const Token& peek() const { return tokens_[at_]; }
  int32_t line() const { return peek().line; }
  bool is(std::string_view text) const {
    return peek().text == text && (peek().kind == Token::Kind::kSign || peek().kind == Token::Kind::kName);
  }
  bool accept(std::string_view text) {
    if (!is(text)) return false;
    ++at_;
    return true;
  }
  void expect(std::string_view text) {
    if (!accept(text)) refuse("expected " + in_quotes(text));
  }
  std::string name() {
    if (peek().kind != Token::Kind::kName) refuse("expected a name");
    return tokens_[at_++].text;
  }
  void end() const {
    if (peek().kind != Token::Kind::kEnd) refuse("expected the end of the tag");
  }
  [[noreturn]] void refuse(const std::string& what) const {
    fail(source_, line(), what + ", not " + (peek().kind == Token::Kind::kEnd ? peek().text : in_quotes(peek().text)));
  }

  Expression whole() {
    Expression result = conditional();
    end();
    return result;
  }

  Expression conditional() {
    Expression value = disjunction();
    if (!is("if")) return value;
    Expression result = make(Expression::Kind::kConditional, {std::move(value)});
    accept("if");
    result.operands.push_back(disjunction());
    if (accept("else")) result.operands.push_back(nested([this] { return conditional(); }));
    return result;
  }

  /// Without the conditional, as what a loop goes through.
  Expression disjunction() {
    return nested([this] { return chain({"or"}, [this] { return chain({"and"}, [this] { return negation(); }); }); });
  }
  /// What `read` reads, separated by commas, until the closing sign.
  template <class Read>
  void items_until(std::string_view close, Read read) {
    while (!is(close)) {
      read();
      if (!accept(",")) break;
    }
    expect(close);
  }

 private:
  using Kind = Expression::Kind;

  /// A deeper expression, read by `read`.
  template <class Read>
  Expression nested(Read read) {
    const Nesting inner(depth_);
    if (depth_ > kMaxDepth) fail(source_, line(), "an expression is nested too deeply");
    return read();
  }

  Expression make(Kind kind, std::vector<Expression> operands, std::string text = {}) const {
    return {.kind = kind, .line = line(), .text = std::move(text), .operands = std::move(operands)};
  }
  Expression literal(Json value) const { return {.kind = Kind::kLiteral, .line = line(), .value = std::move(value)}; }

  template <class Operand>
  Expression chain(std::initializer_list<std::string_view> signs, Operand operand) {
    Expression left = operand();
    for (int32_t length = 0;; ++length) {
      const auto* sign = std::ranges::find_if(signs, [this](std::string_view each) { return is(each); });
      if (sign == signs.end()) return left;
      if (length == kMaxChain) fail(source_, line(), "an expression is too long");
      left = make(Kind::kBinary, {std::move(left)}, std::string(*sign));
      ++at_;
      left.operands.push_back(operand());
    }
  }

  Expression negation() {
    return nested([this] { return accept("not") ? make(Kind::kNot, {negation()}) : comparison(); });
  }

  Expression comparison() {
    const auto operand = [this] { return sum(); };
    Expression left = chain({"==", "!=", "<=", ">=", "<", ">", "in"}, operand);
    if (is("not") && tokens_[at_ + 1].text == "in") {
      at_ += 2;
      left = make(Kind::kBinary, {std::move(left)}, "in");
      left.operands.push_back(operand());
      left = make(Kind::kNot, {std::move(left)});
    }
    return left;
  }

  Expression sum() {
    return chain({"+", "-"}, [this] {
      return chain({"~"}, [this] { return chain({"*", "/", "//", "%"}, [this] { return unary(); }); });
    });
  }

  Expression unary() {
    return nested([this] { return signed_value(); });
  }

  Expression signed_value() {
    if (accept("-")) return make(Kind::kNegative, {unary()});
    if (accept("+")) return unary();
    Expression value = primary();
    for (int32_t length = 0; length < kMaxChain; ++length) {
      if (!extend(value)) return value;
    }
    fail(source_, line(), "an expression is too long");
  }

  bool extend(Expression& value) {
    if (accept(".")) {
      value = make(Kind::kAttribute, {std::move(value)}, name());
    } else if (accept("[")) {
      value = subscript(std::move(value));
    } else if (is("(")) {
      value = make(Kind::kCall, {std::move(value)});
      arguments(value);
    } else if (accept("|")) {
      value = make(Kind::kFilter, {std::move(value)}, name());
      if (is("(")) arguments(value);
    } else if (accept("is")) {
      const bool negative = accept("not");
      value = make(Kind::kTest, {std::move(value)}, name());
      if (is("(")) arguments(value);
      if (negative) value = make(Kind::kNot, {std::move(value)});
    } else {
      return false;
    }
    return true;
  }

  Expression subscript(Expression value) {
    std::vector<Expression> parts{std::move(value)};
    bool slice = false;
    for (;;) {
      parts.push_back(is(":") || is("]") ? literal(nullptr) : conditional());
      if (parts.size() == 4 || !accept(":")) break;
      slice = true;
    }
    if (slice) parts.resize(4, literal(nullptr));
    Expression result = make(slice ? Kind::kSlice : Kind::kItem, std::move(parts));
    expect("]");
    return result;
  }

  void arguments(Expression& call) {
    expect("(");
    call.names.emplace_back();  // of the first operand
    items_until(")", [&] {
      const bool named = peek().kind == Token::Kind::kName && tokens_[at_ + 1].text == "=" &&
                         tokens_[at_ + 1].kind == Token::Kind::kSign;
      call.names.push_back(named ? name() : std::string());
      if (named) expect("=");
      call.operands.push_back(conditional());
    });
  }

  std::vector<Expression> list(std::string_view close, std::vector<Expression> items = {}) {
    items_until(close, [&] { items.push_back(conditional()); });
    return items;
  }

  Expression primary() {
    const Token token = peek();
    if (token.kind == Token::Kind::kEnd) refuse("expected a value");
    ++at_;
    if (token.kind == Token::Kind::kString) {
      std::string text = token.text;
      while (peek().kind == Token::Kind::kString) text += tokens_[at_++].text;
      return literal(text);
    }
    if (token.kind == Token::Kind::kNumber) return number(token.text);
    if (token.kind == Token::Kind::kName) return named(token.text);
    if (token.text == "[") return make(Kind::kList, list("]"));
    if (token.text == "{") return dict();
    if (token.text != "(") {
      --at_;
      refuse("expected a value");
    }
    Expression inside = conditional();
    if (accept(",")) return make(Kind::kList, list(")", {std::move(inside)}));
    expect(")");
    return inside;
  }

  Expression number(const std::string& text) const {
    if (text.find('.') != std::string::npos) return literal(std::strtod(text.c_str(), nullptr));
    int64_t value = 0;
    if (std::from_chars(text.data(), text.data() + text.size(), value).ec != std::errc()) {
      fail(source_, line(), "the number " + text + " is too large");
    }
    return literal(value);
  }

  Expression named(const std::string& name) const {
    if (name == "true" || name == "True") return literal(true);
    if (name == "false" || name == "False") return literal(false);
    if (name == "none" || name == "None") return literal(nullptr);
    return make(Kind::kName, {}, name);
  }

  Expression dict() {
    Expression result = make(Kind::kDict, {});
    items_until("}", [&] {
      result.operands.push_back(conditional());
      expect(":");
      result.operands.push_back(conditional());
    });
    return result;
  }

  static constexpr int32_t kMaxChain = 256;

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int32_t depth_ = 0;
  const std::string& source_;
};

class Parser {
 public:
  Parser(std::string_view text, const std::string& source) : pieces_(Cutter(text, source).pieces()), source_(source) {}

  std::vector<Statement> all() {
    std::vector<Statement> statements = until({});
    if (at_ < pieces_.size()) fail(source_, pieces_[at_].line, in_quotes(keyword()) + " ends nothing that was begun");
    return statements;
  }

 private:
  using Kind = Statement::Kind;

  std::string keyword() const {
    if (pieces_[at_].kind != Piece::Kind::kStatement) return {};
    return ExpressionParser(pieces_[at_], source_).name();
  }

  /// The statements before a tag that begins with one of the words, or with a word that ends or divides statements.
  std::vector<Statement> until(std::initializer_list<std::string_view> words) {
    if (++depth_ > kMaxDepth) fail(source_, pieces_[at_].line, "blocks are nested too deeply");
    std::vector<Statement> statements;
    const int32_t begin = at_ > 0 ? pieces_[at_ - 1].line : 1;
    for (; at_ < pieces_.size(); ++at_) {
      const std::string word = keyword();
      if (word.starts_with("end") || word == "else" || word == "elif") break;
      statements.push_back(statement(word));
    }
    if (words.size() > 0 && (at_ == pieces_.size() || std::ranges::find(words, keyword()) == words.end())) {
      fail(source_, begin, "what begins here lacks its " + in_quotes(*(words.end() - 1)));
    }
    --depth_;
    return statements;
  }

  /// The statements of a block, behind its tag.
  std::vector<Statement> block(const ExpressionParser& tag, std::initializer_list<std::string_view> words) {
    tag.end();
    ++at_;
    return until(words);
  }

  Statement statement(const std::string& word) {
    const Piece& piece = pieces_[at_];
    Statement result{.line = piece.line};
    if (piece.kind == Piece::Kind::kText) {
      result.text = piece.text;
      return result;
    }
    ExpressionParser parser(piece, source_);
    if (piece.kind == Piece::Kind::kPrint) {
      result.kind = Kind::kPrint;
      result.expression = parser.whole();
      return result;
    }
    parser.name();
    if (word == "set") return set(parser, std::move(result));
    if (word == "if") return condition(parser, std::move(result));
    if (word == "for") return loop(parser, std::move(result));
    if (word == "macro") return macro(parser, std::move(result));
    if (word == "break" || word == "continue") {
      if (loops_ == 0) fail(source_, piece.line, in_quotes(word) + " stands outside of a loop");
      parser.end();
      result.kind = word == "break" ? Kind::kBreak : Kind::kContinue;
      return result;
    }
    if (word == "generation") {  // marks answers for training
      result.kind = Kind::kBlock;
      result.body = block(parser, {"endgeneration"});
      return result;
    }
    fail(source_, piece.line,
         "the statement " + in_quotes(word) +
             " is not known here; there are if, for, break, continue, set, macro and generation");
  }

  Statement set(ExpressionParser& parser, Statement result) {
    result.names.push_back(parser.name());
    if (parser.accept(".")) result.names.push_back(parser.name());
    if (parser.accept("=")) {
      result.kind = Kind::kSet;
      result.expression = parser.whole();
      return result;
    }
    result.kind = Kind::kSetBlock;
    result.body = block(parser, {"endset"});
    return result;
  }

  Statement condition(ExpressionParser& parser, Statement result) {
    result.kind = Kind::kIf;
    result.expression = parser.whole();
    ++at_;
    result.body = until({"elif", "else", "endif"});
    if (keyword() == "elif") {
      ++depth_;
      ExpressionParser next(pieces_[at_], source_);
      next.name();
      result.otherwise.push_back(condition(next, {.line = pieces_[at_].line}));
      --depth_;
    } else if (keyword() == "else") {
      ++at_;
      result.otherwise = until({"endif"});
    }
    return result;
  }

  Statement loop(ExpressionParser& parser, Statement result) {
    result.kind = Kind::kFor;
    do {
      result.names.push_back(parser.name());
    } while (parser.accept(","));
    parser.expect("in");
    result.expression = parser.disjunction();
    if (parser.accept("if")) result.condition.push_back(parser.disjunction());
    ++loops_;
    result.body = block(parser, {"else", "endfor"});
    --loops_;
    if (keyword() == "else") {
      ++at_;
      result.otherwise = until({"endfor"});
    }
    return result;
  }

  Statement macro(ExpressionParser& parser, Statement result) {
    result.kind = Kind::kMacro;
    result.names.push_back(parser.name());
    parser.expect("(");
    parser.items_until(")", [&] {
      result.names.push_back(parser.name());
      if (parser.accept("=")) {
        result.expression.operands.push_back(parser.conditional());
      } else if (!result.expression.operands.empty()) {
        parser.refuse("expected a default, as of the parameter before");
      }
    });
    const int32_t loops = std::exchange(loops_, 0);
    result.body = block(parser, {"endmacro"});
    loops_ = loops;
    return result;
  }

  std::vector<Piece> pieces_;
  const std::string& source_;
  size_t at_ = 0;
  int32_t depth_ = 0;
  int32_t loops_ = 0;  // around
};

}  // namespace

void fail(const std::string& source, int32_t line, const std::string& what) {
  throw Error(source + ": line " + std::to_string(line) + ": " + what);
}

std::vector<Statement> parse(std::string_view text, const std::string& source) { return Parser(text, source).all(); }

}  // namespace llama::jinja
