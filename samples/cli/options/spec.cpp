#include "options/spec.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "llama/error.h"
#include "options/usage_error.h"
#include "terminal/text_file.h"

namespace cli {
namespace {

constexpr size_t kMaxPolicyBytes = 1 << 20;
constexpr size_t kMaxTrainedBytes = size_t{4} << 30;
constexpr size_t kTypeWithin = 4096;  // bytes from a trained file's begin
constexpr std::string_view kCommvq = "commvq:";
constexpr std::string_view kMoqae = "moqae:";
constexpr std::string_view kCentres = "+centres";

bool names_gain_shape(std::string_view name) {
  return name.size() == 3 && (name.starts_with("gs") || name.starts_with("gt")) && name[2] >= '0' && name[2] <= '9';
}

/// FORMAT:FILE or KEYS/VALUES:FILE of gain-shape formats: the formats around centres, which the file has.
std::optional<std::string> take_centred(std::string& spec) {
  const size_t colon = spec.find(':');
  if (colon == std::string::npos) return {};
  const std::string formats = spec.substr(0, colon);
  const size_t slash = std::min(formats.find('/'), formats.size());
  const std::string keys = formats.substr(0, slash);
  const std::string values = formats.substr(std::min(slash + 1, formats.size()));
  if (!names_gain_shape(keys) || (slash < formats.size() && !names_gain_shape(values))) return {};
  spec.erase(0, colon + 1);
  const std::string centred = keys + std::string(kCentres);
  return slash < formats.size() ? centred + "/" + values + std::string(kCentres) : centred;
}

/// A SPEC taken apart: BASE[@FILE...][+METHOD:BUDGET].
struct Parts {
  std::string base;                // a short form or a policy file
  std::vector<std::string> files;  // trained codebooks and routers
  std::string method;              // empty: no eviction
  int32_t budget = 0;
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
  const auto [end, code] = std::from_chars(spec.data() + colon + 1, spec.data() + spec.size(), parts.budget);
  if (code != std::errc() || end != spec.data() + spec.size()) {
    throw UsageError(given + ": must end in a budget, a number of tokens");
  }
  parts.method = method;
  spec.resize(plus);
}

Parts take_apart(const std::string& given, std::string spec) {
  Parts parts;
  take_eviction(given, spec, parts);
  for (size_t at = spec.rfind('@'); at != std::string::npos; at = spec.rfind('@')) {
    parts.files.insert(parts.files.begin(), spec.substr(at + 1));
    spec.resize(at);
  }
  if (const auto centred = take_centred(spec)) {
    parts.files.insert(parts.files.begin(), spec);
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

/// Read `file` as what it says it is.
void load_trained(kvq_context* context, const std::string& given, const std::string& path, Spec& spec) {
  const std::string file = read_text(path, kMaxTrainedBytes);
  const bool is_router = std::string_view(file).substr(0, kTypeWithin).find("\"kvq.router\"") != std::string_view::npos;
  if (is_router ? spec.router != nullptr : spec.codebook != nullptr) {
    throw UsageError(given + ": " + path + " is the second file with " + (is_router ? "routers" : "codebooks"));
  }
  try {
    if (is_router) {
      spec.router = kvq::Router::load(context, std::as_bytes(std::span(file)));
    } else {
      spec.codebook = kvq::Codebook::load(context, std::as_bytes(std::span(file)));
    }
  } catch (const kvq::Error& error) {
    throw llama::Error((is_router ? "routers " : "codebooks ") + path + ": " + error.what());
  }
}

/// The experts are those that the routers were trained for; the first page stays FP16.
kvq::Policy routed_policy(kvq_context* context, const std::string& given, const kvq::Router& router) {
  if (router == nullptr) throw UsageError(given + ": there is no file with routers");
  return kvq::Policy::load(
      context, "version: 1\nsink: 1\nrouter: {experts: [" + std::string(router.describe().experts) + "]}\n");
}

bool names_file(const std::string& base) {
  std::error_code ignored;
  return base.ends_with(".yaml") || base.ends_with(".yml") || std::filesystem::exists(base, ignored);
}

kvq::Policy load_policy(kvq_context* context, const std::string& base) {
  if (!names_file(base)) return kvq::Policy::load(context, base);
  const std::string text = read_text(base, kMaxPolicyBytes);
  try {
    return kvq::Policy::load(context, text);
  } catch (const kvq::Error& error) {
    throw llama::Error("policy file " + base + ": " + error.what());
  }
}

}  // namespace

Spec load_spec(kvq_context* context, const std::string& spec, const std::string& option) {
  const std::string given = option + " " + spec;
  const Parts parts = take_apart(given, spec);
  Spec loaded;
  for (const std::string& path : parts.files) load_trained(context, given, path, loaded);
  try {
    const bool is_routed = parts.base == kMoqae.substr(0, kMoqae.size() - 1);
    loaded.policy = is_routed ? routed_policy(context, given, loaded.router) : load_policy(context, parts.base);
    if (!parts.method.empty()) {
      loaded.policy = loaded.policy.with_eviction(context, parts.method, parts.budget);
    }
  } catch (const UsageError&) {
    throw;
  } catch (const kvq::Error& error) {
    if (names_file(parts.base)) throw;
    throw UsageError(given + ": " + error.what());
  }
  return loaded;
}

}  // namespace cli
