#include "weights/quantize.h"

#include "core/error.h"
#include "core/float16.h"
#include "core/scratch.h"
#include "core/tensor.h"
#include "weights/hessian.h"
#include "weights/rotation.h"
#include "weights/tile_encoder.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

namespace kvq::weights {
namespace {

constexpr int32_t kMostPieces = 16;  // of scratch memory for a caller's threads, of which we know no number

/// Of a panel, squared and in units of the weights.
struct Energies {
  double weights = 0.0;
  double errors = 0.0;
  double proxy_weights = 0.0;
  double proxy_errors = 0.0;
};

void check_finite(std::span<const float> row, int32_t index, const char* argument) {
  const auto bad = std::find_if_not(row.begin(), row.end(), [](float x) { return std::isfinite(x); });
  if (bad == row.end()) return;
  fail(KVQ_E_ARGUMENT, "%s[%d, %td] is %g, must be finite", argument, index, bad - row.begin(),
       static_cast<double>(*bad));
}

class Quantizer {
 public:
  Quantizer(Allocator& allocator, Parallel& parallel, const QuantizeOptions& options, const void* w, kvq_dtype dtype,
            Matrix& matrix)
      : parallel_(parallel),
        options_(options),
        w_(w),
        dtype_(dtype),
        matrix_(matrix),
        scratch_(allocator),
        encoders_(StlAllocator<TileEncoder>(allocator)),
        energies_(static_cast<size_t>(panels_of(matrix.out)), StlAllocator<Energies>(allocator)) {
    make_signs(options.seed, matrix.signs);
    find_scales(allocator);
    for (const Segment& segment : matrix.segments) encoders_.emplace_back(allocator, segment.code);
    if (options.hessian != nullptr) {
      hessian_.emplace(allocator, parallel, options.hessian, matrix, options.damping);
    }
  }

  void run(const TrainingProgress& progress) {
    size_t floats = 0;
    for (const TileEncoder& encoder : encoders_) floats = std::max(floats, encoder.work_floats());
    work_floats_ = floats;
    const int32_t pieces = parallel_.n_threads() > 0 ? parallel_.n_threads() : kMostPieces;
    scratch_.prepare(static_cast<size_t>(pieces), (panel_floats() + work_floats_) * sizeof(float));
    const int32_t panels = panels_of(matrix_.out);
    for (int32_t begin = 0; begin < panels; begin += pieces) {
      parallel_.run(std::min(pieces, panels - begin), [&](int32_t i) noexcept { encode_panel(begin + i); });
      if (!progress.report(static_cast<double>(std::min(begin + pieces, panels)) / panels)) {
        fail(KVQ_E_CANCELLED, "quantizing was cancelled after %d of %d rows", begin * kTileRows, matrix_.out);
      }
    }
    Energies all;
    for (const Energies& each : energies_) {
      all.weights += each.weights;
      all.errors += each.errors;
      all.proxy_weights += each.proxy_weights;
      all.proxy_errors += each.proxy_errors;
    }
    matrix_.error = all.weights > 0.0 ? all.errors / all.weights : 0.0;
    matrix_.proxy_error = all.proxy_weights > 0.0 ? all.proxy_errors / all.proxy_weights : 0.0;
  }

 private:
  size_t panel_floats() const { return 2 * kTileRows * static_cast<size_t>(matrix_.in); }
  float row_scale(int32_t row) const {
    return row < matrix_.out ? matrix_.scale * from_float16(matrix_.row_scales[static_cast<size_t>(row)]) : 0.0F;
  }

  /// Root mean squares of the rows, as shares of the largest one: halves have too little range for small weights.
  void find_scales(Allocator& allocator) {
    const auto in = static_cast<size_t>(matrix_.in);
    Vector<float> row(in, StlAllocator<float>(allocator));
    Vector<double> scales(static_cast<size_t>(matrix_.out), StlAllocator<double>(allocator));
    double largest = 0.0;
    for (int32_t r = 0; r < matrix_.out; ++r) {
      read_floats(w_, dtype_, static_cast<size_t>(r) * in, matrix_.in, row.data());
      check_finite(row, r, "w");
      double sum = 0.0;
      for (const float x : row) sum += static_cast<double>(x) * static_cast<double>(x);
      scales[static_cast<size_t>(r)] = std::sqrt(sum / static_cast<double>(in));
      largest = std::max(largest, scales[static_cast<size_t>(r)]);
    }
    if (largest < static_cast<double>(std::numeric_limits<float>::min())) return;  // all rows count as zeros
    matrix_.scale = static_cast<float>(largest);
    for (size_t r = 0; r < scales.size(); ++r) {
      matrix_.row_scales[r] = to_float16(static_cast<float>(scales[r] / largest));
    }
  }

  /// Rotated rows of unit variance in coding order, [16, in].
  void load_panel(int32_t panel, float* numbers) noexcept {
    const auto in = static_cast<size_t>(matrix_.in);
    std::fill_n(numbers, kTileRows * in, 0.0F);
    for (int32_t r = 0; r < kTileRows; ++r) {
      const int32_t row = panel * kTileRows + r;
      const float scale = row_scale(row);
      if (scale == 0.0F) continue;
      float* out = numbers + static_cast<size_t>(r) * in;
      read_floats(w_, dtype_, static_cast<size_t>(row) * in, matrix_.in, out);
      rotate(matrix_.signs, {out, in});
      for (size_t i = 0; i < in; ++i) out[i] /= scale;
      order_columns(out);
    }
  }

  void order_columns(float* row) const noexcept {
    for (const Segment& segment : matrix_.segments) {
      if (coding_order(segment.code, 1) == 1) continue;
      for (int32_t i = 0; i < segment.columns; i += kTileColumns) {
        float* tile = row + segment.first_column + i;
        std::array<float, kTileColumns> ordered;
        for (int32_t c = 0; c < kTileColumns; ++c)
          ordered[static_cast<size_t>(c)] = tile[coding_order(segment.code, c)];
        std::copy(ordered.begin(), ordered.end(), tile);
      }
    }
  }

  void encode_panel(int32_t panel) noexcept {
    const ScratchPool::Piece piece(scratch_);
    auto* numbers = reinterpret_cast<float*>(piece.data());
    float* errors = numbers + panel_floats() / 2;
    const std::span<float> work(numbers + panel_floats(), work_floats_);
    load_panel(panel, numbers);
    const std::span<uint8_t> codes = matrix_.panel(panel);
    std::fill(codes.begin(), codes.end(), uint8_t{0});
    std::array<double, kTileRows> squares{};  // of the scales
    for (int32_t r = 0; r < kTileRows; ++r) {
      const auto scale = static_cast<double>(row_scale(panel * kTileRows + r));
      squares[static_cast<size_t>(r)] = scale * scale;
    }
    // From the last column to the first: LDLQ corrects a column for the errors of those behind it.
    size_t end = codes.size();
    const Segments& segments = matrix_.segments;
    for (size_t s = segments.size(); s-- > 0;) {
      const size_t tile_bytes = segments[s].code.tile_bytes();
      for (int32_t i = segments[s].columns / kTileColumns; i-- > 0;) {
        end -= tile_bytes;
        const int32_t tile = segments[s].first_column / kTileColumns + i;
        encode_tile(encoders_[s], tile, numbers, errors, work, codes.subspan(end, tile_bytes), squares,
                    energies_[static_cast<size_t>(panel)]);
      }
    }
  }

  void encode_tile(const TileEncoder& encoder, int32_t tile, const float* numbers, float* errors, std::span<float> work,
                   std::span<uint8_t> stream, const std::array<double, kTileRows>& squares,
                   Energies& energies) noexcept {
    const auto in = static_cast<size_t>(matrix_.in);
    const size_t first = static_cast<size_t>(tile) * kTileColumns;
    TileNumbers weights;
    TileNumbers missed{};  // of the tile
    TileNumbers beyond{};  // sums of the errors beyond, and within as far as they are known
    TileNumbers beyond_weights{};
    for (size_t r = 0; r < kTileRows; ++r) std::copy_n(numbers + r * in + first, kTileColumns, weights[r].begin());
    if (hessian_.has_value()) {
      hessian_->sum_beyond(tile, errors, beyond);
      hessian_->sum_beyond(tile, numbers, beyond_weights);
    }
    const int32_t together = coded_together(encoder.code());
    for (int32_t begin = kTileColumns - together; begin >= 0; begin -= together) {
      TileNumbers targets = weights;
      if (hessian_.has_value()) {
        add_within(tile, begin, together, missed, beyond);
        add_within(tile, begin, together, weights, beyond_weights);
        if (options_.feed_back) add_columns(beyond, begin, together, targets);
      }
      TileNumbers decoded;
      encoder.encode(targets, begin, work, stream, decoded);
      for (size_t r = 0; r < kTileRows; ++r) {
        for (auto c = static_cast<size_t>(begin); c < static_cast<size_t>(begin + together); ++c) {
          missed[r][c] = weights[r][c] - decoded[r][c];
        }
      }
      if (hessian_.has_value()) {
        add_columns(missed, begin, together, beyond);
        add_columns(weights, begin, together, beyond_weights);
        for (size_t r = 0; r < kTileRows; ++r) {
          energies.proxy_errors += squares[r] * hessian_->energy(tile, begin, together, beyond[r]);
          energies.proxy_weights += squares[r] * hessian_->energy(tile, begin, together, beyond_weights[r]);
        }
      }
    }
    const double damping = hessian_.has_value() ? hessian_->damping() : 0.0;
    for (size_t r = 0; r < kTileRows; ++r) {
      std::copy(missed[r].begin(), missed[r].end(), errors + r * in + first);
      const double of_weights = squares[r] * sum_of_squares(weights[r]);
      const double of_errors = squares[r] * sum_of_squares(missed[r]);
      energies.weights += of_weights;
      energies.errors += of_errors;
      energies.proxy_weights -= damping * of_weights;
      energies.proxy_errors -= damping * of_errors;
    }
  }

  /// To the columns of a block, what the columns of the tile behind it pass on.
  void add_within(int32_t tile, int32_t begin, int32_t count, const TileNumbers& numbers,
                  TileNumbers& sums) const noexcept {
    for (int32_t j = begin + count; j < kTileColumns; ++j) {
      for (int32_t c = begin; c < begin + count; ++c) {
        const float factor = hessian_->factor(tile, j, c);
        for (size_t r = 0; r < kTileRows; ++r) {
          sums[r][static_cast<size_t>(c)] += numbers[r][static_cast<size_t>(j)] * factor;
        }
      }
    }
  }

  static void add_columns(const TileNumbers& from, int32_t begin, int32_t count, TileNumbers& to) noexcept {
    for (size_t r = 0; r < kTileRows; ++r) {
      for (auto c = static_cast<size_t>(begin); c < static_cast<size_t>(begin + count); ++c) to[r][c] += from[r][c];
    }
  }

  static double sum_of_squares(std::span<const float> numbers) noexcept {
    double sum = 0.0;
    for (const float x : numbers) sum += static_cast<double>(x) * static_cast<double>(x);
    return sum;
  }

  Parallel& parallel_;
  const QuantizeOptions& options_;
  const void* w_;
  const kvq_dtype dtype_;
  Matrix& matrix_;
  ScratchPool scratch_;
  Vector<TileEncoder> encoders_;  // [segments]
  Vector<Energies> energies_;     // [panels]
  std::optional<Hessian> hessian_;
  size_t work_floats_ = 0;
};

/// Tiles of halves, [16 columns][16 rows].
void store_halves(Allocator& allocator, const void* w, kvq_dtype dtype, Matrix& matrix) {
  const auto in = static_cast<size_t>(matrix.in);
  Vector<float> row(in, StlAllocator<float>(allocator));
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
  }
  matrix.error = weights > 0.0 ? errors / weights : 0.0;
}

}  // namespace

Matrix quantize(Allocator& allocator, Parallel& parallel, const QuantizeOptions& options, const void* w,
                kvq_dtype dtype, int32_t out, int32_t in, const TrainingProgress& progress) {
  Matrix matrix(allocator, options.scheme, out, in);
  if (options.bias != nullptr) {
    matrix.bias.assign(options.bias, options.bias + out);
    check_finite(matrix.bias, 0, "bias");
  }
  if (options.scheme.family == Family::kFloat16) {
    store_halves(allocator, w, dtype, matrix);
    return matrix;
  }
  Quantizer(allocator, parallel, options, w, dtype, matrix).run(progress);
  return matrix;
}

}  // namespace kvq::weights
