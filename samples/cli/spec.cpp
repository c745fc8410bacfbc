#include "spec.h"

#include <filesystem>

#include "text_file.h"
#include "usage_error.h"

namespace cli {
namespace {

constexpr size_t kMaxPolicyBytes = 1 << 20;

bool names_yaml_file(const std::string& spec) { return spec.ends_with(".yaml") || spec.ends_with(".yml"); }

}  // namespace

llama::PolicyHandle load_spec(kvq_context* context, const std::string& spec) {
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

}  // namespace cli
