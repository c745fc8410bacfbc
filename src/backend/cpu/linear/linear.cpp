#include "backend/cpu/linear/linear.h"

#include "core/scratch.h"
#include "core/tensor.h"
#include "weights/matrix.h"

#include <algorithm>
#include <cstring>

namespace kvq::cpu {
namespace {

using weights::kTileRows;
using weights::Matrix;

// Rows of activations rotated and multiplied by every panel in one pass.
constexpr int32_t kPassRows = 64;
// Sums of one kernel call: several panels at once if there are few rows.
constexpr int32_t kMostSums = kPassRows * kTileRows;
// Codes that a thread reads before it takes more work.
constexpr size_t kPieceBytes = size_t{96} << 10;
// Rough throughput of one thread, to decide whether a loop is worth sharing.
constexpr double kInputsPerMicrosecond = 2000.0;
constexpr double kBytesPerMicrosecond = 15000.0;
constexpr double kProductsPerMicrosecond = 150000.0;

/// One matrix of a call, its panels cut into pieces for threads.
struct LinearJob {
  const Matrix* matrix;
  std::byte* y;
  size_t panel_bytes;
  int32_t panels;
  int32_t piece_panels;
  int32_t first_piece;
  const weights::Codebook* codebooks[2];  // one per segment

  bool is_packed() const { return matrix->scheme.family != weights::Family::kFloat16; }
  int32_t pieces() const { return (panels + piece_panels - 1) / piece_panels; }
};

/// Memory of one call.
struct LinearSpace {
  LinearJob* jobs;
  float* work;  // [rows, in]
  ActivationGroup* groups;
  FloatGroup* float_groups;

  LinearSpace(MemoryCutter& memory, const HostLinearBatch& batch, bool packed, bool floats) {
    const int32_t in = batch.matrices.front()->in;
    const int32_t most_rows = std::min(batch.batch, kPassRows);
    const auto inputs = static_cast<size_t>(in);
    const auto rows = static_cast<size_t>(most_rows);
    const auto blocks = static_cast<size_t>(activation_blocks(in));
    const int32_t count = (most_rows + kGroupRows - 1) / kGroupRows;
    jobs = memory.take<LinearJob>(batch.matrices.size());
    groups = memory.take<ActivationGroup>(static_cast<size_t>(count));
    float_groups = memory.take<FloatGroup>(static_cast<size_t>(count));
    work = memory.take<float>(packed ? rows * inputs : 0);
    for (int32_t g = 0; g < count; ++g) {
      const auto group_rows = static_cast<size_t>(std::min(kGroupRows, most_rows - g * kGroupRows));
      auto* quads = memory.take<std::byte>(packed ? inputs * group_rows : 0);
      auto* scales = memory.take<float>(packed ? blocks * group_rows : 0);
      auto* sums = memory.take<int32_t>(packed ? kHalves * blocks * group_rows : 0);
      auto* x = memory.take<float>(floats ? inputs * group_rows : 0);
      if (jobs == nullptr) continue;  // counts only
      groups[g] = {0, in, quads, scales, sums};
      float_groups[g] = {0, in, x};
    }
  }
};

LinearJob make_job(const Matrix& matrix, void* y, CodebookSource codebook, int32_t first_piece) {
  LinearJob job = {};
  job.matrix = &matrix;
  job.y = static_cast<std::byte*>(y);
  job.panel_bytes = weights::panel_bytes(matrix.scheme, matrix.in);
  job.panels = weights::panels_of(matrix.out);
  const auto fitting = static_cast<int32_t>(kPieceBytes / job.panel_bytes);
  job.piece_panels = std::max(fitting / kLinearPanels, 1) * kLinearPanels;
  job.first_piece = first_piece;
  if (job.is_packed()) {
    size_t i = 0;
    for (const weights::Segment& segment : matrix.segments) {
      job.codebooks[i++] = &codebook(segment.code);
    }
  }
  return job;
}

/// One call, and the rows it multiplies in this pass.
struct LinearPass {
  const HostLinearBatch& batch;
  const LinearKernels& kernels;
  LinearSpace& space;
  int32_t first_row;
  int32_t rows;

  int32_t groups() const { return (rows + kGroupRows - 1) / kGroupRows; }

  void place_row(int32_t row, bool packed, bool floats) const {
    const Matrix& matrix = *batch.matrices.front();
    const auto inputs = static_cast<size_t>(matrix.in);
    const size_t offset = static_cast<size_t>(first_row + row) * inputs * dtype_bytes(batch.x_dtype);
    const ActivationRow x = {static_cast<const std::byte*>(batch.x) + offset, batch.x_dtype, matrix.in};
    if (packed) {
      const auto rotating = std::find_if_not(batch.matrices.begin(), batch.matrices.end(),
                                             [](const Matrix* each) { return each->signs.empty(); });
      kernels.round(x, (*rotating)->signs.data(), space.work + static_cast<size_t>(row) * inputs,
                    space.groups[row / kGroupRows], row % kGroupRows);
    }
    if (floats) kernels.widen(x, space.float_groups[row / kGroupRows], row % kGroupRows);
  }

  void multiply(const LinearJob& job, int32_t first_panel, int32_t panels, float* sums) const {
    const Matrix& matrix = *job.matrix;
    const auto* codes = reinterpret_cast<const uint8_t*>(matrix.codes.data());
    codes += static_cast<size_t>(first_panel) * job.panel_bytes;
    if (!job.is_packed()) {
      kernels.float16(reinterpret_cast<const uint16_t*>(codes), job.panel_bytes / sizeof(uint16_t), panels,
                      space.float_groups, groups(), sums);
      return;
    }
    std::fill_n(sums, panels * rows * kTileRows, 0.0F);
    const bool halves = matrix.scheme.has_halves();
    size_t i = 0;
    for (const weights::Segment& segment : matrix.segments) {
      const Half half = halves ? static_cast<Half>(i) : Half::kBoth;
      kernels.kernel(segment.code)({*job.codebooks[i], segment.first_column, segment.columns, half, codes,
                                    job.panel_bytes, panels, kernels.products},
                                   space.groups, groups(), sums);
      codes += static_cast<size_t>(segment.columns / weights::kTileColumns) * segment.code.tile_bytes();
      ++i;
    }
  }

  void store(const LinearJob& job, int32_t panel, const float* sums) const {
    const Matrix& matrix = *job.matrix;
    const int32_t row = panel * kTileRows;
    const size_t element = dtype_bytes(batch.y_dtype);
    const auto out = static_cast<size_t>(matrix.out);
    const size_t offset = static_cast<size_t>(first_row) * out + static_cast<size_t>(row);
    kernels.store(sums, rows,
                  {matrix.scale, job.is_packed() ? matrix.row_scales.data() + row : nullptr,
                   matrix.bias.empty() ? nullptr : matrix.bias.data() + row, std::min(kTileRows, matrix.out - row),
                   job.y + offset * element, batch.y_dtype, out * element});
  }

  void work_on_piece(int32_t piece) const {
    const LinearJob* job = space.jobs;
    while (piece >= job->first_piece + job->pieces()) ++job;
    const int32_t first = (piece - job->first_piece) * job->piece_panels;
    const int32_t end = std::min(first + job->piece_panels, job->panels);
    const int32_t at_once = rows * kLinearPanels * kTileRows <= kMostSums ? kLinearPanels : 1;
    alignas(kDataAlignment) float sums[kMostSums];
    for (int32_t panel = first; panel < end; panel += at_once) {
      const int32_t n = std::min(at_once, end - panel);
      multiply(*job, panel, n, sums);
      for (int32_t i = 0; i < n; ++i) store(*job, panel + i, sums + i * rows * kTileRows);
    }
  }
};

}  // namespace

void linear(const HostLinearBatch& batch, const LinearKernels& kernels, CodebookSource codebook, Parallel& parallel,
            ScratchPool& pool) {
  if (batch.matrices.empty() || batch.batch == 0) return;
  const auto is_float = [](const Matrix* matrix) { return matrix->scheme.family == weights::Family::kFloat16; };
  const bool floats = std::any_of(batch.matrices.begin(), batch.matrices.end(), is_float);
  const bool packed = !std::all_of(batch.matrices.begin(), batch.matrices.end(), is_float);
  MemoryCutter needed(nullptr);
  const LinearSpace counted(needed, batch, packed, floats);
  const ScratchPool::Piece piece(pool, needed.used());
  MemoryCutter memory(piece.data());
  LinearSpace space(memory, batch, packed, floats);

  int32_t pieces = 0;
  double bytes = 0.0;
  double weights = 0.0;
  for (size_t i = 0; i < batch.matrices.size(); ++i) {
    const Matrix& matrix = *batch.matrices[i];
    space.jobs[i] = make_job(matrix, batch.y[i], codebook, pieces);
    pieces += space.jobs[i].pieces();
    bytes += static_cast<double>(matrix.code_bytes());
    weights += static_cast<double>(matrix.in) * static_cast<double>(matrix.out);
  }
  const double inputs = batch.matrices.front()->in;
  for (int32_t first = 0; first < batch.batch; first += kPassRows) {
    const int32_t rows = std::min(kPassRows, batch.batch - first);
    for (int32_t row = 0; row < rows; row += kGroupRows) {
      space.groups[row / kGroupRows].rows = space.float_groups[row / kGroupRows].rows =
          std::min(kGroupRows, rows - row);
    }
    const LinearPass pass = {.batch = batch, .kernels = kernels, .space = space, .first_row = first, .rows = rows};
    parallel.run(rows, inputs * rows / kInputsPerMicrosecond,
                 [&](int32_t row) noexcept { pass.place_row(row, packed, floats); });
    parallel.run(pieces, bytes / kBytesPerMicrosecond + weights * rows / kProductsPerMicrosecond,
                 [&](int32_t index) noexcept { pass.work_on_piece(index); });
  }
}

}  // namespace kvq::cpu
