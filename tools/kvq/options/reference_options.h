#pragma once

#include <optional>
#include <string>

#include "options/model_options.h"

namespace cli {

/// What every command that compares a format with a reference can be told.
struct ReferenceOptions : ModelOptions {
  std::optional<std::string> against;  // nothing: not given
  bool against_original = false;       // with the model's own weights, not those of a file

  /// The SPEC of the cache to compare with; empty: nothing is compared.
  std::string reference() const;
  /// Why there is no reference, for a report.
  std::string why_no_reference() const;
  /// The reference; a UsageError that names `--against` if it evicts.
  std::optional<Spec> load_reference(const Engine& engine) const;
};

/// Add `--against`.
void add_against_option(Command command, ReferenceOptions& options);
/// Add `--against-original`.
void add_against_original_flag(Command command, ReferenceOptions& options);

}  // namespace cli
