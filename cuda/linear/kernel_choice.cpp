#include "linear/kernel_choice.h"

#include "kernels/linear/code_order.h"

#include <algorithm>

namespace kvq::cuda {
namespace {

using weights::Family;

/// Bytes of codes of a multiprocessor, above which a kernel of its own had better make the inputs of one row ready.
constexpr size_t kMostOwnCodes = 80 << 10;
/// Rows of a pass of the way of few rows.
constexpr int32_t kFewRowsPass = 16;

/// Cycles that a block of threads takes for a block of columns on an H100: products, or codes where rows are few.
constexpr int32_t step_cycles(Family family, int32_t tile_rows) {
  const bool few = tile_rows == kTileRowCounts[0];
  switch (family) {
    case Family::kTcx:
      return few ? 1900 : 3300;
    case Family::kFloat16:
      return few ? 1850 : 3500;
    default:
      return few ? 1300 : 2900;
  }
}
/// Cycles until a cluster has added up its sums.
constexpr int32_t meeting_cycles(int32_t tile_rows) { return tile_rows == kTileRowCounts[0] ? 3500 : 11000; }

/// Of a way of many rows.
int64_t estimated_cycles(const LinearWay& way, LinearProducts products, int32_t rows, const LinearDevice& device) {
  const LinearMatrix& matrix = products.front().matrix;
  const int32_t segments = matrix.scheme.has_halves() ? 2 : 1;
  const int32_t steps = segments * up_to(blocks_of(matrix.segments[0].columns), way.cluster);
  const int32_t clusters = blocks_for(products, kManyPanels) * up_to(rows, way.tile_rows);
  return int64_t{up_to(clusters, device.clusters[way.cluster])} *
         (int64_t{steps} * step_cycles(matrix.scheme.family, way.tile_rows) +
          (way.cluster > 1 ? meeting_cycles(way.tile_rows) : 0));
}

}  // namespace

bool can_go(const LinearWay& way, LinearProducts products, const InputRows& rows, const LinearDevice& device) {
  if (way == kFewRows) return true;
  if (way == kOwnInputs) return has_room_for_inputs(rows, device);
  if (way.own_inputs || way.cluster < 1 || way.cluster > kMostCluster || !device.has_warpgroups) return false;
  if (std::find(std::begin(kTileRowCounts), std::end(kTileRowCounts), way.tile_rows) == std::end(kTileRowCounts))
    return false;
  // Blocks of columns are whole, and each block of threads has one.
  const LinearMatrix& matrix = products.front().matrix;
  return matrix.in % (matrix.scheme.has_halves() ? 2 * kBlockColumns : kBlockColumns) == 0 &&
         way.cluster <= blocks_of(matrix.segments[0].columns) && device.clusters[way.cluster] > 0;
}

LinearWay estimated_way(LinearProducts products, const InputRows& rows, const LinearDevice& device) {
  if (code_bytes(products) <= kMostOwnCodes * static_cast<size_t>(device.multiprocessors) &&
      has_room_for_inputs(rows, device)) {
    return kOwnInputs;
  }
  // Passes that all run at once, a panel each, cost no more than one.
  const int32_t passes = up_to(rows.rows, kFewRowsPass);
  if (passes == 1 || blocks_for(products, 1) * passes <= device.multiprocessors) return kFewRows;
  LinearWay best = kFewRows;
  int64_t least = INT64_MAX;
  for_each_way(products, rows, device, [&](const LinearWay& way) {
    if (way.tile_rows == 0) return;
    const int64_t cycles = estimated_cycles(way, products, rows.rows, device);
    if (cycles >= least) return;
    least = cycles;
    best = way;
  });
  return best;
}

}  // namespace kvq::cuda
