#include "spec.h"

#include <algorithm>
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

/** The short form with a method of eviction at its end. */
std::string with_suffix(const std::string& spec, const AddedEviction& eviction) {
  return spec + "+" + eviction.method + ":" + std::to_string(eviction.budget);
}

/** Where a document's first word or bracket is, after comments. */
size_t content_begin(const std::string& yaml) {
  size_t at = yaml.find_first_not_of(" \t\r\n");
  while (at != std::string::npos && yaml[at] == '#') at = yaml.find_first_not_of(" \t\r\n", yaml.find('\n', at));
  return at;
}

/** A policy file's text with a method of eviction: files are a map in braces, one of a key a line, or a short form. */
std::string with_member(std::string yaml, const AddedEviction& eviction) {
  const std::string member =
      "eviction: {method: " + eviction.method + ", budget: " + std::to_string(eviction.budget) + "}";
  const size_t begin = content_begin(yaml);
  if (begin == std::string::npos) return yaml;
  if (yaml[begin] == '{') return yaml.insert(begin + 1, member + ", ");
  const size_t end = std::min(yaml.find_first_of(" \t\r\n", begin), yaml.size());
  if (yaml.find(':', begin) == std::string::npos) return with_suffix(yaml.substr(begin, end - begin), eviction);
  return yaml + "\n" + member + "\n";
}

llama::PolicyHandle load_policy(kvq_context* context, const std::string& spec, const AddedEviction* eviction) {
  std::error_code ignored;
  if (names_yaml_file(spec) || std::filesystem::exists(spec, ignored)) {
    try {
      const std::string yaml = read_text(spec, kMaxPolicyBytes);
      return llama::load_policy(context, eviction != nullptr ? with_member(yaml, *eviction) : yaml);
    } catch (const llama::Error& error) {
      throw llama::Error("policy file " + spec + ": " + error.what());
    }
  }
  const std::string text = eviction != nullptr ? with_suffix(spec, *eviction) : spec;
  try {
    return llama::load_policy(context, text);
  } catch (const llama::Error& error) {
    throw UsageError("--kv " + text + ": " + error.what());
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

Spec load(kvq_context* context, const std::string& spec, const AddedEviction* eviction) {
  // The name of a format or a policy file, then that of a file of codebooks.
  const bool is_short = spec.starts_with(kCommvq);
  const size_t separator = is_short ? kCommvq.size() - 1 : spec.rfind('@');
  if (separator == std::string::npos) return {load_policy(context, spec, eviction), nullptr};
  const size_t end = is_short ? eviction_begin(spec) : spec.size();
  llama::CodebookHandle codebook = load_codebooks(context, spec.substr(separator + 1, end - separator - 1));
  return {load_policy(context, spec.substr(0, separator) + spec.substr(end), eviction), std::move(codebook)};
}

}  // namespace

Spec load_spec(kvq_context* context, const std::string& spec) { return load(context, spec, nullptr); }

Spec load_spec(kvq_context* context, const std::string& spec, const AddedEviction& eviction) {
  return load(context, spec, &eviction);
}

}  // namespace cli
