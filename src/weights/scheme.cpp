#include "weights/scheme.h"

#include <algorithm>
#include <cstdio>

namespace kvq::weights {
namespace {

constexpr std::array<const char*, 4> kFamilyNames = {"nuq", "vq", "tcq", "tcx"};  // by Family
constexpr Scheme kFloat16Scheme = {Family::kFloat16, 64};

constexpr auto kSchemes = [] {
  std::array<Scheme, kSchemeCount> schemes{};
  size_t n = 0;
  for (const int32_t bits : {1, 2, 3, 4, 5, 6, 8}) schemes[n++] = {Family::kNuq, 4 * bits};
  for (int32_t quarters = 6; quarters <= 20; quarters += 2) schemes[n++] = {Family::kVq, quarters};
  for (int32_t quarters = 6; quarters <= 20; ++quarters) schemes[n++] = {Family::kTcq, quarters};
  for (int32_t quarters = 6; quarters <= 20; quarters += 2) schemes[n++] = {Family::kTcx, quarters};
  schemes[n++] = kFloat16Scheme;
  return schemes;
}();

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
  const auto schemes = all_schemes();
  const auto found = std::find_if(schemes.begin(), schemes.end(),
                                  [&](const Scheme& scheme) { return name == scheme_name(scheme).data(); });
  if (found == schemes.end()) return std::nullopt;
  return *found;
}

std::span<const Scheme, kSchemeCount> all_schemes() { return kSchemes; }

}  // namespace kvq::weights
