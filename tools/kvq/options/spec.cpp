#include "options/spec.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <span>

#include "llama/error.h"
#include "options/model_options.h"
#include "terminal/files.h"

namespace cli {
namespace {

constexpr size_t kMaxTrainedBytes = size_t{4} << 30;
constexpr size_t kMaxPlanBytes = size_t{64} << 20;  // a policy has less
constexpr int32_t kBudgetOfShare = 1 << 20;         // in policies, where every compression names a budget of its own

template <typename Trained>
void load_as(kvq_context* context, const std::string& given, const std::string& path, const std::string& file,
             const std::string& what, Trained& trained) {
  if (trained != nullptr) throw UsageError(given + ": " + path + " is the second file with " + what);
  try {
    trained = Trained::load(context, std::as_bytes(std::span(file)));
  } catch (const kvq::Error& error) {
    throw llama::Error(what + " " + path + ": " + error.what());
  }
}

/// Read the file as what it is or, where it is nothing, as what the SPEC needs, whose reader says why.
void load_trained(kvq_context* context, const SpecParts& parts, const std::string& path, Spec& spec) {
  const std::string file = read_text(path, kMaxTrainedBytes);
  kvq_file_kind kind = KVQ_FILE_UNKNOWN;
  kvq::checked(kvq_file_type, context, file.data(), file.size(), &kind);
  const bool is_unknown = kind == KVQ_FILE_UNKNOWN;
  if (kind == KVQ_FILE_ROUTER || (is_unknown && parts.base == kMoqae)) {
    return load_as(context, parts.given, path, file, "routers", spec.router);
  }
  if (kind == KVQ_FILE_CENTRES || (is_unknown && !around_centres(parts.name).empty())) {
    return load_as(context, parts.given, path, file, "centres", spec.centres);
  }
  load_as(context, parts.given, path, file, "codebooks", spec.codebook);
}

/// The experts are those that the routers were trained for; the first page stays FP16.
kvq::Policy routed_policy(kvq_context* context, const std::string& given, const kvq::Router& router) {
  if (router == nullptr) {
    throw UsageError(given + ": there is no file with routers: write moqae:FILE; `kvq train router` makes one");
  }
  return kvq::Policy::load(
      context, "version: 1\nsink: 1\nrouter: {experts: [" + std::string(router.describe().experts) + "]}\n");
}

bool names_file(const std::string& base) {
  std::error_code ignored;
  return base.ends_with(".yaml") || base.ends_with(".yml") || std::filesystem::exists(base, ignored);
}

kvq::Policy load_policy(kvq_context* context, const std::string& base) {
  if (!names_file(base)) return kvq::Policy::load(context, base);
  const std::string text = read_text(base, kMaxPlanBytes);
  try {
    kvq_file_kind kind = KVQ_FILE_UNKNOWN;
    kvq::checked(kvq_file_type, context, text.data(), text.size(), &kind);
    return kind == KVQ_FILE_PLAN ? kvq::Plan::load(context, text).policy() : kvq::Policy::load(context, text);
  } catch (const kvq::Error& error) {
    throw llama::Error("policy file " + base + ": " + error.what());
  }
}

}  // namespace

kvq::Plan load_plan(kvq_context* context, const std::string& path) {
  const std::string text = read_text(path, kMaxPlanBytes);
  try {
    return kvq::Plan::load(context, text);
  } catch (const kvq::Error& error) {
    throw llama::Error("plan " + path + ": " + error.what());
  }
}

int32_t Spec::budget_after(int32_t prompt) const {
  if (kept_share == 0.0) return 0;
  return llama::budget_of_share(kept_share, prompt, policy.describe().eviction_window);
}

void add_eviction(kvq_context* context, const SpecParts& parts, Spec& spec) {
  if (parts.method.empty()) return;
  const bool share = parts.budget.tokens == 0;
  spec.policy = spec.policy.with_eviction(context, parts.method, share ? kBudgetOfShare : parts.budget.tokens);
  if (share) spec.kept_share = parts.budget.percent / 100.0;
}

Spec load_spec(kvq_context* context, const SpecParts& parts) {
  Spec loaded;
  for (const std::string& path : parts.files) load_trained(context, parts, path, loaded);
  if (parts.base == kCommvq && parts.files.empty()) {
    throw UsageError(parts.given +
                     ": there is no file with codebooks: write commvq:FILE; `kvq train codebook` makes one");
  }
  try {
    loaded.policy =
        parts.base == kMoqae ? routed_policy(context, parts.given, loaded.router) : load_policy(context, parts.base);
    add_eviction(context, parts, loaded);
  } catch (const kvq::Error& error) {
    if (names_file(parts.base)) throw;
    throw UsageError(parts.given + ": " + error.what());
  }
  return loaded;
}

Spec load_spec(kvq_context* context, const std::string& spec, const std::string& option) {
  return load_spec(context, parse_spec(option, spec));
}

Spec load_spec(const Engine& engine, const std::string& spec, const std::string& option) {
  SpecParts parts = parse_spec(option, spec);
  find_beside(engine.directory, parts);
  return load_spec(engine.context, parts);
}

int32_t key_stages(int32_t bits, int32_t head_dim) {
  constexpr double kIndexBits = 6.0;
  return std::max(static_cast<int32_t>(std::lround(bits * (head_dim / 2) / kIndexBits)), 1);
}

}  // namespace cli
