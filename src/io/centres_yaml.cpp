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

/// By Centre.
constexpr std::array<std::string_view, 3> kCentres = {"none", "page", "trained"};

Centre read(const YamlNode& node) {
  Centre centre{};
  read_choice(node, "centres", kCentres, list_of(kCentres, " or "), centre);
  return centre;
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
    if (node.member("centres") == nullptr) apply(node.member("format")->scalar, format);
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
    fail_at(node, "centres are given for %s, but are for gain-shape formats", kind_name(format).c_str());
  }
  format.centre = read(node);
}

void read_default_centres(const YamlNode& node, const YamlNode& root, Policy& policy) {
  const DefaultCentres centres(read(node));
  if (const YamlNode* keys = root.member("keys")) centres.apply(*keys, policy.keys);
  if (const YamlNode* values = root.member("values")) centres.apply(*values, policy.values);
  for (size_t i = 0; i < policy.overrides.size(); ++i) {
    const YamlNode& entry = root.member("layers")->items[i];
    if (const YamlNode* keys = entry.member("keys")) centres.apply(*keys, *policy.overrides[i].keys);
    if (const YamlNode* values = entry.member("values")) centres.apply(*values, *policy.overrides[i].values);
  }
  for (size_t i = 0; i < policy.experts.size(); ++i) {
    centres.apply(root.member("router")->member("experts")->items[i], policy.experts[i]);
  }
}

}  // namespace kvq::io
