#include "options/spec.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <sstream>
#include <utility>

#include "llama/balance.h"
#include "llama/error.h"
#include "options/command.h"
#include "options/model_options.h"
#include "terminal/files.h"
#include "terminal/output.h"

namespace cli {
namespace {

template <typename Number>
bool parse(const char* begin, const char* end, Number& number) {
  const auto [stop, code] = std::from_chars(begin, end, number);
  return code == std::errc() && stop == end;
}

/// Formats of a family, without options.
std::string family(const std::string& begin) {
  std::vector<std::string> names = format_names();
  std::erase_if(names,
                [&](const std::string& name) { return !name.starts_with(begin) || name.find('+') < name.size(); });
  return joined(names);
}

/// Take "+METHOD:BUDGET" off the end, if it is there.
void take_eviction(SpecParts& parts) {
  std::string& spec = parts.base;
  const size_t colon = spec.rfind(':');
  const size_t plus = spec.rfind('+', colon);
  if (colon == std::string::npos || plus == std::string::npos) return;
  const std::string method = spec.substr(plus + 1, colon - plus - 1);
  if (method.empty() || method.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789") != std::string::npos) return;
  if (method == "nocentre") {
    throw UsageError(parts.given + ": +nocentre goes without a file of centres: write " + spec.substr(0, plus) +
                     ":FILE, or " + spec.substr(0, colon));
  }
  if (method == "centres") {
    throw UsageError(parts.given + ": the file of formats with +centres goes behind @: write " + spec.substr(0, colon) +
                     "@FILE");
  }
  parts.budget = parse_budget(parts.given, spec.substr(colon + 1));
  parts.method = method;
  spec.resize(plus);
}

constexpr std::pair<const char*, SpecParts::Scales> kScales[] = {{"weights", SpecParts::Scales::kByWeights},
                                                                 {"first", SpecParts::Scales::kByFirstTokens},
                                                                 {"none", SpecParts::Scales::kNone}};

/// Whether `name` says where scales come from, which only one may.
bool take_scales(SpecParts& parts, const std::string& name) {
  const auto* const found =
      std::ranges::find(kScales, name, [](const auto& each) { return std::string_view(each.first); });
  if (found == std::end(kScales)) return false;
  if (parts.scales != SpecParts::Scales::kDefault) {
    throw UsageError(parts.given + ": says twice where scales come from: write one of @weights, @first and @none");
  }
  parts.scales = found->second;
  return true;
}

void take_files(SpecParts& parts) {
  std::string& spec = parts.base;
  for (size_t at = spec.rfind('@'); at != std::string::npos; at = spec.rfind('@')) {
    if (at + 1 == spec.size()) throw UsageError(parts.given + ": there is no FILE behind the @");
    const std::string name = spec.substr(at + 1);
    if (!take_scales(parts, name)) parts.files.insert(parts.files.begin(), name);
    spec.resize(at);
  }
}

bool may_have_file(const std::string& name) {
  return name == kCommvq || name == kMoqae || !around_centres(name).empty();
}

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
  const std::string file = read_text(llama::path_of(path), kMaxTrainedBytes);
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

kvq::Policy load_policy(kvq_context* context, const std::string& base) {
  if (!names_file(base)) return kvq::Policy::load(context, base);
  const std::string text = read_text(llama::path_of(base), kMaxPlanBytes);
  try {
    kvq_file_kind kind = KVQ_FILE_UNKNOWN;
    kvq::checked(kvq_file_type, context, text.data(), text.size(), &kind);
    return kind == KVQ_FILE_PLAN ? kvq::Plan::load(context, text).policy() : kvq::Policy::load(context, text);
  } catch (const kvq::Error& error) {
    throw llama::Error("policy file " + base + ": " + error.what());
  }
}

bool has_scales(const kvq::Centres& centres) {
  return centres != nullptr && (centres.describe().key_scales != 0 || centres.describe().value_scales != 0);
}

/// Have sequences find scales, or not, if the SPEC says so. Scales of a file would go before those.
void apply_scales(kvq_context* context, const SpecParts& parts, Spec& spec) {
  if (parts.scales == SpecParts::Scales::kDefault) return;
  const bool calibrates = parts.scales == SpecParts::Scales::kByFirstTokens;
  try {
    spec.policy = with_calibration(context, spec.policy, calibrates);
  } catch (const kvq::Error& error) {
    throw UsageError(parts.given + ": " + error.what());
  }
  if (!has_scales(spec.centres)) return;
  throw UsageError(parts.given + ": @" + (calibrates ? "first" : "none") + " goes without a file of scales");
}

}  // namespace

int32_t Budget::of(int32_t prompt, int32_t window) const {
  return tokens > 0 ? tokens : llama::budget_of_share(percent / 100.0, prompt, window);
}

Budget parse_budget(const std::string& given, const std::string& text) {
  Budget budget{.text = text};
  const char* end = text.data() + text.size();
  if (text.ends_with('%')) {
    const bool share = parse(text.data(), end - 1, budget.percent) && budget.percent > 0.0 && budget.percent <= 100.0;
    if (!share) throw UsageError(given + ": a share of the prompt must be above 0% and at most 100%");
    return budget;
  }
  if (!parse(text.data(), end, budget.tokens) || budget.tokens < 1) {
    throw UsageError(given + ": the budget must be a number of tokens, or a percentage of the prompt such as 5%");
  }
  return budget;
}

bool names_file(const std::string& base) {
  std::error_code ignored;
  return base.ends_with(".yaml") || base.ends_with(".yml") || std::filesystem::exists(llama::path_of(base), ignored);
}

std::pair<std::string, std::string> split_formats(const std::string& formats) {
  const size_t slash = formats.find('/');
  return {formats.substr(0, slash), slash == std::string::npos ? formats : formats.substr(slash + 1)};
}

bool is_gain_shape(std::string_view format) {
  return format.size() == 3 && (format.starts_with("gs") || format.starts_with("gt")) && format[2] >= '0' &&
         format[2] <= '9';
}

std::string around_centres(const std::string& formats) {
  constexpr const char* kCentres = "+centres";
  const auto [keys, values] = split_formats(formats);
  if (!is_gain_shape(keys) || !is_gain_shape(values)) return {};
  return formats == keys ? keys + kCentres : keys + kCentres + "/" + values + kCentres;
}

void SpecParts::use_file(const std::string& file) {
  files.insert(files.begin(), file);
  const std::string centred = around_centres(name);
  base = centred.empty() ? name : centred;
  variant.clear();
}

SpecParts parse_spec(const std::string& option, const std::string& spec) {
  SpecParts parts{
      .given = option + " " + spec, .base = spec, .name = {}, .variant = {}, .files = {}, .method = {}, .budget = {}};
  take_eviction(parts);
  take_files(parts);
  const size_t end = std::min(parts.base.find_first_of(":-"), parts.base.size());
  parts.name = parts.base.substr(0, end);
  if (end == parts.base.size() || !may_have_file(parts.name)) {
    parts.name = parts.base;
  } else if (parts.base[end] == ':') {
    parts.use_file(parts.base.substr(end + 1));
  } else {
    parts.variant = parts.base.substr(end + 1);
  }
  return parts;
}

void find_beside(const std::filesystem::path& model, SpecParts& parts) {
  if (!parts.files.empty()) return;
  std::string file;
  const char* maker = nullptr;
  if (parts.base == kMoqae) {
    file = "moqae.safetensors";
    maker = "kvq train router";
  } else if (parts.name == kCommvq && parts.variant.ends_with("bit")) {
    file = parts.base + ".safetensors";
    maker = "kvq train codebook";
  } else if (parts.variant == "256" && !around_centres(parts.name).empty()) {
    file = "centres.safetensors";
    maker = "kvq train centres";
  } else {
    return;
  }
  const std::filesystem::path path = model / llama::path_of(file);
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) {
    throw UsageError(parts.given + ": stands for the file " + path.string() + ", which there is not: `" + maker +
                     "` makes one; write " + parts.name + ":FILE if it is elsewhere");
  }
  parts.use_file(path.string());
}

const std::vector<std::string>& format_names() {
  static const std::vector<std::string> names{"fp16",          "int8", "int4",          "int4+hadamard", "int3",
                                              "int3+hadamard", "int2", "int2+hadamard", "gs4",           "gs3",
                                              "gs2",           "gs1",  "gt3",           "gt2",           "gt1"};
  return names;
}

const std::vector<std::string>& eviction_methods() {
  static const std::vector<std::string> methods{"streaming", "h2o", "snapkv", "pyramid", "adasnap", "adapyramid"};
  return methods;
}

std::string spec_help() {
  std::string integers = family("int");
  integers.replace(integers.rfind(", "), 2, " and ");
  return "KV format; gs4 if hardly anything may be lost, gs2 if memory is short. There are\n" + format_names().front() +
         ", " + integers + ", integers also with +hadamard;\n" + family("gs") +
         " (a gain a token and codes of so many bits) and " + family("gt") +
         " (codes of a trellis, which lose less and take longer), around the mean of each page of keys, around nothing "
         "with +nocentre, or around trained centres with :FILE;\n"
         "KEYS/VALUES for two of these;\n"
         "commvq:FILE with a file of codebooks; moqae:FILE with a file of routers, followed by @FILE if they choose "
         "commvq;\n"
         "commvq-1bit, commvq-2bit, gs2-256 and the like and moqae for files of these names beside the model;\n"
         "a policy file (YAML) or plan, followed by @FILE for what was trained for it;\n"
         "each with scales of channels, for models with outlier channels: @weights by the model's weights, @first by "
         "each sequence's first 128 tokens, as gs and gt do unless told otherwise, @none for none, or @FILE of `kvq "
         "balance` or `kvq train centres`;\n"
         "each with +METHOD:BUDGET to evict tokens after the prompt (" +
         joined(eviction_methods()) +
         ") down to so many a head or to a share of it, as in int4+adasnap:256 or int4+adasnap:25%.\n"
         "The newest page of 32 tokens stays FP16, with codes of 3 bits and fewer the first one too";
}

kvq::Plan load_plan(kvq_context* context, const std::string& path) {
  const std::string text = read_text(llama::path_of(path), kMaxPlanBytes);
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

kvq::Policy with_calibration(kvq_context* context, const kvq::Policy& policy, bool calibrates) {
  // A policy that says so itself may not say it twice.
  std::istringstream lines(policy.save());
  std::string text;
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("calibrate:")) text += line + "\n";
  }
  return kvq::Policy::load(context, text + "calibrate: " + (calibrates ? "first" : "none") + "\n");
}

Spec load_spec(kvq_context* context, const SpecParts& parts) {
  if (parts.scales == SpecParts::Scales::kByWeights) {
    throw UsageError(parts.given + ": @weights needs a model, whose weights scales are found by");
  }
  Spec loaded;
  for (const std::string& path : parts.files) load_trained(context, parts, path, loaded);
  if (parts.base == kCommvq && parts.files.empty()) {
    throw UsageError(parts.given +
                     ": there is no file with codebooks: write commvq:FILE; `kvq train codebook` makes one");
  }
  try {
    loaded.policy =
        parts.base == kMoqae ? routed_policy(context, parts.given, loaded.router) : load_policy(context, parts.base);
    apply_scales(context, parts, loaded);
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
  const bool by_weights = parts.scales == SpecParts::Scales::kByWeights;
  if (by_weights) parts.scales = SpecParts::Scales::kDefault;
  Spec loaded = load_spec(engine.context, parts);
  if (!by_weights) return loaded;
  if (loaded.centres != nullptr) throw UsageError(parts.given + ": @weights goes without a file of centres");
  loaded.centres = engine.scales_by_weights();
  return loaded;
}

Spec load_judged_spec(const Engine& engine, const std::string& spec) {
  Spec loaded = load_spec(engine, spec);
  const bool scaled = has_scales(loaded.centres) || loaded.policy.describe().calibrates != 0;
  const SpecParts parts = parse_spec("--kv", spec);
  if (scaled || parts.base == "fp16") return loaded;
  const bool trained = loaded.codebook != nullptr || loaded.router != nullptr || loaded.centres != nullptr;
  const std::string balanced = "use the model that `kvq balance --out` writes";
  const std::string written = parts.scales == SpecParts::Scales::kNone ? "@weights or @first in place of @none"
                                                                       : "@weights or @first behind the format";
  warn_of_outliers(engine, trained ? balanced + ", and train for it" : "write " + written + ", or " + balanced);
  return loaded;
}

void warn_of_outliers(const Engine& engine, const std::string& advice) {
  static bool warned = false;
  if (std::exchange(warned, true) || !engine.has_scales_by_weights()) return;
  const llama::Outliers outliers = llama::outliers_of(engine.scales_by_weights());
  if (outliers.noise() < llama::kNoisyChannels) return;
  std::fprintf(stderr,
               "kvq: this model has outlier channels, from which formats without scales lose %.1f times what they need "
               "to (%.1f with scales): %s\n",
               outliers.noise(), outliers.scaled_noise(), advice.c_str());
}

int32_t key_stages(int32_t bits, int32_t head_dim) {
  constexpr double kIndexBits = 6.0;
  return std::max(static_cast<int32_t>(std::lround(bits * (head_dim / 2) / kIndexBits)), 1);
}

}  // namespace cli
