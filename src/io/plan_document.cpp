#include "io/plan_document.h"

#include "core/error.h"
#include "core/number_text.h"
#include "core/text.h"
#include "io/matrix_file.h"
#include "io/metadata_fields.h"
#include "io/policy_yaml.h"
#include "io/yaml_document.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

namespace kvq::io {
namespace {

constexpr std::array<std::string_view, solver::kCosts> kCostNames = {"bytes", "seconds", "loss"};  // by solver::Cost

/// check_plan_text() for a file's text, with the line.
void check_text(const YamlNode& node, std::string_view text, size_t most, const char* key) {
  try {
    check_plan_text(text, most, key);
  } catch (const Error& error) {
    fail_at(node, "%s", error.what());
  }
}

void read_expected(const YamlNode& node, const char* key, PlanDocument& plan) {
  require_map(node, key);
  for (const auto& [name, value] : node.members) {
    const auto* found = std::find(kCostNames.begin(), kCostNames.end(), name);
    if (found == kCostNames.end()) fail_unknown(value, name, list_of(kCostNames));
    double& cost = plan.expected[static_cast<size_t>(found - kCostNames.begin())];
    const bool is_cost = value.is_scalar() && parse_number(value.scalar, cost) && cost >= 0.0 && std::isfinite(cost);
    if (!is_cost) refuse(value, name, "a number that is not negative");
  }
}

void read_weights(const YamlNode& node, const char* key, PlanDocument& plan) {
  require_map(node, key);
  if (node.members.size() > kMaxPlanMatrices) {
    fail_at(node, "weights has %zu matrices, at most %zu are read", node.members.size(), kMaxPlanMatrices);
  }
  for (const auto& [name, value] : node.members) {
    check_text(value, name, kMaxMatrixName, "a matrix's name");
    const auto scheme = value.is_scalar() ? weights::parse_scheme(value.scalar) : std::optional<weights::Scheme>();
    if (!scheme.has_value()) {
      fail_at(value, "the scheme of \"%s\" is \"%s\", must be the name of a scheme, like tcx-3", Quoted(name).c_str(),
              Quoted(value.scalar).c_str());
    }
    plan.add(name, *scheme);
  }
}

void read_note(const YamlNode& node, const char* key, PlanDocument& plan) {
  if (!node.is_scalar()) fail_at(node, "note must be text");
  check_text(node, node.scalar, kMaxPlanNote, key);
  plan.note = node.scalar;
}

constexpr auto kMembers = std::to_array<Member<PlanDocument>>(
    {{"version", [](const YamlNode& node, const char* key, PlanDocument&) { read_int(node, key, 1, 1); }},
     {"note", read_note},
     {"expected", read_expected},
     {"weights", read_weights},
     {"cache", [](const YamlNode& node, const char*, PlanDocument& plan) {
        plan.policy.emplace(read_policy(*plan.matrices.get_allocator().source, node));
      }}});

/// YAML text in double quotes.
std::string quoted(std::string_view text) {
  std::string result = "\"";
  for (const char each : text) {
    if (each == '"' || each == '\\') result += '\\';
    result += each;
  }
  return result + '"';
}

std::string indented(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size() - 1) + 1;
    result.append("  ").append(text.substr(0, end));
    text.remove_prefix(end);
  }
  return result;
}

}  // namespace

void check_plan_text(std::string_view text, size_t most, const char* argument) {
  check_note(text, most, argument);
  const auto is_control = [](char each) {
    const auto code = static_cast<unsigned char>(each);
    return code < 0x20 || code == 0x7F;
  };
  // YAML has control characters beyond ASCII: U+0080 to U+009F, and U+2028, U+2029 and U+FEFF, which end lines or
  // texts.
  constexpr std::array<std::string_view, 3> kOthers = {"\u2028", "\u2029", "\uFEFF"};
  bool is_plain = std::none_of(text.begin(), text.end(), is_control);
  for (const std::string_view each : kOthers) is_plain = is_plain && text.find(each) == std::string_view::npos;
  for (size_t at = text.find('\xC2'); at != std::string_view::npos; at = text.find('\xC2', at + 1)) {
    is_plain = is_plain && static_cast<unsigned char>(text[at + 1]) >= 0xA0;
  }
  if (!is_plain) fail(KVQ_E_ARGUMENT, "%s has control characters: \"%s\"", argument, Quoted(text).c_str());
}

void PlanDocument::add(std::string_view name, const weights::Scheme& scheme) {
  matrices.push_back({String(name, *matrices.get_allocator().source), scheme});
}

void PlanDocument::seal() {
  by_name.resize(matrices.size());
  std::iota(by_name.begin(), by_name.end(), 0);
  const auto name_of = [this](int32_t i) { return name(i); };
  std::ranges::sort(by_name, {}, name_of);
  const auto twice = std::ranges::adjacent_find(by_name, {}, name_of);
  if (twice == by_name.end()) return;
  fail(KVQ_E_ARGUMENT, "the matrix \"%s\" occurs twice", Quoted(name_of(*twice)).c_str());
}

const PlanDocument::Matrix* PlanDocument::find(std::string_view wanted) const {
  const auto at = std::ranges::lower_bound(by_name, wanted, {}, [this](int32_t i) { return name(i); });
  return at != by_name.end() && name(*at) == wanted ? &matrices[static_cast<size_t>(*at)] : nullptr;
}

bool is_plan(const YamlNode& root) { return root.member("weights") != nullptr || root.member("cache") != nullptr; }

PlanDocument read_plan(Allocator& allocator, std::string_view text) {
  const YamlNode root = parse_yaml(text, kMaxPlanBytes);
  PlanDocument plan(allocator);
  require_map(root, "a plan");
  read_members(root, kMembers, plan);
  if (root.member("version") == nullptr) fail_at(root, "a plan lacks \"version\"");
  plan.seal();
  return plan;
}

std::string plan_yaml(const PlanDocument& plan) {
  std::string text = "version: 1\n";
  if (!plan.note.empty()) text += "note: " + quoted(plan.note) + "\n";
  std::string expected;
  for (size_t i = 0; i < kCostNames.size(); ++i) {
    if (plan.expected[i] == 0.0) continue;
    expected += (expected.empty() ? "" : ", ") + std::string(kCostNames[i]) + ": ";
    expected += std::string_view(NumberText(plan.expected[i]));
  }
  if (!expected.empty()) text += "expected: {" + expected + "}\n";
  if (!plan.matrices.empty()) text += "weights:\n";
  for (const PlanDocument::Matrix& each : plan.matrices) {
    text += "  " + quoted(each.name) + ": " + weights::scheme_name(each.scheme).data() + "\n";
  }
  if (plan.policy.has_value()) text += "cache:\n" + indented(write_policy(*plan.policy));
  return text;
}

}  // namespace kvq::io
