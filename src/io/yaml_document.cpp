#include "io/yaml_document.h"

#include "core/error.h"
#include "core/number_text.h"
#include "core/text.h"

#include <yaml.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <new>
#include <set>

namespace kvq::io {
namespace {

constexpr size_t kMaxDepth = 16;
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

/// libyaml compares each directive with all before it. One document has %YAML and perhaps a few %TAG.
constexpr int kMostDirectives = 8;

/// Whether libyaml counts a new line from the end of `text` on.
bool ends_line(std::string_view text) {
  const auto ends = [text](std::string_view mark) { return text.ends_with(mark); };
  return text.empty() || ends("\n") || ends("\r") || ends("\xC2\x85") || ends("\xE2\x80\xA8") || ends("\xE2\x80\xA9");
}

/// Refuse texts with more directives than any has.
void check_directives(std::string_view text) {
  int directives = 0;
  for (size_t at = text.find('%'); at != std::string_view::npos; at = text.find('%', at + 1)) {
    if (!ends_line(text.substr(0, at)) || ++directives <= kMostDirectives) continue;
    const auto line = std::count(text.begin(), text.begin() + static_cast<ptrdiff_t>(at), '\n') + 1;
    fail(KVQ_E_FORMAT, "yaml line %td: more than %d lines begin with %%", line, kMostDirectives);
  }
}

/// Document of a node without a value.
bool is_null(const yaml_event_t& event, std::string_view value) {
  if (event.data.scalar.style != YAML_PLAIN_SCALAR_STYLE) return false;
  return value.empty() || value == "~" || value == "null" || value == "Null" || value == "NULL";
}

/// Builds the tree from parser events.
class TreeBuilder {
 public:
  YamlNode take_root() { return std::move(root_); }

  void take(const yaml_event_t& event) {
    const int line = static_cast<int>(event.start_mark.line) + 1;
    switch (event.type) {
      case YAML_ALIAS_EVENT:
        fail(KVQ_E_FORMAT, "yaml line %d: aliases are not supported", line);
      case YAML_SCALAR_EVENT:
        take_scalar(event, line);
        break;
      case YAML_SEQUENCE_START_EVENT:
        open({YamlNode::Kind::kSequence, line});
        break;
      case YAML_MAPPING_START_EVENT:
        open({YamlNode::Kind::kMap, line});
        break;
      case YAML_SEQUENCE_END_EVENT:
      case YAML_MAPPING_END_EVENT:
        close();
        break;
      default:
        break;  // where documents begin and end
    }
  }

 private:
  struct Level {
    YamlNode node;
    bool has_key = false;
    std::string key;
    std::set<std::string> keys{};  // all so far
  };

  void take_scalar(const yaml_event_t& event, int line) {
    // The parser's text is unsigned.
    const std::string value(reinterpret_cast<const char*>(event.data.scalar.value), event.data.scalar.length);
    place(is_null(event, value) ? YamlNode(YamlNode::Kind::kNull, line)
                                : YamlNode(YamlNode::Kind::kScalar, line, value));
  }

  void open(YamlNode node) {
    if (open_.size() >= kMaxDepth) fail_at(node, "nested deeper than %zu levels", kMaxDepth);
    if (!open_.empty() && open_.back().node.kind == YamlNode::Kind::kMap && !open_.back().has_key) {
      fail_at(node, "a key must be a plain word");
    }
    open_.push_back({std::move(node), false, {}});
  }

  void close() {
    YamlNode node = std::move(open_.back().node);
    open_.pop_back();
    place(std::move(node));
  }

  void place(YamlNode node) {
    if (open_.empty()) {
      root_ = std::move(node);
      return;
    }
    Level& level = open_.back();
    if (level.node.kind == YamlNode::Kind::kSequence) {
      level.node.items.push_back(std::move(node));
    } else if (!level.has_key) {
      set_key(level, node);
    } else {
      level.node.members.emplace_back(std::move(level.key), std::move(node));
      level.has_key = false;
    }
  }

  static void set_key(Level& level, const YamlNode& node) {
    if (!node.is_scalar()) fail_at(node, "a key must be a plain word");
    if (!level.keys.insert(node.scalar).second) fail_at(node, "key \"%s\" occurs twice", Quoted(node.scalar).c_str());
    level.key = node.scalar;
    level.has_key = true;
  }

  YamlNode root_;
  std::vector<Level> open_;
};

/// libyaml's parser of a text.
class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {
    if (yaml_parser_initialize(&parser_) == 0) throw std::bad_alloc();
    yaml_parser_set_encoding(&parser_, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&parser_, reinterpret_cast<const unsigned char*>(text.data()), text.size());
  }
  Parser(const Parser&) = delete;
  Parser& operator=(const Parser&) = delete;
  ~Parser() {
    yaml_event_delete(&event_);
    yaml_parser_delete(&parser_);
  }

  /// Next event, valid until the one after.
  const yaml_event_t& next() {
    yaml_event_delete(&event_);
    if (yaml_parser_parse(&parser_, &event_) == 0) report();
    return event_;
  }

 private:
  [[noreturn]] void report() const {
    if (parser_.error == YAML_MEMORY_ERROR) throw std::bad_alloc();
    size_t line = parser_.problem_mark.line;
    if (parser_.error == YAML_READER_ERROR) {  // which knows only the byte
      const size_t offset = std::min(parser_.problem_offset, text_.size());
      line = static_cast<size_t>(std::count(text_.begin(), text_.begin() + static_cast<ptrdiff_t>(offset), '\n'));
    }
    fail(KVQ_E_FORMAT, "yaml line %zu: %.160s", line + 1, parser_.problem != nullptr ? parser_.problem : "not YAML");
  }

  std::string_view text_;
  yaml_parser_t parser_{};
  yaml_event_t event_{};
};

}  // namespace

YamlNode parse_yaml(std::string_view text, size_t most) {
  if (text.size() > most) fail(KVQ_E_FORMAT, "yaml is %zu bytes long, at most %zu are read", text.size(), most);
  if (text.find('\0') != std::string_view::npos) fail(KVQ_E_FORMAT, "yaml contains a NUL byte");
  if (text.substr(0, kByteOrderMark.size()) == kByteOrderMark) text.remove_prefix(kByteOrderMark.size());
  check_directives(text);
  Parser parser(text);
  TreeBuilder builder;
  for (int documents = 0;;) {
    const yaml_event_t& event = parser.next();
    if (event.type == YAML_STREAM_END_EVENT) {
      if (documents == 0) fail(KVQ_E_FORMAT, "yaml is empty");
      return builder.take_root();
    }
    if (event.type == YAML_DOCUMENT_START_EVENT && ++documents > 1) {
      fail(KVQ_E_FORMAT, "yaml holds more than one document");
    }
    builder.take(event);
  }
}

const YamlNode* YamlNode::member(std::string_view name) const {
  const auto found = std::ranges::find(members, name, &std::pair<std::string, YamlNode>::first);
  return found != members.end() ? &found->second : nullptr;
}

void fail_at(const YamlNode& node, const char* format, ...) {
  char message[sizeof(kvq_error::message)];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(message, sizeof(message), format, arguments);
  va_end(arguments);
  if (node.line == 0) fail(KVQ_E_FORMAT, "%s", message);
  fail(KVQ_E_FORMAT, "yaml line %d: %s", node.line, message);
}

void refuse(const YamlNode& node, std::string_view key, const std::string& expected) {
  fail_at(node, "%.*s is \"%s\", must be %s", static_cast<int>(key.size()), key.data(), Quoted(node.scalar).c_str(),
          expected.c_str());
}

void require_map(const YamlNode& node, const char* what) {
  if (node.kind != YamlNode::Kind::kMap) fail_at(node, "%s must be a map", what);
}

std::string list_of(std::span<const std::string_view> names, const char* last) {
  std::string list;
  for (size_t i = 0; i < names.size(); ++i) {
    if (i > 0) list += i + 1 == names.size() ? last : ", ";
    list += names[i];
  }
  return list;
}

int32_t read_int(const YamlNode& node, const char* key, int32_t low, int32_t high) {
  int32_t value = 0;
  if (node.is_scalar() && parse_number(node.scalar, value) && value >= low && value <= high) return value;
  refuse(node, key, "an integer in [" + std::to_string(low) + ", " + std::to_string(high) + "]");
}

float read_float(const YamlNode& node, const char* key, float low, float high) {
  float value = 0.0F;
  if (node.is_scalar() && parse_number(node.scalar, value) && value >= low && value <= high) return value;
  fail_at(node, "%s is \"%s\", must be a number in [%g, %g]", key, Quoted(node.scalar).c_str(),
          static_cast<double>(low), static_cast<double>(high));
}

void fail_unknown(const YamlNode& node, const std::string& key, const std::string& known) {
  fail_at(node, "unknown key \"%s\", known are %s", Quoted(key).c_str(), known.c_str());
}

}  // namespace kvq::io
