#include "kernels/linear/code_order.h"
#include "kernels/linear/linear.h"

namespace kvq::cuda {
namespace {

constexpr int32_t kThreads = 256;

/// Reads up to 16 bits from a stream of 32-bit words.
__device__ uint32_t read_run(const uint32_t* words, int32_t bit, int32_t n) {
  const int32_t place = bit % 32;
  uint32_t bits = words[bit / 32] >> place;
  if (place + n > 32) bits |= words[bit / 32 + 1] << (32 - place);
  return bits & ((1U << n) - 1U);
}
__device__ void write_run(uint32_t* words, int32_t bit, int32_t n, uint32_t bits) {
  const int32_t place = bit % 32;
  atomicOr(words + bit / 32, bits << place);
  if (place + n > 32) atomicOr(words + bit / 32 + 1, bits >> (32 - place));
}

/// A lane's words of a block as a stream.
struct LaneWords {
  uint32_t* block;
  weights::Code code;
  int32_t lane;

  __device__ uint32_t& word(int32_t i) const { return block[word_place(code, lane, i)]; }
  __device__ uint32_t read(int32_t bit, int32_t n) const {
    const int32_t place = bit % 32;
    uint32_t bits = word(bit / 32) >> place;
    if (place + n > 32) bits |= word(bit / 32 + 1) << (32 - place);
    return bits & ((1U << n) - 1U);
  }
  /// Writes bits; no other lane may write the same words.
  __device__ void write(int32_t bit, int32_t n, uint32_t bits) const {
    const int32_t place = bit % 32;
    word(bit / 32) |= bits << place;
    if (place + n > 32) word(bit / 32 + 1) |= bits >> (32 - place);
  }
};

/// Conversion of codes, one lane of a block per thread.
struct Order {
  weights::Code code;
  int32_t tiles;   // in the segment
  int32_t blocks;  // in the segment
  int64_t items;   // lanes of all blocks of all panels
  uint8_t* file;   // codes in file order: the segment in the first panel
  int64_t file_panel_bytes;
  uint8_t* lanes;  // codes in lane order: the segment in the first panel
  int64_t lane_panel_bytes;
};

template <bool kToLanes>
__global__ void __launch_bounds__(kThreads) order_kernel(Order order) {
  const int64_t item = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (item >= order.items) return;
  const weights::Code code = order.code;
  const auto lane = static_cast<int32_t>(item % kBlockLanes);
  const auto block = static_cast<int32_t>(item / kBlockLanes % order.blocks);
  const int64_t panel = item / kBlockLanes / order.blocks;
  uint8_t* of_block = order.lanes + panel * order.lane_panel_bytes + block * static_cast<int64_t>(block_bytes(code));
  const LaneWords words{reinterpret_cast<uint32_t*>(of_block), code, lane};
  const int32_t bits = run_bits(code);
  for (int32_t piece = 0; piece < kPieces; ++piece) {
    for (int32_t run = 0; run < runs_of_piece(code); ++run) {
      const RunPlace place = run_place(code, lane, run);
      const int32_t tile = 2 * (kPieces * block + piece) + place.tile;
      if (tile >= order.tiles) continue;
      const int32_t at = bits * (runs_of_piece(code) * piece + run);
      auto* stream = reinterpret_cast<uint32_t*>(order.file + panel * order.file_panel_bytes +
                                                 tile * static_cast<int64_t>(code.tile_bytes()));
      for (int32_t done = 0; done < bits; done += 16) {
        const int32_t n = min(bits - done, 16);
        if constexpr (kToLanes) {
          words.write(at + done, n, read_run(stream, place.bit + done, n));
        } else {
          write_run(stream, place.bit + done, n, words.read(at + done, n));
        }
      }
    }
  }
}

template <bool kToLanes>
cudaError_t launch_order(const LinearMatrix& matrix, int32_t panels, uint8_t* file, int64_t file_panel_bytes,
                         uint8_t* lanes, cudaStream_t stream) {
  int64_t file_begin = 0;
  const weights::Segments segments = matrix.scheme.segments(matrix.in);
  for (size_t i = 0; i < segments.size(); ++i) {
    const weights::Segment& segment = segments[i];
    const int32_t tiles = segment.columns / weights::kTileColumns;
    const int32_t blocks = blocks_of(segment.columns);
    const Order order{.code = segment.code,
                      .tiles = tiles,
                      .blocks = blocks,
                      .items = int64_t{panels} * blocks * kBlockLanes,
                      .file = file + file_begin,
                      .file_panel_bytes = file_panel_bytes,
                      .lanes = lanes + matrix.segments[i].begin,
                      .lane_panel_bytes = matrix.panel_bytes};
    const auto grid = static_cast<uint32_t>((order.items + kThreads - 1) / kThreads);
    order_kernel<kToLanes><<<grid, kThreads, 0, stream>>>(order);
    file_begin += int64_t{tiles} * static_cast<int64_t>(segment.code.tile_bytes());
  }
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_to_lanes(const LinearMatrix& matrix, int32_t panels, const uint8_t* file, int64_t file_panel_bytes,
                            uint8_t* lanes, cudaStream_t stream) {
  return launch_order<true>(matrix, panels, const_cast<uint8_t*>(file), file_panel_bytes, lanes, stream);
}

cudaError_t launch_from_lanes(const LinearMatrix& matrix, int32_t panels, const uint8_t* lanes, uint8_t* file,
                              int64_t file_panel_bytes, cudaStream_t stream) {
  return launch_order<false>(matrix, panels, file, file_panel_bytes, const_cast<uint8_t*>(lanes), stream);
}

}  // namespace kvq::cuda
