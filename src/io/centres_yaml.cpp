#include "io/policy_yaml.h"

#include "core/error.h"
#include "core/text.h"
#include "formats/codec.h"
#include "formats/format_name.h"

#include <algorithm>
#include <string>
#include <string_view>

namespace kvq::io {
namespace {

using Kind = YamlNode::Kind;

bool takes_centres(const SideFormat& format) { return codec_of(format.code).takes_centres; }

Centre read(const YamlNode& node) {
  if (node.kind == Kind::kScalar) {
    if (node.scalar == "none") return Centre::kNone;
    if (node.scalar == "page") return Centre::kPageMean;
    if (node.scalar == "trained") return Centre::kTrained;
  }
  fail(KVQ_E_FORMAT, "yaml line %d: centres is \"%s\", must be none, page or trained", node.line,
       Quoted(node.scalar).c_str());
}

const YamlNode* member_of(const YamlNode& node, std::string_view name) {
  const auto found = std::find_if(node.members.begin(), node.members.end(),
                                  [name](const auto& member) { return member.first == name; });
  return found != node.members.end() ? &found->second : nullptr;
}

bool says_centres(std::string_view name) { return name.ends_with("+centres") || name.ends_with("+nocentre"); }

/// Sets the centres of formats that were read from somewhere in a document.
class DefaultCentres {
 public:
  explicit DefaultCentres(Centre centre) : centre_(centre) {}

  void apply(std::string_view name, SideFormat& format) const {
    if (takes_centres(format) && !says_centres(name)) format.centre = centre_;
  }

  void apply(const YamlNode& node, SideFormat& format) const {
    if (node.kind != Kind::kMap) return apply(node.scalar, format);
    if (member_of(node, "centres") == nullptr) apply(member_of(node, "format")->scalar, format);
  }

  void apply(const YamlNode& pair, FormatPair& formats) const {
    const std::string_view name = pair.scalar;
    const size_t slash = name.find('/');
    apply(name.substr(0, slash), formats.keys);
    apply(slash == std::string_view::npos ? name : name.substr(slash + 1), formats.values);
  }

 private:
  Centre centre_;
};

}  // namespace

void read_centres(const YamlNode& node, SideFormat& format) {
  if (!takes_centres(format)) {
    fail(KVQ_E_FORMAT, "yaml line %d: centres are given for %s, but are for gain-shape formats", node.line,
         kind_name(format).c_str());
  }
  format.centre = read(node);
}

void read_default_centres(const YamlNode& node, const YamlNode& root, Policy& policy) {
  const DefaultCentres centres(read(node));
  if (const YamlNode* keys = member_of(root, "keys")) centres.apply(*keys, policy.keys);
  if (const YamlNode* values = member_of(root, "values")) centres.apply(*values, policy.values);
  for (size_t i = 0; i < policy.overrides.size(); ++i) {
    const YamlNode& entry = member_of(root, "layers")->items[i];
    if (const YamlNode* keys = member_of(entry, "keys")) centres.apply(*keys, *policy.overrides[i].keys);
    if (const YamlNode* values = member_of(entry, "values")) centres.apply(*values, *policy.overrides[i].values);
  }
  for (size_t i = 0; i < policy.experts.size(); ++i) {
    centres.apply(member_of(*member_of(root, "router"), "experts")->items[i], policy.experts[i]);
  }
}

}  // namespace kvq::io
