#include "io/policy_yaml.h"

#include "core/error.h"
#include "io/yaml_document.h"

#include <algorithm>
#include <vector>

namespace kvq::io {
namespace {

std::string format_text(const SideFormat& format) {
  std::string name = format_name(format);
  if (format.group == SideFormat{}.group) return name;
  return "{format: " + name + ", group: " + std::to_string(format.group) + "}";
}

/// Layers that an entry of a policy speaks of.
struct Range {
  int32_t first;
  int32_t last;
  FormatPair formats;
  int32_t window;

  bool says_the_same(const Range& other) const { return formats == other.formats && window == other.window; }
};

/// Ranges of layers that differ from the policy's defaults, in order.
std::vector<Range> ranges_of(const Policy& policy) {
  std::vector<int32_t> borders;  // only there does anything change
  for (const Policy::Override& each : policy.overrides) {
    borders.push_back(each.first_layer);
    borders.push_back(each.last_layer + 1);
  }
  std::sort(borders.begin(), borders.end());
  borders.erase(std::unique(borders.begin(), borders.end()), borders.end());
  std::vector<Range> ranges;
  for (size_t i = 0; i + 1 < borders.size(); ++i) {
    const Range range{borders[i], borders[i + 1] - 1, policy.formats(borders[i]), policy.window_of(borders[i])};
    if (range.formats == FormatPair{policy.keys, policy.values} && range.window == policy.window) continue;
    if (!ranges.empty() && ranges.back().last + 1 == borders[i] && ranges.back().says_the_same(range)) {
      ranges.back().last = range.last;
    } else {
      ranges.push_back(range);
    }
  }
  return ranges;
}

std::string range_text(const Range& range, const Policy& policy) {
  std::string text = "  - {range: [" + std::to_string(range.first) + ", " + std::to_string(range.last) + "]";
  if (range.formats.keys != policy.keys) text += ", keys: " + format_text(range.formats.keys);
  if (range.formats.values != policy.values) text += ", values: " + format_text(range.formats.values);
  if (range.window != policy.window) text += ", window: " + std::to_string(range.window);
  return text + "}\n";
}

std::string layers_text(const Policy& policy, const std::vector<Range>& ranges) {
  int32_t last = -1;  // that an entry names: caches with fewer layers do not take the policy
  for (const Policy::Override& each : policy.overrides) last = std::max(last, each.last_layer);
  if (last < 0) return "";
  std::string text = "layers:\n";
  for (const Range& range : ranges) text += range_text(range, policy);
  if (ranges.empty() || ranges.back().last < last) {
    text += range_text({last, last, {policy.keys, policy.values}, policy.window}, policy);
  }
  return text;
}

std::string router_text(const Policy& policy) {
  std::string text = "router: {experts: [";
  for (size_t i = 0; i < policy.experts.size(); ++i) {
    text += (i > 0 ? ", " : "") + format_pair_name(policy.experts[i]);
  }
  text += "]";
  if (policy.votes != Votes::kLayer) text.append(", votes: ").append(kVotes[static_cast<size_t>(policy.votes)]);
  return text + "}\n";
}

/// Options of the codecs in a policy; empty without any.
std::string options_text(const Codec& codec, const OptionValues& values) {
  std::string members;
  for (size_t i = 0; i < codec.options.size(); ++i) {
    const CodecOption& option = codec.options[i];
    if (values[i] == option.initial) continue;
    members.append(members.empty() ? "" : ", ").append(option.name).append(": ");
    members += option.choices.empty() ? std::to_string(values[i])
                                      : std::string(option.choices[static_cast<size_t>(values[i])]);
  }
  return members.empty() ? "" : std::string(codec.name) + ": {" + members + "}\n";
}

/// From the written formats alone, as a reader finds them.
FormatDefaults written_defaults(const Policy& policy, const std::vector<Range>& ranges) {
  FormatDefaults defaults;
  const auto add = [&defaults](const FormatPair& pair) {
    defaults.add(pair.keys);
    defaults.add(pair.values);
  };
  if (policy.experts.empty()) add({policy.keys, policy.values});
  for (const Range& range : ranges) add(range.formats);
  for (const FormatPair& expert : policy.experts) defaults.add_expert(expert);
  return defaults;
}

}  // namespace

std::string write_policy(const Policy& policy) {
  const std::vector<Range> ranges = ranges_of(policy);
  const FormatDefaults defaults = written_defaults(policy, ranges);
  std::string text = "version: 1\n";
  if (policy.experts.empty()) {
    text += "keys: " + format_text(policy.keys) + "\nvalues: " + format_text(policy.values) + "\n";
  } else {
    text += router_text(policy);
  }
  if (policy.sink.has_value() || policy.sink_pages() != defaults.sink) {
    text += "sink: " + std::to_string(policy.sink_pages()) + "\n";
  }
  if (policy.recent != kDefaultRecent) text += "recent: " + std::to_string(policy.recent) + "\n";
  if (policy.window != 0) text += "window: " + std::to_string(policy.window) + "\n";
  if (policy.calibrates() != defaults.calibrates()) {
    text.append("calibrate: ").append(policy.calibrates() ? "first" : "none").append("\n");
  }
  text += layers_text(policy, ranges);
  for (const Codec* codec : all_codecs()) text += options_text(*codec, policy.options.of(*codec));
  if (policy.eviction.budget > 0) text += "eviction: " + write_eviction(policy.eviction) + "\n";
  if (text.size() > kMaxYamlBytes) {
    fail(KVQ_E_UNSUPPORTED, "policy has %zu ranges of layers and takes %zu bytes, but no more than %zu could be read",
         ranges.size(), text.size(), kMaxYamlBytes);
  }
  return text;
}

}  // namespace kvq::io
