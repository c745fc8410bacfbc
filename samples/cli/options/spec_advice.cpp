#include "options/spec_advice.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <string_view>

#include "options/spec.h"
#include "options/usage_error.h"

namespace cli {
namespace {

/// What names of other programs begin with, and the format that is nearest.
struct OtherName {
  std::string_view begin;
  std::string_view format;
};
constexpr std::array<OtherName, 17> kOtherNames = {{{"q8", "int8"},
                                                    {"fp8", "int8"},
                                                    {"f8", "int8"},
                                                    {"q6", "int8"},
                                                    {"q5", "int8"},
                                                    {"q4", "int4"},
                                                    {"iq4", "int4"},
                                                    {"nf4", "int4"},
                                                    {"fp4", "int4"},
                                                    {"mxfp4", "int4"},
                                                    {"nvfp4", "int4"},
                                                    {"q3", "int3"},
                                                    {"q2", "int2"},
                                                    {"kivi", "int2"},
                                                    {"bf16", "fp16"},
                                                    {"f16", "fp16"},
                                                    {"f32", "fp16"}}};

/// A file beside the model that a name stands for, and how it is given.
struct Beside {
  std::string file;
  std::string prefix;
  const char* maker;  // the command that makes one
};

std::optional<Beside> file_for(const std::string& name) {
  if (name == "moqae") return Beside{"moqae.safetensors", "moqae:", "kvq train router"};
  if (name.starts_with("commvq-") && name.ends_with("bit")) {
    return Beside{name + ".safetensors", "commvq:", "kvq train codebook"};
  }
  constexpr std::string_view kCentres = "-256";
  const bool is_gain_shape = name.starts_with("gs") || name.starts_with("gt");
  if (is_gain_shape && name.ends_with(kCentres)) {
    return Beside{"centres.safetensors", name.substr(0, name.size() - kCentres.size()) + ":", "kvq train centres"};
  }
  return {};
}

}  // namespace

std::string beside_model(const std::filesystem::path& model, const std::string& spec, const std::string& option) {
  const size_t plus = std::min(spec.find('+'), spec.size());
  const std::string name = spec.substr(0, plus);
  const std::optional<Beside> beside = file_for(name);
  if (!beside) return spec;
  const std::filesystem::path path = model / beside->file;
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) {
    throw UsageError(option + " " + spec + ": stands for the file " + path.string() + ", which there is not: `" +
                     beside->maker + "` makes one; write " + beside->prefix + "FILE if it is elsewhere");
  }
  return beside->prefix + path.string() + spec.substr(plus);
}

std::string advice_for(const std::string& form) {
  const size_t plus = form.rfind('+');
  if (plus != std::string::npos &&
      std::ranges::find(kEvictionMethods, std::string_view(form).substr(plus + 1)) != kEvictionMethods.end()) {
    return "; to evict takes a budget, the tokens of a head that stay on average: write " + form + ":256, or " + form +
           ":25%";
  }
  std::string lower = form;
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const auto other = std::ranges::find_if(
      kOtherNames, [&](const OtherName& each) { return std::string_view(lower).starts_with(each.begin); });
  if (other == kOtherNames.end()) return {};
  return "; what other programs call " + form + " is nearest to " + std::string(other->format);
}

}  // namespace cli
