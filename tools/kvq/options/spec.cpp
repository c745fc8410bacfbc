#include "options/spec.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "llama/error.h"
#include "options/budget.h"
#include "options/spec_advice.h"
#include "options/usage_error.h"
#include "terminal/text_file.h"

namespace cli {
namespace {

constexpr size_t kMaxTrainedBytes = size_t{4} << 30;
constexpr size_t kTypeWithin = 4096;  // bytes from a trained file's begin
constexpr std::string_view kCommvq = "commvq:";
constexpr std::string_view kMoqae = "moqae:";
constexpr const char* kCentres = "+centres";
constexpr int32_t kBudgetOfShare = 1 << 20;  // in policies, where every compression names a budget of its own

bool names_gain_shape(std::string_view name) {
  return name.size() == 3 && (name.starts_with("gs") || name.starts_with("gt")) && name[2] >= '0' && name[2] <= '9';
}

/// A SPEC taken apart: BASE[@FILE...][+METHOD:BUDGET].
struct Parts {
  std::string base;                // a short form or a policy file
  std::vector<std::string> files;  // trained codebooks and routers
  std::string method;              // empty: no eviction
  Budget budget;
};

/// Take "+METHOD:BUDGET" off the end, if it is there. Messages begin with what was `given`, option and SPEC.
void take_eviction(const std::string& given, std::string& spec, Parts& parts) {
  const size_t colon = spec.rfind(':');
  const size_t plus = spec.rfind('+', colon);
  if (colon == std::string::npos || plus == std::string::npos) return;
  const std::string_view method = std::string_view(spec).substr(plus + 1, colon - plus - 1);
  if (method.empty() || method.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789") != std::string_view::npos) {
    return;
  }
  if (method == "nocentre") {
    throw UsageError(given + ": +nocentre goes without a file of centres: write " + spec.substr(0, plus) +
                     ":FILE, or " + spec.substr(0, colon));
  }
  if (method == "centres") {
    throw UsageError(given + ": the file of formats with +centres goes behind @: write " + spec.substr(0, colon) +
                     "@FILE");
  }
  parts.budget = parse_budget(given, spec.substr(colon + 1));
  parts.method = method;
  spec.resize(plus);
}

Parts take_apart(const std::string& given, std::string spec) {
  Parts parts;
  take_eviction(given, spec, parts);
  for (size_t at = spec.rfind('@'); at != std::string::npos; at = spec.rfind('@')) {
    if (at + 1 == spec.size()) throw UsageError(given + ": there is no FILE behind the @");
    parts.files.insert(parts.files.begin(), spec.substr(at + 1));
    spec.resize(at);
  }
  const size_t colon = std::min(spec.find(':'), spec.size());
  if (const auto centred = around_centres(spec.substr(0, colon)); centred.has_value() && colon < spec.size()) {
    parts.files.insert(parts.files.begin(), spec.substr(colon + 1));
    spec = *centred;
  }
  for (const std::string_view prefix : {kCommvq, kMoqae}) {
    if (!spec.starts_with(prefix)) continue;
    parts.files.insert(parts.files.begin(), spec.substr(prefix.size()));
    spec = prefix.substr(0, prefix.size() - 1);
  }
  parts.base = std::move(spec);
  return parts;
}

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

/// Read the file as what it says it is.
void load_trained(kvq_context* context, const std::string& given, const std::string& path, Spec& spec) {
  const std::string file = read_text(path, kMaxTrainedBytes);
  const std::string_view begin = std::string_view(file).substr(0, kTypeWithin);
  const auto is = [begin](std::string_view type) { return begin.find(type) != std::string_view::npos; };
  if (is("\"kvq.router\"")) return load_as(context, given, path, file, "routers", spec.router);
  if (is("\"kvq.centres\"")) return load_as(context, given, path, file, "centres", spec.centres);
  load_as(context, given, path, file, "codebooks", spec.codebook);
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

/// Whether a YAML text has sections that plans have and policies have not.
bool is_plan(std::string_view text) {
  const auto has = [text](std::string_view key) {
    return text.starts_with(key) || text.find("\n" + std::string(key)) != std::string_view::npos;
  };
  return has("cache:") || has("weights:");
}

kvq::Policy load_policy(kvq_context* context, const std::string& base) {
  if (!names_file(base)) return kvq::Policy::load(context, base);
  const std::string text = read_text(base, kMaxPlanBytes);
  try {
    return is_plan(text) ? kvq::Plan::load(context, text).policy() : kvq::Policy::load(context, text);
  } catch (const kvq::Error& error) {
    throw llama::Error("policy file " + base + ": " + error.what());
  }
}

}  // namespace

std::optional<std::string> around_centres(const std::string& formats) {
  const size_t slash = formats.find('/');
  const std::string keys = formats.substr(0, slash);
  if (!names_gain_shape(keys)) return {};
  if (slash == std::string::npos) return keys + kCentres;
  const std::string values = formats.substr(slash + 1);
  if (!names_gain_shape(values)) return {};
  return keys + kCentres + "/" + values + kCentres;
}

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

Spec load_spec(kvq_context* context, const std::string& spec, const std::string& option) {
  const std::string given = option + " " + spec;
  const Parts parts = take_apart(given, spec);
  Spec loaded;
  for (const std::string& path : parts.files) load_trained(context, given, path, loaded);
  if (parts.base == kCommvq.substr(0, kCommvq.size() - 1) && parts.files.empty()) {
    throw UsageError(given + ": there is no file with codebooks: write commvq:FILE; `kvq train codebook` makes one");
  }
  try {
    const bool is_routed = parts.base == kMoqae.substr(0, kMoqae.size() - 1);
    loaded.policy = is_routed ? routed_policy(context, given, loaded.router) : load_policy(context, parts.base);
    if (!parts.method.empty()) {
      const bool share = parts.budget.tokens == 0;
      loaded.policy = loaded.policy.with_eviction(context, parts.method, share ? kBudgetOfShare : parts.budget.tokens);
      if (share) loaded.kept_share = parts.budget.percent / 100.0;
    }
  } catch (const UsageError&) {
    throw;
  } catch (const kvq::Error& error) {
    if (names_file(parts.base)) throw;
    throw UsageError(given + ": " + error.what());
  }
  return loaded;
}

Spec load_spec(const Engine& engine, const std::string& spec, const std::string& option) {
  return load_spec(engine.context, beside_model(engine.directory, spec, option), option);
}

}  // namespace cli
