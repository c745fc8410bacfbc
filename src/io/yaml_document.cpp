#include "io/yaml_document.h"

#include "core/error.h"
#include "core/text.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <set>
#include <sstream>

namespace kvq::io {
namespace {

constexpr size_t kMaxBytes = size_t{1} << 20U;
constexpr size_t kMaxDepth = 16;

/// Builds the tree from parser events. The parser recurses as deep as the document nests, so depth is limited here,
/// while it happens.
class TreeBuilder final : public YAML::EventHandler {
 public:
  YamlNode take_root() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark& /*mark*/) override {}
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t /*anchor*/) override {
    place({YamlNode::Kind::kNull, line_of(mark)});
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t /*anchor*/) override {
    fail(KVQ_E_FORMAT, "yaml line %d: aliases are not supported", line_of(mark));
  }
  void OnScalar(const YAML::Mark& mark, const std::string& /*tag*/, YAML::anchor_t /*anchor*/,
                const std::string& value) override {
    place({YamlNode::Kind::kScalar, line_of(mark), value});
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& /*tag*/, YAML::anchor_t /*anchor*/,
                       YAML::EmitterStyle::value /*style*/) override {
    open({YamlNode::Kind::kSequence, line_of(mark)});
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& /*tag*/, YAML::anchor_t /*anchor*/,
                  YAML::EmitterStyle::value /*style*/) override {
    open({YamlNode::Kind::kMap, line_of(mark)});
  }
  void OnMapEnd() override { close(); }

 private:
  struct Level {
    YamlNode node;
    bool has_key = false;
    std::string key;
    std::set<std::string> keys{};  // all so far
  };

  static int line_of(const YAML::Mark& mark) { return mark.line + 1; }

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

}  // namespace

YamlNode parse_yaml(std::string_view text) {
  if (text.size() > kMaxBytes)
    fail(KVQ_E_FORMAT, "yaml is %zu bytes long, at most %zu are read", text.size(), kMaxBytes);
  if (text.find('\0') != std::string_view::npos) fail(KVQ_E_FORMAT, "yaml contains a NUL byte");
  try {
    std::istringstream stream{std::string(text)};
    YAML::Parser parser(stream);
    TreeBuilder builder;
    if (!parser.HandleNextDocument(builder)) fail(KVQ_E_FORMAT, "yaml is empty");
    YamlNode root = builder.take_root();
    TreeBuilder second;
    if (parser.HandleNextDocument(second)) fail(KVQ_E_FORMAT, "yaml holds more than one document");
    return root;
  } catch (const YAML::Exception& error) {
    fail(KVQ_E_FORMAT, "yaml line %d: %.160s", error.mark.line + 1, error.msg.c_str());
  }
}

}  // namespace kvq::io
