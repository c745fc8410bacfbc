#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

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
///     SPEC    = BASE {"@" FILE} ["+" METHOD ":" BUDGET]
///     BASE    = FORMATS              a short form of the library: KEYS "/" VALUES, or one format for both
///             | SHAPED ":" FILE      gain-shape FORMATS around the trained centres of FILE
///             | TRAINED [":" FILE]   TRAINED: "commvq" or "moqae"
///             | SHAPED "-" VARIANT   the same trained elsewhere: `commvq-2bit` and `gs2-256` are files beside the
///             | TRAINED "-" VARIANT  model, `kvq bench` trains `commvq-2`, `gs2-256` and `moqae-7.5` on random numbers
///             | PATH                 a policy (YAML) or a plan
///     BUDGET  = TOKENS | SHARE "%"
struct SpecParts {
  std::string given;               // option and SPEC, with which messages begin
  std::string base;                // a short form or a path; gain-shape formats with a FILE are "+centres" already
  std::string name;                // the base without its VARIANT
  std::string variant;             // empty: none
  std::vector<std::string> files;  // in the order of the SPEC
  std::string method;              // empty: no eviction
  Budget budget;

  /// Take `file` in the place of the VARIANT.
  void use_file(const std::string& file);
};

inline constexpr const char* kCommvq = "commvq";
inline constexpr const char* kMoqae = "moqae";

/// A UsageError with advice begins with the option and the SPEC.
SpecParts parse_spec(const std::string& option, const std::string& spec);

/// Keys and values of FORMATS.
std::pair<std::string, std::string> split_formats(const std::string& formats);

/// Gain-shape FORMATS as policies name them around trained centres; empty if they are others.
std::string around_centres(const std::string& formats);

/// Put the file beside `model` into the parts for which their VARIANT, or a lone "moqae", stands. A UsageError if it is
/// absent.
void find_beside(const std::filesystem::path& model, SpecParts& parts);

}  // namespace cli
