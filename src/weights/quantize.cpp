#include "weights/quantize.h"

#include "core/error.h"
#include "core/float16.h"
#include "core/scratch.h"
#include "core/tensor.h"
#include "weights/hessian.h"
#include "weights/rotation.h"
#include "weights/row_scales.h"
#include "weights/tile_encoder.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

namespace kvq::weights {
namespace {

constexpr int32_t kMostPieces = 16;  // of scratch memory for a caller's threads, whose number is unknown

/// Errors of a panel, squared and in units of the weights.
struct Energies {
  double weights = 0.0;
  double errors = 0.0;
  double proxy_weights = 0.0;
  double proxy_errors = 0.0;
};

class Quantizer {
 public:
  Quantizer(Allocator& allocator, const Quantizers& by, const QuantizeOptions& options, const void* w, kvq_dtype dtype,
            Matrix& matrix)
      : allocator_(allocator),
        parallel_(by.parallel),
        device_(by.device),
        options_(options),
        w_(w),
        dtype_(dtype),
        matrix_(matrix),
        scratch_(allocator),
        encoders_(allocator),
        energies_(static_cast<size_t>(panels_of(matrix.out)), allocator) {
    make_signs(options.seed, matrix.signs);
    find_row_scales(allocator, parallel_, w, dtype, matrix);
    for (const Segment& segment : matrix.segments) encoders_.emplace_back(allocator, segment.code);
    if (options.hessian != nullptr) {
      hessian_.emplace(allocator, parallel_, device_, options.hessian, matrix, options.damping);
    }
  }

  void run(const TrainingProgress& progress) {
    const Owned<PanelCoder> coder = make_coder();
    coder == nullptr ? run_on_threads(progress) : run_on(*coder, progress);
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
  size_t panel_floats() const { return kTileRows * static_cast<size_t>(matrix_.in); }
  float row_scale(int32_t row) const {
    return row < matrix_.out ? matrix_.scale * from_float16(matrix_.row_scales[static_cast<size_t>(row)]) : 0.0F;
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

  Owned<PanelCoder> make_coder() {
    if (device_ == nullptr) return {nullptr, Deleter<PanelCoder>(allocator_, 0, 0)};
    return device_->make_coder(allocator_, {.scheme = matrix_.scheme,
                                            .out = matrix_.out,
                                            .in = matrix_.in,
                                            .hessian = hessian_.has_value() ? &*hessian_ : nullptr,
                                            .feed_back = hessian_.has_value() && options_.feed_back});
  }

  void run_on_threads(const TrainingProgress& progress) {
    for (const TileEncoder& encoder : encoders_) work_floats_ = std::max(work_floats_, encoder.work_floats());
    const int32_t pieces = parallel_.n_threads() > 0 ? parallel_.n_threads() : kMostPieces;
    scratch_.prepare(static_cast<size_t>(pieces), (2 * panel_floats() + work_floats_) * sizeof(float));
    for_batches(pieces, progress, [&](int32_t begin, int32_t panels) {
      parallel_.run(panels, [&](int32_t i) noexcept { encode_panel(begin + i); });
    });
  }

  void run_on(PanelCoder& coder, const TrainingProgress& progress) {
    const int32_t most = std::min(coder.panels(), panels_of(matrix_.out));
    const size_t floats = static_cast<size_t>(most) * panel_floats();
    const size_t sums = hessian_.has_value() ? floats : 0;
    Unwritten<float> numbers(allocator_, floats);
    Unwritten<float> error_sums(allocator_, sums);
    Unwritten<float> number_sums(allocator_, sums);
    const auto of_panel = [&](Unwritten<float>& all, int32_t i) {
      return all.data() + (all.size() == 0 ? 0 : static_cast<size_t>(i) * panel_floats());
    };
    for_batches(most, progress, [&](int32_t begin, int32_t panels) {
      parallel_.run(panels, [&](int32_t i) noexcept {
        load_panel(begin + i, of_panel(numbers, i));
        if (begin > 0 || sums == 0) return;
        std::fill_n(of_panel(error_sums, i), panel_floats(), 0.0F);  // on these threads, not on the one that downloads
        std::fill_n(of_panel(number_sums, i), panel_floats(), 0.0F);
      });
      const auto n = static_cast<size_t>(panels);
      coder.encode({.panels = panels,
                    .numbers = {numbers.data(), n * panel_floats()},
                    .codes = {matrix_.panel(begin).data(), n * panel_bytes(matrix_.scheme, matrix_.in)},
                    .error_sums = {error_sums.data(), std::min(sums, n * panel_floats())},
                    .number_sums = {number_sums.data(), std::min(sums, n * panel_floats())}});
      parallel_.run(panels, [&](int32_t i) noexcept {
        weigh_panel(begin + i, of_panel(numbers, i), of_panel(error_sums, i), of_panel(number_sums, i));
      });
    });
  }

  template <typename Encode>
  void for_batches(int32_t most, const TrainingProgress& progress, const Encode& encode) {
    const int32_t panels = panels_of(matrix_.out);
    for (int32_t begin = 0; begin < panels; begin += most) {
      encode(begin, std::min(most, panels - begin));
      if (!progress.report(static_cast<double>(std::min(begin + most, panels)) / panels)) {
        fail(KVQ_E_CANCELLED, "quantizing was cancelled after %d of %d rows", begin * kTileRows, matrix_.out);
      }
    }
  }

  /// Calls visit(encoder, tile, stream of its codes) from the last column to the first: LDLQ corrects a column for the
  /// errors of those behind it.
  template <typename Visit>
  void for_tiles(int32_t panel, const Visit& visit) noexcept {
    const std::span<uint8_t> codes = matrix_.panel(panel);
    size_t end = codes.size();
    const Segments& segments = matrix_.segments;
    for (size_t s = segments.size(); s-- > 0;) {
      const size_t tile_bytes = segments[s].code.tile_bytes();
      for (int32_t i = segments[s].columns / kTileColumns; i-- > 0;) {
        end -= tile_bytes;
        visit(encoders_[s], segments[s].first_column / kTileColumns + i, codes.subspan(end, tile_bytes));
      }
    }
  }

  void encode_panel(int32_t panel) noexcept {
    const ScratchPool::Piece piece(scratch_);
    auto* numbers = reinterpret_cast<float*>(piece.data());
    float* errors = numbers + panel_floats();
    const std::span<float> work(errors + panel_floats(), work_floats_);
    load_panel(panel, numbers);
    const std::span<uint8_t> codes = matrix_.panel(panel);
    std::fill(codes.begin(), codes.end(), uint8_t{0});
    const Squares squares = squares_of(panel);
    for_tiles(panel, [&](const TileEncoder& encoder, int32_t tile, std::span<uint8_t> stream) noexcept {
      encode_tile(encoder, tile, numbers, errors, work, stream, squares, energies_[static_cast<size_t>(panel)]);
    });
  }

  /// Errors of a panel's codes. Sums: as in a PanelBatch.
  void weigh_panel(int32_t panel, const float* numbers, const float* error_sums, const float* number_sums) noexcept {
    const Squares squares = squares_of(panel);
    for_tiles(panel, [&](const TileEncoder& encoder, int32_t tile, std::span<uint8_t> stream) noexcept {
      TileNumbers weights;
      TileNumbers missed;
      TileNumbers beyond{};
      TileNumbers beyond_weights{};
      copy_tile(numbers, tile, weights);
      encoder.decode(stream, missed);
      for (size_t r = 0; r < kTileRows; ++r) {
        for (size_t c = 0; c < kTileColumns; ++c) missed[r][c] = weights[r][c] - missed[r][c];
      }
      if (hessian_.has_value()) {
        copy_tile(error_sums, tile, beyond);
        copy_tile(number_sums, tile, beyond_weights);
      }
      weigh_tile(encoder.code(), tile, {weights, missed, beyond, beyond_weights}, squares,
                 energies_[static_cast<size_t>(panel)]);
    });
  }

  /// Squared scales of a panel's rows.
  using Squares = std::array<double, kTileRows>;
  Squares squares_of(int32_t panel) const noexcept {
    Squares squares;
    for (int32_t r = 0; r < kTileRows; ++r) {
      const auto scale = static_cast<double>(row_scale(panel * kTileRows + r));
      squares[static_cast<size_t>(r)] = scale * scale;
    }
    return squares;
  }
  void copy_tile(const float* panel, int32_t tile, TileNumbers& to) const noexcept {
    const float* first = panel + static_cast<size_t>(tile) * kTileColumns;
    for (size_t r = 0; r < kTileRows; ++r) {
      std::copy_n(first + r * static_cast<size_t>(matrix_.in), kTileColumns, to[r].begin());
    }
  }

  void encode_tile(const TileEncoder& encoder, int32_t tile, const float* numbers, float* errors, std::span<float> work,
                   std::span<uint8_t> stream, const Squares& squares, Energies& energies) noexcept {
    TileNumbers weights;
    TileNumbers missed{};  // of the tile
    TileNumbers beyond{};  // sums of the errors beyond the tile, and of known ones within
    TileNumbers beyond_weights{};
    copy_tile(numbers, tile, weights);
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
      }
    }
    float* to = errors + static_cast<size_t>(tile) * kTileColumns;
    for (size_t r = 0; r < kTileRows; ++r) {
      std::copy(missed[r].begin(), missed[r].end(), to + r * static_cast<size_t>(matrix_.in));
    }
    weigh_tile(encoder.code(), tile, {weights, missed, beyond, beyond_weights}, squares, energies);
  }

  struct CodedTile {
    const TileNumbers& weights;
    const TileNumbers& missed;
    const TileNumbers& beyond;  // sums of errors, the tile's own included
    const TileNumbers& beyond_weights;
  };
  void weigh_tile(const Code& code, int32_t tile, const CodedTile& coded, const Squares& squares,
                  Energies& energies) const noexcept {
    if (hessian_.has_value()) {
      const int32_t together = coded_together(code);
      for (int32_t begin = kTileColumns - together; begin >= 0; begin -= together) {
        for (size_t r = 0; r < kTileRows; ++r) {
          energies.proxy_errors += squares[r] * hessian_->energy(tile, begin, together, coded.beyond[r]);
          energies.proxy_weights += squares[r] * hessian_->energy(tile, begin, together, coded.beyond_weights[r]);
        }
      }
    }
    const double damping = hessian_.has_value() ? hessian_->damping() : 0.0;
    for (size_t r = 0; r < kTileRows; ++r) {
      const double of_weights = squares[r] * sum_of_squares(coded.weights[r]);
      const double of_errors = squares[r] * sum_of_squares(coded.missed[r]);
      energies.weights += of_weights;
      energies.errors += of_errors;
      energies.proxy_weights -= damping * of_weights;
      energies.proxy_errors -= damping * of_errors;
    }
  }

  /// Feed back to the columns of a block the errors of the tile's columns behind it.
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

  Allocator& allocator_;
  Parallel& parallel_;
  Quantizing* device_;
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

/// Write tiles of FP16, [16 columns][16 rows].
void store_halves(Allocator& allocator, const void* w, kvq_dtype dtype, Matrix& matrix) {
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
  }
  matrix.error = weights > 0.0 ? errors / weights : 0.0;
}

}  // namespace

Matrix quantize(Allocator& allocator, const Quantizers& by, const QuantizeOptions& options, const void* w,
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
  Quantizer(allocator, by, options, w, dtype, matrix).run(progress);
  return matrix;
}

}  // namespace kvq::weights
