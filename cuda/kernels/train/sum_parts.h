#pragma once

#include <cstdint>

namespace kvq::cuda {

/// Sums of a block of a product: each of its threads has a square of them in registers.
inline constexpr int32_t kTile = 64;
/// Products that are added up in float.
inline constexpr int32_t kSumChunk = 512;

constexpr int32_t tiles(int32_t lines) { return (lines + kTile - 1) / kTile; }

/// How sums of [rows][columns] over `depth` tokens are split so that small ones keep a GPU busy too: by sizes alone.
struct SumParts {
  int32_t count;
  int32_t tokens;  // of each but the last, which may have fewer

  constexpr SumParts(int32_t rows, int32_t columns, int32_t depth) : count(1), tokens(kSumChunk) {
    constexpr int64_t kBlocks = 512;
    const int32_t chunks = (depth + kSumChunk - 1) / kSumChunk;
    const int64_t blocks = int64_t{tiles(rows)} * tiles(columns);
    const auto wanted = static_cast<int32_t>((kBlocks + blocks - 1) / blocks);
    const int32_t at_most = chunks < wanted ? chunks : wanted;
    tokens = (chunks + at_most - 1) / at_most * kSumChunk;
    count = (depth + tokens - 1) / tokens;
  }
};

}  // namespace kvq::cuda
