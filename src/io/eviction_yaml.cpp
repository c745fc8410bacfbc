#include "io/policy_yaml.h"

#include "core/error.h"
#include "core/number_text.h"
#include "core/text.h"

#include <algorithm>
#include <array>
#include <climits>
#include <type_traits>

namespace kvq::io {
namespace {

struct Method {
  std::string_view name;
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

template <size_t n>
using Names = std::array<std::string_view, n>;
constexpr Names<3> kScores = {"window", "streaming", "mass"};                      // by TokenScore
constexpr Names<2> kLayerSplits = {"uniform", "pyramid"};                          // by LayerSplit
constexpr Names<4> kHeadSplits = {"uniform", "adaptive", "reserved", "together"};  // by HeadSplit
constexpr Names<2> kPoolings = {"max", "mean"};                                    // by Pooling

const Method* find_method(std::string_view name) {
  const auto* found = std::ranges::find(kMethods, name, &Method::name);
  return found != kMethods.end() ? found : nullptr;
}

bool is_method(const Method& method, const Eviction& eviction) {
  return method.score == eviction.score && method.layers == eviction.layers && method.heads == eviction.heads;
}

void apply(const Method& method, Eviction& eviction) {
  eviction.score = method.score;
  eviction.layers = method.layers;
  eviction.heads = method.heads;
}

/// Read a percentage like "25%"; false if it is none.
bool read_percent(std::string_view text, Eviction& eviction) {
  if (!text.ends_with('%')) return false;
  const bool is_percent = parse_number(text.substr(0, text.size() - 1), eviction.percent) && eviction.percent > 0.0F &&
                          eviction.percent <= 100.0F;
  if (is_percent) eviction.budget = kBudgetOfPercent;
  return is_percent;
}

template <typename Number>
std::string shortest(Number number) {
  std::array<char, 64> digits{};
  return std::string(digits.data(), write_number(digits, number));
}

std::string budget_text(const Eviction& eviction) {
  return eviction.percent > 0.0F ? shortest(eviction.percent) + "%" : std::to_string(eviction.budget);
}

void read_budget(const YamlNode& node, const char* key, Eviction& eviction) {
  if (node.is_scalar() && node.scalar.ends_with('%')) {
    if (read_percent(node.scalar, eviction)) return;
    fail_at(node, "budget is \"%s\", a share must be above 0%% and at most 100%%", Quoted(node.scalar).c_str());
  }
  eviction.budget = read_int(node, key, 1, INT_MAX);
}

void read_kernel(const YamlNode& node, const char* key, Eviction& eviction) {
  eviction.kernel = read_int(node, key, 1, 255);
  if (eviction.kernel % 2 == 0) fail_at(node, "kernel is %d, must be odd", eviction.kernel);
}

struct Field : Member<Eviction> {
  std::string (*write)(const Eviction& eviction);  // null: written apart from the others
};

template <auto field>
std::string write_number(const Eviction& eviction) {
  return shortest(eviction.*field);
}

template <auto field, int32_t low, int32_t high>
constexpr Field number(const char* name) {
  const auto read = [](const YamlNode& node, const char* key, Eviction& eviction) {
    if constexpr (std::is_same_v<decltype(field), float Eviction::*>) {
      eviction.*field = read_float(node, key, static_cast<float>(low), static_cast<float>(high));
    } else {
      eviction.*field = read_int(node, key, low, high);
    }
  };
  return {{name, read}, write_number<field>};
}

template <auto field, const auto& names>
constexpr Field choice(const char* name) {
  return {
      {name, [](const YamlNode& node, const char* key,
                Eviction& eviction) { read_choice(node, key, names, "one of " + list_of(names), eviction.*field); }},
      [](const Eviction& eviction) { return std::string(names[static_cast<size_t>(eviction.*field)]); }};
}

constexpr auto kFields = std::to_array<Field>({
    {{"method", [](const YamlNode&, const char*, Eviction&) {}}, nullptr},  // read first
    choice<&Eviction::score, kScores>("score"),
    choice<&Eviction::layers, kLayerSplits>("layers"),
    choice<&Eviction::heads, kHeadSplits>("heads"),
    {{"budget", read_budget}, nullptr},
    number<&Eviction::window, 1, 4096>("window"),
    {{"kernel", read_kernel}, write_number<&Eviction::kernel>},
    choice<&Eviction::pooling, kPoolings>("pooling"),
    choice<&Eviction::group, kPoolings>("group"),
    number<&Eviction::first, 0, INT_MAX>("first"),
    number<&Eviction::alpha, 0, 1>("alpha"),
    number<&Eviction::beta, 1, 1'000'000>("beta"),
});

void check(const Eviction& eviction, const YamlNode& node) {
  if (eviction.budget == 0) fail_at(node, "eviction lacks \"budget\"");
  if (eviction.budget < eviction.window) {
    fail_at(node, "budget is %d, smaller than the window of %d tokens that are always kept", eviction.budget,
            eviction.window);
  }
}

}  // namespace

Eviction read_eviction(const YamlNode& node) {
  require_map(node, "eviction");
  Eviction eviction;
  if (const YamlNode* name = node.member("method")) {
    const Method* method = name->is_scalar() ? find_method(name->scalar) : nullptr;
    if (method == nullptr) refuse(*name, "method", std::string("one of ") + kMethodNames);
    apply(*method, eviction);
  }
  read_members(node, kFields, eviction);
  check(eviction, node);
  return eviction;
}

std::string write_eviction(const Eviction& eviction) {
  Eviction defaults;
  const Method* method = std::ranges::find_if(kMethods, [&](const Method& each) { return is_method(each, eviction); });
  std::string text = "{";
  if (method != kMethods.end()) {
    apply(*method, defaults);
    text.append("method: ").append(method->name).append(", ");
  }
  text += "budget: " + budget_text(eviction);
  for (const Field& field : kFields) {
    if (field.write == nullptr || field.write(eviction) == field.write(defaults)) continue;
    text.append(", ").append(field.name).append(": ").append(field.write(eviction));
  }
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
    fail_at(node, "\"%s\" lacks a budget, the tokens of a head that stay on average: write %s:256, or %s:25%%",
            evicting.c_str(), evicting.c_str(), evicting.c_str());
  }
  const std::string_view digits = name.substr(colon + 1);
  const Method* method = find_method(name.substr(plus + 1, colon - plus - 1));
  if (method == nullptr) {
    fail_at(node, "\"%s\" ends in an unknown method of eviction, known are %s", Quoted(node.scalar).c_str(),
            kMethodNames);
  }
  if (!read_percent(digits, eviction) && !(parse_number(digits, eviction.budget) && eviction.budget >= 1)) {
    fail_at(node, "\"%s\" must end in a budget: a number of tokens, or a share of them such as 25%%",
            Quoted(node.scalar).c_str());
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
