#include "io/policy_yaml.h"

#include "core/error.h"
#include "core/text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <climits>
#include <cstring>

namespace kvq::io {
namespace {

using Kind = YamlNode::Kind;

struct Method {
  const char* name;
  TokenScore score;
  LayerSplit layers;
  HeadSplit heads;
};

/// Names from the papers.
constexpr std::array kMethods = {
    Method{"streaming", TokenScore::kStreaming, LayerSplit::kUniform, HeadSplit::kUniform},
    Method{"h2o", TokenScore::kMass, LayerSplit::kUniform, HeadSplit::kUniform},
    Method{"snapkv", TokenScore::kWindow, LayerSplit::kUniform, HeadSplit::kUniform},
    Method{"pyramid", TokenScore::kWindow, LayerSplit::kPyramid, HeadSplit::kUniform},
    Method{"adasnap", TokenScore::kWindow, LayerSplit::kUniform, HeadSplit::kAdaptive},
    Method{"adapyramid", TokenScore::kWindow, LayerSplit::kPyramid, HeadSplit::kAdaptive},
};
constexpr const char* kMethodNames = "streaming, h2o, snapkv, pyramid, adasnap, adapyramid";

constexpr std::array kScores = {"window", "streaming", "mass"};                      // by TokenScore
constexpr std::array kLayerSplits = {"uniform", "pyramid"};                          // by LayerSplit
constexpr std::array kHeadSplits = {"uniform", "adaptive", "reserved", "together"};  // by HeadSplit
constexpr std::array kPoolings = {"max", "mean"};                                    // by Pooling

const Method* find_method(std::string_view name) {
  for (const Method& method : kMethods) {
    if (name == method.name) return &method;
  }
  return nullptr;
}

bool is_method(const Method& method, const Eviction& eviction) {
  return method.score == eviction.score && method.layers == eviction.layers && method.heads == eviction.heads;
}

void apply(const Method& method, Eviction& eviction) {
  eviction.score = method.score;
  eviction.layers = method.layers;
  eviction.heads = method.heads;
}

template <typename Enum, size_t n>
void read_choice(const YamlNode& node, const char* key, const std::array<const char*, n>& names, Enum& choice) {
  for (size_t i = 0; i < n; ++i) {
    if (node.kind != Kind::kScalar || node.scalar != names[i]) continue;
    choice = static_cast<Enum>(i);
    return;
  }
  std::string known;
  for (const char* name : names) known += (known.empty() ? "" : ", ") + std::string(name);
  fail(KVQ_E_FORMAT, "yaml line %d: %s is \"%s\", must be one of %s", node.line, key, Quoted(node.scalar).c_str(),
       known.c_str());
}

/// Read a percentage like "25%"; false if it is none.
bool read_percent(std::string_view text, Eviction& eviction) {
  if (!text.ends_with('%')) return false;
  const char* end = text.data() + text.size() - 1;
  const auto [stop, code] = std::from_chars(text.data(), end, eviction.percent);
  const bool is_percent = code == std::errc() && stop == end && eviction.percent > 0.0F && eviction.percent <= 100.0F;
  if (is_percent) eviction.budget = kBudgetOfPercent;
  return is_percent;
}

template <typename Number>
std::string shortest(Number number) {
  std::array<char, 64> digits{};
  return std::string(digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr);
}

std::string budget_text(const Eviction& eviction) {
  return eviction.percent > 0.0F ? shortest(eviction.percent) + "%" : std::to_string(eviction.budget);
}

void read_member(const std::string& name, const YamlNode& value, Eviction& eviction) {
  if (name == "method") return;  // read first
  if (name == "budget") {
    if (value.kind == Kind::kScalar && value.scalar.ends_with('%')) {
      if (read_percent(value.scalar, eviction)) return;
      fail(KVQ_E_FORMAT, "yaml line %d: budget is \"%s\", a share must be above 0%% and at most 100%%", value.line,
           Quoted(value.scalar).c_str());
    }
    eviction.budget = read_int(value, "budget", 1, INT_MAX);
  } else if (name == "window") {
    eviction.window = read_int(value, "window", 1, 4096);
  } else if (name == "kernel") {
    eviction.kernel = read_int(value, "kernel", 1, 255);
    if (eviction.kernel % 2 == 0) {
      fail(KVQ_E_FORMAT, "yaml line %d: kernel is %d, must be odd", value.line, eviction.kernel);
    }
  } else if (name == "first") {
    eviction.first = read_int(value, "first", 0, INT_MAX);
  } else if (name == "alpha") {
    eviction.alpha = read_float(value, "alpha", 0.0F, 1.0F);
  } else if (name == "beta") {
    eviction.beta = read_float(value, "beta", 1.0F, 1e6F);
  } else if (name == "score") {
    read_choice(value, "score", kScores, eviction.score);
  } else if (name == "layers") {
    read_choice(value, "layers", kLayerSplits, eviction.layers);
  } else if (name == "heads") {
    read_choice(value, "heads", kHeadSplits, eviction.heads);
  } else if (name == "pooling") {
    read_choice(value, "pooling", kPoolings, eviction.pooling);
  } else if (name == "group") {
    read_choice(value, "group", kPoolings, eviction.group);
  } else {
    fail_unknown(value, name,
                 "method, score, layers, heads, budget, window, kernel, pooling, group, first, alpha, beta");
  }
}

void check(const Eviction& eviction, const YamlNode& node) {
  if (eviction.budget == 0) fail(KVQ_E_FORMAT, "yaml line %d: eviction lacks \"budget\"", node.line);
  if (eviction.budget < eviction.window) {
    fail(KVQ_E_FORMAT, "%sbudget is %d, smaller than the window of %d tokens that are always kept",
         at_line(node).c_str(), eviction.budget, eviction.window);
  }
}

}  // namespace

Eviction read_eviction(const YamlNode& node) {
  if (node.kind != Kind::kMap) fail(KVQ_E_FORMAT, "yaml line %d: eviction must be a map", node.line);
  Eviction eviction;
  for (const auto& [name, value] : node.members) {
    if (name != "method") continue;
    const Method* method = value.kind == Kind::kScalar ? find_method(value.scalar) : nullptr;
    if (method == nullptr) {
      fail(KVQ_E_FORMAT, "yaml line %d: method is \"%s\", must be one of %s", value.line, Quoted(value.scalar).c_str(),
           kMethodNames);
    }
    apply(*method, eviction);
  }
  for (const auto& [name, value] : node.members) read_member(name, value, eviction);
  check(eviction, node);
  return eviction;
}

std::string write_eviction(const Eviction& eviction) {
  Eviction defaults;
  const Method* method =
      std::find_if(kMethods.begin(), kMethods.end(), [&](const Method& each) { return is_method(each, eviction); });
  std::string text = "{";
  if (method != kMethods.end()) {
    apply(*method, defaults);
    text.append("method: ").append(method->name).append(", ");
  }
  text += "budget: " + budget_text(eviction);
  const auto add = [&](const char* key, const auto& of, const auto& name_of) {
    if (eviction.*of != defaults.*of) text.append(", ").append(key).append(": ").append(name_of(eviction.*of));
  };
  const auto name_in = [](const auto& names) {
    return [&names](auto choice) { return names[static_cast<size_t>(choice)]; };
  };
  const auto number = [](auto value) { return shortest(value); };
  add("score", &Eviction::score, name_in(kScores));
  add("layers", &Eviction::layers, name_in(kLayerSplits));
  add("heads", &Eviction::heads, name_in(kHeadSplits));
  add("window", &Eviction::window, number);
  add("kernel", &Eviction::kernel, number);
  add("pooling", &Eviction::pooling, name_in(kPoolings));
  add("group", &Eviction::group, name_in(kPoolings));
  add("first", &Eviction::first, number);
  add("alpha", &Eviction::alpha, number);
  add("beta", &Eviction::beta, number);
  return text + "}";
}

Eviction take_eviction(const YamlNode& node, std::string_view& name) {
  Eviction eviction;
  const size_t colon = name.rfind(':');
  const size_t plus = name.rfind('+', colon);
  if (plus == std::string_view::npos) return eviction;
  if (colon == std::string_view::npos) {
    if (find_method(name.substr(plus + 1)) == nullptr) return eviction;
    const std::string evicting(Quoted(name).c_str());
    fail(KVQ_E_FORMAT, "%s\"%s\" lacks a budget, the tokens of a head that stay on average: write %s:256, or %s:25%%",
         at_line(node).c_str(), evicting.c_str(), evicting.c_str(), evicting.c_str());
  }
  const std::string_view digits = name.substr(colon + 1);
  const Method* method = find_method(name.substr(plus + 1, colon - plus - 1));
  if (method == nullptr) {
    fail(KVQ_E_FORMAT, "%s\"%s\" ends in an unknown method of eviction, known are %s", at_line(node).c_str(),
         Quoted(node.scalar).c_str(), kMethodNames);
  }
  if (!read_percent(digits, eviction)) {
    const char* end = digits.data() + digits.size();
    const auto [stop, code] = std::from_chars(digits.data(), end, eviction.budget);
    if (code != std::errc() || stop != end || eviction.budget < 1) {
      fail(KVQ_E_FORMAT, "%s\"%s\" must end in a budget: a number of tokens, or a share of them such as 25%%",
           at_line(node).c_str(), Quoted(node.scalar).c_str());
    }
  }
  apply(*method, eviction);
  check(eviction, node);
  name = name.substr(0, plus);
  return eviction;
}

Eviction with_method(Eviction eviction, std::string_view method, int32_t budget) {
  const Method* found = find_method(method);
  if (found == nullptr) {
    fail(KVQ_E_ARGUMENT, "method is \"%s\", must be one of %s", Quoted(method).c_str(), kMethodNames);
  }
  apply(*found, eviction);
  if (budget < eviction.window) {
    fail(KVQ_E_ARGUMENT, "budget is %d, smaller than the window of %d tokens that are always kept", budget,
         eviction.window);
  }
  eviction.budget = budget;
  eviction.percent = 0.0F;
  return eviction;
}

}  // namespace kvq::io
