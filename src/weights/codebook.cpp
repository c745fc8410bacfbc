#include "weights/codebook.h"

#include "core/error.h"

#include <algorithm>
#include <array>
#include <utility>

namespace kvq::weights {
namespace {

struct Entry {
  Family family;
  int32_t quarters;
  float unit;
  size_t first_level;
  size_t levels;
  int32_t index_bits;
  uint32_t addend;
};

#include "weights/codebook_data.inc"

static_assert(std::ranges::all_of(kEntries, [](const Entry& entry) { return entry.index_bits <= kMostIndexBits; }));
static_assert(std::ranges::all_of(kEntries, [](const Entry& entry) {
  return entry.family != Family::kTcq || entry.addend == 1;
}));

constexpr Codebook make_codebook(const Entry& entry) {
  return {{entry.family, entry.quarters},
          entry.unit,
          std::span<const int8_t>(kLevels).subspan(entry.first_level, entry.levels),
          entry.index_bits,
          entry.addend};
}

template <size_t... i>
constexpr std::array<Codebook, sizeof...(i)> make_codebooks(std::index_sequence<i...> /*each*/) {
  return {make_codebook(kEntries[i])...};
}

constexpr auto kCodebooks = make_codebooks(std::make_index_sequence<kEntries.size()>());

}  // namespace

const Codebook& codebook_of(const Code& code) {
  for (const Codebook& each : kCodebooks) {
    if (each.code == code) return each;
  }
  fail(KVQ_E_UNSUPPORTED, "there is no codebook for %d quarters of a bit of family %d", code.quarters,
       static_cast<int>(code.family));
}

void decode_tile(const Codebook& codebook, std::span<const uint8_t> stream, std::span<int8_t> levels) {
  const Code& code = codebook.code;
  for (int32_t step = 0; step < code.steps(); ++step) {
    const uint32_t window = window_at(code, stream, step);
    for (int32_t dim = 0; dim < code.dims(); ++dim) {
      const Place place = place_of(code, step, dim);
      levels[static_cast<size_t>(place.row * kTileColumns + place.column)] =
          static_cast<int8_t>(level_of(codebook, window, dim));
    }
  }
}

}  // namespace kvq::weights
