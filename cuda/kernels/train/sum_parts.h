#pragma once

#include <cstdint>

namespace kvq::cuda {

/// Width and height of a block's part of a product; each thread has a square of its sums in registers.
inline constexpr int32_t kTile = 64;
/// Products summed in float before conversion to double.
inline constexpr int32_t kSumChunk = 512;

constexpr int32_t tiles(int32_t lines) { return (lines + kTile - 1) / kTile; }

/// Division of sums of [rows][columns] over `depth` tokens into parts, by sizes alone, so that small products keep a
/// GPU busy, too.
struct SumParts {
  int32_t count;
  int32_t tokens;  // per part; the last may have fewer

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
