#include "io/yaml_document.h"

#include "core/error.h"
#include "core/text.h"

#include <yaml.h>

#include <algorithm>
#include <charconv>
#include <new>
#include <set>

namespace kvq::io {
namespace {

constexpr size_t kMaxDepth = 16;
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

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
    if (is_null(event, value)) {
      place({YamlNode::Kind::kNull, line});
    } else {
      place({YamlNode::Kind::kScalar, line, value});
    }
  }

  void open(YamlNode node) {
    if (open_.size() >= kMaxDepth) {
      fail(KVQ_E_FORMAT, "yaml line %d: nested deeper than %zu levels", node.line, kMaxDepth);
    }
    if (!open_.empty() && open_.back().node.kind == YamlNode::Kind::kMap && !open_.back().has_key) {
      fail(KVQ_E_FORMAT, "yaml line %d: a key must be a plain word", node.line);
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
    if (node.kind != YamlNode::Kind::kScalar) fail(KVQ_E_FORMAT, "yaml line %d: a key must be a plain word", node.line);
    if (!level.keys.insert(node.scalar).second) {
      fail(KVQ_E_FORMAT, "yaml line %d: key \"%s\" occurs twice", node.line, Quoted(node.scalar).c_str());
    }
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

std::string at_line(const YamlNode& node) {
  return node.line > 0 ? "yaml line " + std::to_string(node.line) + ": " : std::string();
}

int32_t read_int(const YamlNode& node, const char* key, int32_t low, int32_t high) {
  int32_t value = 0;
  const char* end = node.scalar.data() + node.scalar.size();
  const auto [stop, code] = std::from_chars(node.scalar.data(), end, value);
  if (node.kind != YamlNode::Kind::kScalar || node.scalar.empty() || code != std::errc() || stop != end ||
      value < low || value > high) {
    fail(KVQ_E_FORMAT, "yaml line %d: %s is \"%s\", must be an integer in [%d, %d]", node.line, key,
         Quoted(node.scalar).c_str(), low, high);
  }
  return value;
}

float read_float(const YamlNode& node, const char* key, float low, float high) {
  float value = 0.0F;
  const char* end = node.scalar.data() + node.scalar.size();
  const auto [stop, code] = std::from_chars(node.scalar.data(), end, value);
  if (node.kind != YamlNode::Kind::kScalar || code != std::errc() || stop != end || !(value >= low && value <= high)) {
    fail(KVQ_E_FORMAT, "yaml line %d: %s is \"%s\", must be a number in [%g, %g]", node.line, key,
         Quoted(node.scalar).c_str(), static_cast<double>(low), static_cast<double>(high));
  }
  return value;
}

void fail_unknown(const YamlNode& node, const std::string& key, const char* known) {
  fail(KVQ_E_FORMAT, "yaml line %d: unknown key \"%s\", known are %s", node.line, Quoted(key).c_str(), known);
}

}  // namespace kvq::io
