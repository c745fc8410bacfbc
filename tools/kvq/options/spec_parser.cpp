#include "options/spec_parser.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "llama/cache_format.h"
#include "options/command.h"

namespace cli {
namespace {

template <typename Number>
bool parse(const char* begin, const char* end, Number& number) {
  const auto [stop, code] = std::from_chars(begin, end, number);
  return code == std::errc() && stop == end;
}

bool is_gain_shape(std::string_view format) {
  return format.size() == 3 && (format.starts_with("gs") || format.starts_with("gt")) && format[2] >= '0' &&
         format[2] <= '9';
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

void take_files(SpecParts& parts) {
  std::string& spec = parts.base;
  for (size_t at = spec.rfind('@'); at != std::string::npos; at = spec.rfind('@')) {
    if (at + 1 == spec.size()) throw UsageError(parts.given + ": there is no FILE behind the @");
    parts.files.insert(parts.files.begin(), spec.substr(at + 1));
    spec.resize(at);
  }
}

/// Whether files are trained for what `name` says.
bool may_have_file(const std::string& name) {
  return name == kCommvq || name == kMoqae || !around_centres(name).empty();
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

std::pair<std::string, std::string> split_formats(const std::string& formats) {
  const size_t slash = formats.find('/');
  return {formats.substr(0, slash), slash == std::string::npos ? formats : formats.substr(slash + 1)};
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
  const std::filesystem::path path = model / file;
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) {
    throw UsageError(parts.given + ": stands for the file " + path.string() + ", which there is not: `" + maker +
                     "` makes one; write " + parts.name + ":FILE if it is elsewhere");
  }
  parts.use_file(path.string());
}

}  // namespace cli
