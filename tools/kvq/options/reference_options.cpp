#include "options/reference_options.h"

#include "options/command.h"

namespace cli {
namespace {

constexpr const char* kDefault = "fp16";
constexpr const char* kNone = "none";

}  // namespace

std::string ReferenceOptions::reference() const {
  if (!against && kv == kDefault && !against_original) return "";  // it would be compared with itself
  return against == kNone ? "" : against.value_or(kDefault);
}

std::string ReferenceOptions::why_no_reference() const {
  return against == kNone ? "--against none" : std::string("--kv is ") + kDefault + ", the reference itself";
}

std::optional<Spec> ReferenceOptions::load_reference(const Engine& engine) const {
  const std::string spec = reference();
  if (spec.empty()) return std::nullopt;
  Spec loaded = load_spec(engine, spec, "--against");
  if (loaded.evicts()) throw UsageError("--against " + spec + " evicts: a reference must see all tokens");
  return loaded;
}

void add_against_option(Command command, ReferenceOptions& options) {
  command
      .add_option("--against", options.against,
                  "What to compare --kv with, in a run beside it that takes as long again: a format as for --kv, but "
                  "without eviction, or none. Left out, --kv fp16 is compared with nothing")
      .show_default(kDefault);
}

void add_against_original_flag(Command command, ReferenceOptions& options) {
  command.add_flag("--against-original", options.against_original,
                   "Compare with the model's own weights instead of those of --weights");
}

}  // namespace cli
