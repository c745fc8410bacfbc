#pragma once

#include "kvq.hpp"
#include "llama/model.h"

namespace cli {

/// How many tokens of a KV head stay, on average: a number, or a share of the prompt.
struct Budget {
  std::string text;      // as it was given
  int32_t tokens = 0;    // 0: a share
  double percent = 0.0;  // of the prompt's tokens

  /// For a prompt of `prompt` tokens; never less than the window, which always stays.
  int32_t of(int32_t prompt, int32_t window) const;
};

/// "128" or "5%"; a UsageError for anything else that begins with what was `given`, option and value.
Budget parse_budget(const std::string& given, const std::string& text);

/// A SPEC taken apart. SPECs name the format of a cache and the files that were trained for it:
///
///     SPEC    = BASE {"@" FILE} ["@" SCALES] ["+" METHOD ":" BUDGET]
///     SCALES  = "weights"            scales of channels by the model's weights
///             | "first"              each sequence finds scales by its first tokens
///             | "none"               none, also where sequences would find them; a file of such a name is "./none"
///     BASE    = FORMATS              a short form of the library: KEYS "/" VALUES, or one format for both
///             | SHAPED ":" FILE      gain-shape FORMATS around the trained centres of FILE
///             | TRAINED [":" FILE]   TRAINED: "commvq" or "moqae"
///             | SHAPED "-" VARIANT   the same trained elsewhere: `commvq-2bit` and `gs2-256` are files beside the
///             | TRAINED "-" VARIANT  model, `kvq bench` trains `commvq-2`, `gs2-256` and `moqae-7.5` on random numbers
///             | PATH                 a policy (YAML) or a plan
///     BUDGET  = TOKENS | SHARE "%"
struct SpecParts {
  /// Where scales of channels come from. kDefault: from FILES, or what the library does by itself.
  enum class Scales { kDefault, kByWeights, kByFirstTokens, kNone };

  std::string given;               // option and SPEC, with which messages begin
  std::string base;                // a short form or a path; gain-shape formats with a FILE are "+centres" already
  std::string name;                // the base without its VARIANT
  std::string variant;             // empty: none
  std::vector<std::string> files;  // in the order of the SPEC
  Scales scales = Scales::kDefault;
  std::string method;  // empty: no eviction
  Budget budget;

  /// Take `file` in the place of the VARIANT.
  void use_file(const std::string& file);
};

inline constexpr const char* kCommvq = "commvq";
inline constexpr const char* kMoqae = "moqae";

/// A UsageError with advice begins with the option and the SPEC.
SpecParts parse_spec(const std::string& option, const std::string& spec);

/// Whether a base is the path of a policy or a plan.
bool names_file(const std::string& base);

/// Keys and values of FORMATS.
std::pair<std::string, std::string> split_formats(const std::string& formats);

/// Whether a format of keys or values alone is one of the gain-shape formats.
bool is_gain_shape(std::string_view format);

/// Gain-shape FORMATS as policies name them around trained centres; empty if they are others.
std::string around_centres(const std::string& formats);

/// Put the file beside `model` into the parts for which their VARIANT, or a lone "moqae", stands. A UsageError if it is
/// absent.
void find_beside(const std::filesystem::path& model, SpecParts& parts);

struct Engine;

/// Formats that need no file, and methods of eviction, as SPECs name them.
const std::vector<std::string>& format_names();
const std::vector<std::string>& eviction_methods();
/// What `--help` says of SPECs.
std::string spec_help();

/// A file of `kvq plan`; an Error names it.
kvq::Plan load_plan(kvq_context* context, const std::string& path);

/// What a SPEC stands for.
struct Spec {
  kvq::Policy policy = nullptr;
  kvq::Codebook codebook = nullptr;
  kvq::Router router = nullptr;
  kvq::Centres centres = nullptr;
  double kept_share = 0.0;  // as in CacheFormat

  operator llama::CacheFormat() const {
    llama::CacheFormat format(policy, codebook, router, centres);
    format.kept_share = kept_share;
    return format;
  }
  bool evicts() const { return policy.describe().eviction_budget > 0; }
  /// What kvq_compress is told after a prompt; 0: what the policy says.
  int32_t budget_after(int32_t prompt) const;
};

/// A UsageError names `option`.
Spec load_spec(kvq_context* context, const std::string& spec, const std::string& option = "--kv");
/// The same with the files beside the model that names stand for: "commvq-1bit", "gs2-256", "moqae".
Spec load_spec(const Engine& engine, const std::string& spec, const std::string& option = "--kv");

/// As load_spec(); warns once if the model has outlier channels and the SPEC no scales.
Spec load_judged_spec(const Engine& engine, const std::string& spec);
/// Warn once, if the model has outlier channels, that formats without scales lose by them; `advice` says what to do.
void warn_of_outliers(const Engine& engine, const std::string& advice);

/// What the parts of a SPEC stand for, but for a VARIANT. A UsageError if scales are to be found by a model's weights.
Spec load_spec(kvq_context* context, const SpecParts& parts);
/// The policy whose sequences find scales by their first tokens, or do not.
kvq::Policy with_calibration(kvq_context* context, const kvq::Policy& policy, bool calibrates);
/// Add the eviction of a SPEC to a policy.
void add_eviction(kvq_context* context, const SpecParts& parts, Spec& spec);

/// Stages of 64 codes for keys in `bits` bits a scalar, with one group a head: 11 and 21 for heads of 128.
int32_t key_stages(int32_t bits, int32_t head_dim);

}  // namespace cli
