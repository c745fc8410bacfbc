// Computes src/weights/codebook_data.inc: the levels and units of every code, from nothing but a seed. Takes minutes.
//
//   kvq_weight_codebooks > src/weights/codebook_data.inc

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <utility>
#include <vector>

#include "codebook_table.h"
#include "core/memory.h"
#include "weights/codebook.h"
#include "weights/scheme.h"
#include "weights/trellis_search.h"

namespace {

using namespace kvq;
using namespace kvq::weights;
using namespace kvq::tools;

/// Mean squared error of normal numbers on the best paths.
double trellis_error(const Codebook& codebook, int32_t tiles) {
  Allocator allocator({}, 0);
  const StateLevels levels(allocator, codebook);
  std::vector<float> work(search_floats(codebook.code));
  std::vector<uint8_t> stream(codebook.code.tile_bytes());
  std::vector<float> targets(kTileWeights);
  double error = 0.0;
  double energy = 0.0;
  for (int32_t tile = 0; tile < tiles; ++tile) {
    for (size_t i = 0; i < targets.size(); ++i) {
      targets[i] = static_cast<float>(normal(4000, static_cast<uint64_t>(tile) * kTileWeights + i));
      energy += static_cast<double>(targets[i] * targets[i]);
    }
    error +=
        static_cast<double>(search_trellis(codebook.code, levels, *trellis_kernels().front(), targets, work, stream));
  }
  return error / energy;
}

/// The best unit between two, by trying.
void find_unit(Codebook& codebook, double low, double high, int32_t tiles) {
  const auto error_at = [&](double unit) {
    codebook.unit = static_cast<float>(unit);
    return trellis_error(codebook, tiles);
  };
  constexpr double kGolden = 0.6180339887;
  double a = high - kGolden * (high - low);
  double b = low + kGolden * (high - low);
  double error_a = error_at(a);
  double error_b = error_at(b);
  while (high - low > 0.004 * low) {
    if (error_a < error_b) {
      high = b;
      b = a;
      error_b = error_a;
      a = high - kGolden * (high - low);
      error_a = error_at(a);
    } else {
      low = a;
      a = b;
      error_a = error_b;
      b = low + kGolden * (high - low);
      error_b = error_at(b);
    }
  }
  codebook.unit = static_cast<float>(0.5 * (low + high));
}

/// The addend whose hashes make the best code of this width.
uint32_t find_addend(Codebook codebook) {
  constexpr uint64_t kCandidates = 64;
  constexpr size_t kFinalists = 6;
  std::vector<std::pair<double, uint32_t>> candidates;
  const auto error_of = [&](uint32_t addend, int32_t tiles) {
    codebook.addend = addend;
    return trellis_error(codebook, tiles);
  };
  for (uint64_t i = 0; i < kCandidates; ++i) {
    const auto addend = static_cast<uint32_t>(splitmix64(kSeed + 5000, i) & 0xFFFFU) | 1U;
    candidates.emplace_back(error_of(addend, 6), addend);
  }
  std::sort(candidates.begin(), candidates.end());
  candidates.resize(kFinalists);
  for (auto& [error, addend] : candidates) error = error_of(addend, 48);
  return std::min_element(candidates.begin(), candidates.end())->second;
}

struct Entry {
  const char* family;
  int32_t quarters;
  double unit;
  size_t first;
  size_t count;
  int32_t index_bits;
  uint32_t addend;
};

class Output {
 public:
  size_t add_levels(const std::vector<int32_t>& levels) {
    const size_t first = levels_.size();
    levels_.insert(levels_.end(), levels.begin(), levels.end());
    return first;
  }
  void add(const Entry& entry, double error) {
    entries_.push_back(entry);
    std::fprintf(stderr, "%-6s %.2f bits  unit %.6f  error %.6f\n", entry.family, entry.quarters / 4.0, entry.unit,
                 error);
  }
  void print() const {
    std::printf("// Written by tools/codebooks/weight_codebooks.cpp.\n\n// clang-format off\n");
    std::printf("constexpr std::array<int8_t, %zu> kLevels = {", levels_.size());
    for (size_t i = 0; i < levels_.size(); ++i) {
      std::printf("%s%d,", i % 28 == 0 ? "\n" : "", levels_[i]);
    }
    std::printf("\n};\n\nconstexpr std::array<Entry, %zu> kEntries = {{\n", entries_.size());
    for (const Entry& each : entries_) {
      std::printf("  {Family::%s, %d, %.8gF, %zu, %zu, %d, %uU},\n", each.family, each.quarters, each.unit, each.first,
                  each.count, each.index_bits, each.addend);
    }
    std::printf("}};\n// clang-format on\n");
  }

 private:
  std::vector<int32_t> levels_;
  std::vector<Entry> entries_;
};

void add_table(Output& output, const char* family, int32_t quarters, int32_t index_bits, const Table& table) {
  const size_t first = output.add_levels(table.levels);
  output.add({family, quarters, table.unit, first, table.levels.size(), index_bits, 0}, table.error);
}

void add_trellis(Output& output) {
  constexpr int32_t kTiles = 48;
  Table table;
  size_t first = 0;
  int32_t index_bits = 0;
  std::vector<int8_t> levels;
  for (int32_t quarters = 6; quarters <= 20; quarters += 2) {
    const int32_t wanted = quarters <= 16 ? 9 : quarters == 18 ? 10 : 11;
    if (wanted != index_bits) {
      index_bits = wanted;
      table = trellis_table(index_bits);
      first = output.add_levels(table.levels);
      levels.assign(table.levels.begin(), table.levels.end());
    }
    Codebook codebook{{Family::kTcq, quarters}, 0.0F, levels, index_bits, 1};
    find_unit(codebook, 0.75 * table.unit, 1.1 * table.unit, kTiles);
    output.add({"kTcq", quarters, static_cast<double>(codebook.unit), first, levels.size(), index_bits, 1},
               trellis_error(codebook, 2 * kTiles));
  }
}

void add_single_trellis(Output& output) {
  constexpr int32_t kTiles = 48;
  constexpr int32_t kIndexBits = 7;
  const Table table = quantile_table();
  const size_t first = output.add_levels(table.levels);
  const std::vector<int8_t> levels(table.levels.begin(), table.levels.end());
  for (int32_t quarters = 6; quarters <= 20; quarters += 2) {
    Codebook codebook{{Family::kTcx, quarters}, static_cast<float>(table.unit), levels, kIndexBits, 0};
    codebook.addend = find_addend(codebook);
    find_unit(codebook, 0.8 * table.unit, 1.2 * table.unit, kTiles);
    output.add(
        {"kTcx", quarters, static_cast<double>(codebook.unit), first, levels.size(), kIndexBits, codebook.addend},
        trellis_error(codebook, 2 * kTiles));
  }
}

}  // namespace

int main() {
  Output output;
  for (const int32_t bits : {1, 2, 3, 4, 5, 6, 8}) add_table(output, "kNuq", 4 * bits, bits, scalar_table(bits));
  for (int32_t quarters = 6; quarters <= 20; quarters += 2) {
    add_table(output, "kVq", quarters, quarters / 2, vector_table(quarters));
  }
  add_trellis(output);
  add_single_trellis(output);
  output.print();
  return 0;
}
