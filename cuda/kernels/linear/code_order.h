// Order of codes on a device: each lane of a warp reads its own codes and nothing else.
//
// A block is 16 rows by 128 columns of one code: four pieces of 32 columns, or two tiles. In each piece, lane
// (g, t) = (lane / 4, lane % 4) holds rows 2g and 2g + 1 of columns 8t … 8t + 7:
//
//   tcq             eight consecutive steps of a tile's stream
//   tcx             twice eight steps, first of columns 8t … 8t + 3
//   nuq, vq, fp16   pairs of columns c and c + 4 of one row and the other, for c = 8t … 8t + 3
//
// so the lane's codes are always pairs of weights four columns apart. A lane has 16 · quarters bits per block, in words
// interleaved by lane with as many together as one load reads. Missing columns of the last block are zeros.
#pragma once

#include "weights/scheme.h"

#include <cstddef>
#include <cstdint>

namespace kvq::cuda {

inline constexpr int32_t kBlockLanes = 32;
inline constexpr int32_t kBlockColumns = 128;
inline constexpr int32_t kPieceColumns = 32;
inline constexpr int32_t kPieces = kBlockColumns / kPieceColumns;

constexpr int32_t blocks_of(int32_t columns) { return (columns + kBlockColumns - 1) / kBlockColumns; }
/// Words of a lane per block.
constexpr int32_t words_of(const weights::Code& code) { return code.quarters / 2; }
/// Words that a lane loads at once.
constexpr int32_t words_together(const weights::Code& code) {
  return words_of(code) % 4 == 0 ? 4 : (words_of(code) % 2 == 0 ? 2 : 1);
}
constexpr size_t block_bytes(const weights::Code& code) {
  return static_cast<size_t>(words_of(code)) * kBlockLanes * sizeof(uint32_t);
}
/// Place of a lane's word i among the words of a block.
constexpr int32_t word_place(const weights::Code& code, int32_t lane, int32_t i) {
  const int32_t together = words_together(code);
  return (i / together * kBlockLanes + lane) * together + i % together;
}

/// Runs per piece: bits that are consecutive both in a file and in a lane's words.
constexpr int32_t runs_of_piece(const weights::Code& code) {
  switch (code.family) {
    case weights::Family::kTcq:
      return 1;
    case weights::Family::kTcx:
      return 2;
    case weights::Family::kVq:
      return 8;
    default:
      return 16;
  }
}
constexpr int32_t run_bits(const weights::Code& code) { return 4 * code.quarters / runs_of_piece(code); }

/// Place of a lane's run in a tile.
struct RunPlace {
  int32_t tile;  // 0 or 1 within the piece
  int32_t bit;   // in the tile's stream
};
constexpr RunPlace run_place(const weights::Code& code, int32_t lane, int32_t run) {
  const int32_t g = lane / 4;
  const int32_t t = lane % 4;
  const int32_t half = t % 2;  // half of the tile's columns
  switch (code.family) {
    case weights::Family::kVq:
      return {t / 2, code.first_bit(64 * half + 8 * g + run % 2 * 4 + run / 2)};
    case weights::Family::kTcq:
      return {t / 2, code.first_bit(64 * half + 8 * g)};
    case weights::Family::kTcx:
      return {t / 2, code.first_bit(64 * (2 * half + run) + 8 * g)};
    default: {
      const int32_t pair = run / 2;
      const int32_t row = 2 * g + pair % 2;
      const int32_t column = 8 * half + pair / 2 + 4 * (run % 2);
      if (code.family == weights::Family::kFloat16) return {t / 2, 16 * (column * weights::kTileRows + row)};
      return {t / 2, code.first_bit(column / 4 * 64 + 4 * row + column % 4)};
    }
  }
}

}  // namespace kvq::cuda
