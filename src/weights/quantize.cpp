#include "weights/quantize.h"

#include "core/error.h"
#include "core/float16.h"
#include "core/memory.h"
#include "core/tensor.h"
#include "weights/halves.h"
#include "weights/hessian.h"
#include "weights/rotation.h"
#include "weights/row_scales.h"
#include "weights/stepped_loops.h"
#include "weights/tile_encoder.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

namespace kvq::weights {
namespace {

// Times in nanoseconds on one thread, as in SteppedLoops.
constexpr double kLevelTime = 0.4;     // to compare a number with a level
constexpr double kStateTime = 0.09;    // to extend a path of a trellis to a state
constexpr double kFeedbackTime = 0.3;  // to add an error times a factor
constexpr double kLoadTime = 8.0;      // to read, rotate and store a number

/// Time to code a tile, without feedback of errors.
double tile_time(const Code& code) {
  if (code.is_trellis()) return kTileWeights * (2 * kStates * kStateTime);
  return kTileWeights * static_cast<double>(codebook_of(code).levels.size()) * kLevelTime;
}
/// The same with feedback from `beyond` columns.
double tile_time(const Code& code, int32_t beyond) {
  return tile_time(code) + 2 * kTileWeights * beyond * kFeedbackTime;
}

double panel_time(const Matrix& matrix, bool feeds_back) {
  double time = kLoadTime * kTileRows * matrix.in;
  for (const Segment& segment : matrix.segments) {
    const int32_t tiles = segment.columns / kTileColumns;
    time += tiles * tile_time(segment.code, feeds_back ? matrix.in / 2 : 0);
  }
  return time;
}

double whole_time(const Matrix& matrix, bool has_hessian) {
  return row_scale_time(matrix.in) * matrix.out + (has_hessian ? Hessian::time(matrix.in) : 0.0) +
         panels_of(matrix.out) * panel_time(matrix, has_hessian);
}

constexpr size_t kLineFloats = kDataAlignment / sizeof(float);

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
            Matrix& matrix, const TrainingProgress& progress)
      : allocator_(allocator),
        parallel_(by.parallel),
        loops_(by.parallel, progress, whole_time(matrix, options.hessian != nullptr), matrix.out),
        device_(by.device),
        options_(options),
        w_(w),
        dtype_(dtype),
        matrix_(matrix),
        memory_(allocator),
        encoders_(allocator),
        energies_(static_cast<size_t>(panels_of(matrix.out)), allocator) {
    make_signs(options.seed, matrix.signs);
    find_row_scales(allocator, loops_, w, dtype, matrix);
    for (const Segment& segment : matrix.segments) encoders_.emplace_back(allocator, segment.code);
    if (options.hessian != nullptr) {
      hessian_.emplace(allocator, loops_, device_, options.hessian, matrix, options.damping);
    }
  }

  void run() {
    const Owned<PanelCoder> coder = make_coder();
    coder == nullptr ? run_on_threads() : run_on(*coder);
    loops_.finish();
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

  /// Memory of a panel while it is coded.
  struct Work {
    float* numbers;  // [16, in]
    float* errors;   // [16, in]
    std::span<float> search;
  };

  /// Codes as many panels at a time as there are threads, some tiles of each between reports.
  void run_on_threads() {
    size_t search_floats = 0;
    for (const TileEncoder& encoder : encoders_) search_floats = std::max(search_floats, encoder.work_floats());
    const size_t floats = (2 * panel_floats() + search_floats + kLineFloats - 1) / kLineFloats * kLineFloats;
    const int32_t most = std::min(loops_.threads(), panels_of(matrix_.out));
    memory_.resize(size(most, floats, sizeof(float)));
    const auto work_of = [&](int32_t i) {
      float* numbers = reinterpret_cast<float*>(memory_.data()) + static_cast<size_t>(i) * floats;
      float* errors = numbers + panel_floats();
      return Work{numbers, errors, {errors + panel_floats(), search_floats}};
    };
    for_batches(most, [&](int32_t begin, int32_t panels) {
      for (int32_t end = tiles(), first = end; end > 0; end = first) {
        double time = end == tiles() ? kLoadTime * kTileRows * matrix_.in : 0.0;
        while (first > 0 && time < SteppedLoops::kStep) time += time_of(--first);
        parallel_.run(panels, [&](int32_t i) noexcept { encode_tiles(begin + i, {first, end}, work_of(i)); });
        loops_.done(panels * time);
      }
    });
  }

  void run_on(PanelCoder& coder) {
    const int32_t most = std::min(coder.panels(), panels_of(matrix_.out));
    const size_t floats = static_cast<size_t>(most) * panel_floats();
    const size_t sums = hessian_.has_value() ? floats : 0;
    Unwritten<float> numbers(allocator_, floats);
    Unwritten<float> error_sums(allocator_, sums);
    Unwritten<float> number_sums(allocator_, sums);
    const auto of_panel = [&](Unwritten<float>& all, int32_t i) {
      return all.data() + (all.size() == 0 ? 0 : static_cast<size_t>(i) * panel_floats());
    };
    for_batches(most, [&](int32_t begin, int32_t panels) {
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
      loops_.done(panels * panel_time(matrix_, hessian_.has_value()));
    });
  }

  template <typename Encode>
  void for_batches(int32_t most, const Encode& encode) {
    const int32_t panels = panels_of(matrix_.out);
    for (int32_t begin = 0; begin < panels; begin += most) {
      loops_.rows_done(begin * kTileRows);
      encode(begin, std::min(most, panels - begin));
    }
  }

  int32_t tiles() const { return matrix_.in / kTileColumns; }
  double time_of(int32_t tile) const {
    const int32_t column = tile * kTileColumns;
    const auto is_of = [column](const Segment& each) { return column < each.first_column + each.columns; };
    const Segment& segment = *std::find_if(matrix_.segments.begin(), matrix_.segments.end(), is_of);
    return tile_time(segment.code, hessian_.has_value() ? matrix_.in - column : 0);
  }

  /// Tiles [begin, end) of a panel.
  struct Tiles {
    int32_t begin;
    int32_t end;
  };

  /// Calls visit(encoder, tile, stream of its codes) from the last tile to the first: LDLQ corrects a column for the
  /// errors of those behind it.
  template <typename Visit>
  void for_tiles(int32_t panel, const Tiles& range, const Visit& visit) noexcept {
    const std::span<uint8_t> codes = matrix_.panel(panel);
    size_t offset = codes.size();
    const Segments& segments = matrix_.segments;
    for (size_t s = segments.size(); s-- > 0;) {
      const size_t tile_bytes = segments[s].code.tile_bytes();
      const int32_t first = segments[s].first_column / kTileColumns;
      const int32_t count = segments[s].columns / kTileColumns;
      offset -= static_cast<size_t>(count) * tile_bytes;
      for (int32_t i = std::min(range.end - first, count); i-- > std::max(range.begin - first, 0);) {
        visit(encoders_[s], first + i, codes.subspan(offset + static_cast<size_t>(i) * tile_bytes, tile_bytes));
      }
    }
  }

  /// `work`: the panel's, from its last tiles to its first.
  void encode_tiles(int32_t panel, const Tiles& range, const Work& work) noexcept {
    if (range.end == tiles()) {
      load_panel(panel, work.numbers);
      const std::span<uint8_t> codes = matrix_.panel(panel);
      std::fill(codes.begin(), codes.end(), uint8_t{0});
    }
    const Squares squares = squares_of(panel);
    for_tiles(panel, range, [&](const TileEncoder& encoder, int32_t tile, std::span<uint8_t> stream) noexcept {
      encode_tile(encoder, tile, work, stream, squares, energies_[static_cast<size_t>(panel)]);
    });
  }

  /// Errors of a panel's codes. Sums: as in a PanelBatch.
  void weigh_panel(int32_t panel, const float* numbers, const float* error_sums, const float* number_sums) noexcept {
    const Squares squares = squares_of(panel);
    for_tiles(panel, {0, tiles()}, [&](const TileEncoder& encoder, int32_t tile, std::span<uint8_t> stream) noexcept {
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

  void encode_tile(const TileEncoder& encoder, int32_t tile, const Work& work, std::span<uint8_t> stream,
                   const Squares& squares, Energies& energies) noexcept {
    TileNumbers weights;
    TileNumbers missed{};  // of the tile
    TileNumbers beyond{};  // sums of the errors beyond the tile, and of known ones within
    TileNumbers beyond_weights{};
    copy_tile(work.numbers, tile, weights);
    if (hessian_.has_value()) {
      hessian_->sum_beyond(tile, work.errors, beyond);
      hessian_->sum_beyond(tile, work.numbers, beyond_weights);
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
      encoder.encode(targets, begin, work.search, stream, decoded);
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
    float* to = work.errors + static_cast<size_t>(tile) * kTileColumns;
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
  SteppedLoops loops_;
  Quantizing* device_;
  const QuantizeOptions& options_;
  const void* w_;
  const kvq_dtype dtype_;
  Matrix& matrix_;
  AlignedBytes memory_;           // of panels that are coded
  Vector<TileEncoder> encoders_;  // [segments]
  Vector<Energies> energies_;     // [panels]
  std::optional<Hessian> hessian_;
};

}  // namespace

Matrix quantize(Allocator& allocator, const Quantizers& by, const QuantizeOptions& options, const void* w,
                kvq_dtype dtype, int32_t out, int32_t in, const TrainingProgress& progress) {
  Matrix matrix(allocator, options.scheme, out, in);
  if (options.bias != nullptr) {
    matrix.bias.assign(options.bias, options.bias + out);
    check_finite(matrix.bias, 0, "bias");
  }
  if (options.scheme.family == Family::kFloat16) {
    SteppedLoops loops(by.parallel, progress, halves_time(out, in), out);
    store_halves(allocator, loops, w, dtype, matrix);
    return matrix;
  }
  Quantizer(allocator, by, options, w, dtype, matrix, progress).run();
  return matrix;
}

}  // namespace kvq::weights
