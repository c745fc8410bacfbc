#include "spec.h"

#include <filesystem>
#include <span>
#include <string_view>
#include <utility>

#include "text_file.h"
#include "usage_error.h"

namespace cli {
namespace {

constexpr size_t kMaxPolicyBytes = 1 << 20;
constexpr size_t kMaxCodebookBytes = size_t{4} << 30;
constexpr std::string_view kCommvq = "commvq:";

bool names_yaml_file(const std::string& spec) { return spec.ends_with(".yaml") || spec.ends_with(".yml"); }

llama::PolicyHandle load_policy(kvq_context* context, const std::string& spec) {
  std::error_code ignored;
  if (names_yaml_file(spec) || std::filesystem::exists(spec, ignored)) {
    try {
      return llama::load_policy(context, read_text(spec, kMaxPolicyBytes));
    } catch (const llama::Error& error) {
      throw llama::Error("policy file " + spec + ": " + error.what());
    }
  }
  try {
    return llama::load_policy(context, spec);
  } catch (const llama::Error& error) {
    throw UsageError("--kv " + spec + ": " + error.what());
  }
}

llama::CodebookHandle load_codebooks(kvq_context* context, const std::string& path) {
  const std::string file = read_text(path, kMaxCodebookBytes);
  try {
    return llama::load_codebook(context, std::as_bytes(std::span(file)));
  } catch (const llama::Error& error) {
    throw llama::Error("codebooks " + path + ": " + error.what());
  }
}

/** Where "+METHOD:BUDGET" begins at the end of a short form, or its end. */
size_t eviction_begin(const std::string& spec) {
  const size_t colon = spec.rfind(':');
  const size_t plus = spec.rfind('+');
  const bool ends_in_budget = colon != std::string::npos && colon + 1 < spec.size() &&
                              spec.find_first_not_of("0123456789", colon + 1) == std::string::npos;
  return ends_in_budget && plus != std::string::npos && plus < colon ? plus : spec.size();
}

}  // namespace

Spec load_spec(kvq_context* context, const std::string& spec) {
  // The name of a format or a policy file, then that of a file of codebooks.
  const bool is_short = spec.starts_with(kCommvq);
  const size_t separator = is_short ? kCommvq.size() - 1 : spec.rfind('@');
  if (separator == std::string::npos) return {load_policy(context, spec), nullptr};
  const size_t end = is_short ? eviction_begin(spec) : spec.size();
  llama::CodebookHandle codebook = load_codebooks(context, spec.substr(separator + 1, end - separator - 1));
  return {load_policy(context, spec.substr(0, separator) + spec.substr(end)), std::move(codebook)};
}

}  // namespace cli
