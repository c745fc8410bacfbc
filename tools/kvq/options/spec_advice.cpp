#include "options/spec_advice.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include "options/usage_error.h"

namespace cli {
namespace {

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
  constexpr std::string_view kSuffix = "-256";
  const bool is_gain_shape = name.starts_with("gs") || name.starts_with("gt");
  if (is_gain_shape && name.ends_with(kSuffix)) {
    return Beside{"centres.safetensors", name.substr(0, name.size() - kSuffix.size()) + ":", "kvq train centres"};
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

}  // namespace cli
