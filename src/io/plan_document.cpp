#include "io/plan_document.h"

#include "core/error.h"
#include "core/text.h"
#include "io/matrix_file.h"
#include "io/metadata_fields.h"
#include "io/policy_yaml.h"
#include "io/yaml_document.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace kvq::io {
namespace {

using Kind = YamlNode::Kind;

constexpr std::array<const char*, solver::kCosts> kCostNames = {"bytes", "seconds", "loss"};  // by solver::Cost

void require_map(const YamlNode& node, const char* key) {
  if (node.kind != Kind::kMap) fail(KVQ_E_FORMAT, "yaml line %d: %s must be a map", node.line, key);
}

/// check_plan_text() for a file's text, with the line.
void check_text(int line, std::string_view text, size_t most, const char* key) {
  try {
    check_plan_text(text, most, key);
  } catch (const Error& error) {
    fail(KVQ_E_FORMAT, "yaml line %d: %s", line, error.what());
  }
}

void read_expected(const YamlNode& node, solver::Costs& expected) {
  require_map(node, "expected");
  for (const auto& [name, value] : node.members) {
    const auto found = std::find(kCostNames.begin(), kCostNames.end(), name);
    if (found == kCostNames.end()) fail_unknown(value, name, "bytes, seconds, loss");
    double& cost = expected[static_cast<size_t>(found - kCostNames.begin())];
    const char* end = value.scalar.data() + value.scalar.size();
    const auto [stop, code] = std::from_chars(value.scalar.data(), end, cost);
    if (value.kind == Kind::kScalar && code == std::errc() && stop == end && cost >= 0.0 && std::isfinite(cost)) {
      continue;
    }
    fail(KVQ_E_FORMAT, "yaml line %d: %s is \"%s\", must be a number that is not negative", value.line, name.c_str(),
         Quoted(value.scalar).c_str());
  }
}

void read_weights(const YamlNode& node, PlanDocument& plan) {
  require_map(node, "weights");
  if (node.members.size() > kMaxPlanMatrices) {
    fail(KVQ_E_FORMAT, "yaml line %d: weights has %zu matrices, at most %zu are read", node.line, node.members.size(),
         kMaxPlanMatrices);
  }
  for (const auto& [name, value] : node.members) {
    check_text(value.line, name, kMaxMatrixName, "a matrix's name");
    const auto scheme =
        value.kind == Kind::kScalar ? weights::parse_scheme(value.scalar) : std::optional<weights::Scheme>();
    if (!scheme.has_value()) {
      fail(KVQ_E_FORMAT, "yaml line %d: the scheme of \"%s\" is \"%s\", must be the name of a scheme, like tcx-3",
           value.line, Quoted(name).c_str(), Quoted(value.scalar).c_str());
    }
    plan.add(name, *scheme);
  }
}

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
  const auto name_of = [this](int32_t i) { return std::string_view(matrices[static_cast<size_t>(i)].name); };
  std::sort(by_name.begin(), by_name.end(), [&](int32_t a, int32_t b) { return name_of(a) < name_of(b); });
  const auto twice = std::adjacent_find(by_name.begin(), by_name.end(),
                                        [&](int32_t a, int32_t b) { return name_of(a) == name_of(b); });
  if (twice == by_name.end()) return;
  fail(KVQ_E_ARGUMENT, "the matrix \"%s\" occurs twice", Quoted(name_of(*twice)).c_str());
}

const PlanDocument::Matrix* PlanDocument::find(std::string_view name) const {
  const auto at = std::lower_bound(by_name.begin(), by_name.end(), name, [this](int32_t i, std::string_view wanted) {
    return matrices[static_cast<size_t>(i)].name < wanted;
  });
  if (at == by_name.end()) return nullptr;
  const Matrix& matrix = matrices[static_cast<size_t>(*at)];
  return matrix.name == name ? &matrix : nullptr;
}

bool is_plan(const YamlNode& root) {
  return std::any_of(root.members.begin(), root.members.end(),
                     [](const auto& member) { return member.first == "weights" || member.first == "cache"; });
}

PlanDocument read_plan(Allocator& allocator, std::string_view text) {
  const YamlNode root = parse_yaml(text, kMaxPlanBytes);
  PlanDocument plan(allocator);
  require_map(root, "a plan");
  bool has_version = false;
  for (const auto& [name, value] : root.members) {
    if (name == "version") {
      has_version = true;
      read_int(value, "version", 1, 1);
    } else if (name == "note") {
      if (value.kind != Kind::kScalar) fail(KVQ_E_FORMAT, "yaml line %d: note must be text", value.line);
      check_text(value.line, value.scalar, kMaxPlanNote, "note");
      plan.note = value.scalar;
    } else if (name == "expected") {
      read_expected(value, plan.expected);
    } else if (name == "weights") {
      read_weights(value, plan);
    } else if (name == "cache") {
      plan.policy.emplace(read_policy(allocator, value));
    } else {
      fail_unknown(value, name, "version, note, expected, weights, cache");
    }
  }
  if (!has_version) fail(KVQ_E_FORMAT, "yaml line %d: a plan lacks \"version\"", root.line);
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
