// A planner's decisions as a file.
#pragma once

#include "cache/policy.h"
#include "io/yaml_document.h"
#include "solver/choice_solver.h"
#include "weights/scheme.h"

#include <optional>
#include <string>
#include <string_view>

namespace kvq::io {

inline constexpr size_t kMaxPlanBytes = size_t{64} << 20U;
inline constexpr size_t kMaxPlanNote = 4096;
inline constexpr size_t kMaxPlanMatrices = size_t{1} << 20U;

struct PlanDocument {
  explicit PlanDocument(Allocator& allocator) : matrices(allocator), by_name(allocator), note(allocator) {}

  struct Matrix {
    String name;
    weights::Scheme scheme;
  };
  /// Add a matrix at the end. Names must be unique, which seal() checks.
  void add(std::string_view name, const weights::Scheme& scheme);
  /// Index the names for find(), after the last add(). Throws KVQ_E_ARGUMENT if two are equal.
  void seal();
  /// The matrix of this name, or null.
  const Matrix* find(std::string_view name) const;

  std::string_view name(int32_t matrix) const { return matrices[static_cast<size_t>(matrix)].name; }

  Vector<Matrix> matrices;
  Vector<int32_t> by_name;  // numbers of the matrices, in the order of their names
  std::optional<Policy> policy;
  solver::Costs expected{};
  String note;
};

/// Whether a YAML document has a section that plans have and policies have not.
bool is_plan(const YamlNode& root);

/// Read a plan. Throws KVQ_E_FORMAT with the line.
PlanDocument read_plan(Allocator& allocator, std::string_view text);
/// Text that read_plan() reads as the same plan.
std::string plan_yaml(const PlanDocument& plan);

/// Check the name of a matrix, or a note: UTF-8 without control characters. Throws KVQ_E_ARGUMENT.
void check_plan_text(std::string_view text, size_t most, const char* argument);

}  // namespace kvq::io
