#include "weights/scheme.h"

#include <algorithm>
#include <cstdio>

namespace kvq::weights {
namespace {

constexpr std::array<const char*, 4> kFamilyNames = {"nuq", "vq", "tcq", "tcx"};  // by Family

}  // namespace

Segments Scheme::segments(int32_t in) const {
  if (!has_halves()) return Segments(Segment{{family, quarters}, 0, in});
  return {Segment{{family, quarters - 1}, 0, in / 2}, Segment{{family, quarters + 1}, in / 2, in / 2}};
}

std::array<char, kSchemeNameSize> scheme_name(const Scheme& scheme) {
  if (scheme == kFloat16Scheme) return {"fp16"};
  std::array<char, kSchemeNameSize> name{};
  std::snprintf(name.data(), name.size(), "%s-%g", kFamilyNames[static_cast<size_t>(scheme.family)], scheme.bits());
  return name;
}

int32_t index_of(const Scheme& scheme) {
  return static_cast<int32_t>(std::find(kSchemes.begin(), kSchemes.end(), scheme) - kSchemes.begin());
}

std::optional<Scheme> parse_scheme(std::string_view name) {
  const auto found = std::find_if(kSchemes.begin(), kSchemes.end(),
                                  [&](const Scheme& scheme) { return name == scheme_name(scheme).data(); });
  if (found == kSchemes.end()) return std::nullopt;
  return *found;
}

}  // namespace kvq::weights
