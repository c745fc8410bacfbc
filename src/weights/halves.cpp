#include "weights/halves.h"

#include "core/error.h"
#include "core/float16.h"
#include "core/tensor.h"
#include "weights/row_scales.h"

#include <algorithm>
#include <cstring>

namespace kvq::weights {

void store_halves(Allocator& allocator, SteppedLoops& loops, const void* w, kvq_dtype dtype, Matrix& matrix) {
  const int32_t rows_of_step = std::max(1, static_cast<int32_t>(SteppedLoops::kStep / halves_time(1, matrix.in)));
  const auto in = static_cast<size_t>(matrix.in);
  Vector<float> row(in, allocator);
  double weights = 0.0;
  double errors = 0.0;
  for (int32_t r = 0; r < matrix.out; ++r) {
    read_floats(w, dtype, static_cast<size_t>(r) * in, matrix.in, row.data());
    check_finite(row, r, "w");
    const std::span<uint8_t> panel = matrix.panel(r / kTileRows);
    for (size_t i = 0; i < in; ++i) {
      const uint16_t half = to_float16(row[i]);
      if (!is_finite_float16(half)) {
        fail(KVQ_E_ARGUMENT, "w[%d, %zu] is %g, too large for FP16", r, i, static_cast<double>(row[i]));
      }
      std::memcpy(panel.data() + 2 * (i * kTileRows + static_cast<size_t>(r % kTileRows)), &half, sizeof(half));
      const auto miss = static_cast<double>(from_float16(half)) - static_cast<double>(row[i]);
      errors += miss * miss;
      weights += static_cast<double>(row[i]) * static_cast<double>(row[i]);
    }
    loops.rows_done(r + 1);
    if ((r + 1) % rows_of_step == 0) loops.done(halves_time(rows_of_step, matrix.in));
  }
  loops.finish();
  matrix.error = weights > 0.0 ? errors / weights : 0.0;
}

}  // namespace kvq::weights
