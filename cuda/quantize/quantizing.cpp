#include "quantize/quantizing.h"

#include "device/device_arrays.h"
#include "kernels/quantize/cholesky.h"
#include "kernels/quantize/quantize.h"
#include "weights/hessian.h"
#include "weights/matrix.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

namespace kvq::cuda {
namespace {

using weights::kTileColumns;
using weights::kTileRows;
using weights::Segment;
using weights::Segments;

/// Weights of a batch: some hundred tiles a block, and moments between two looks for cancellation.
constexpr int64_t kBatchWeights = int64_t{1} << 22U;
/// With a Hessian a step codes a tile of each panel, so each multiprocessor should have several, all equally many; but
/// the memory of a batch is limited.
constexpr int64_t kPanelsOfMultiprocessor = 4;
constexpr int64_t kMostFedBackWeights = int64_t{1} << 26U;
/// Bytes that searches keep, at most.
constexpr size_t kMostKeptBytes = size_t{512} << 20U;

int32_t panels_for(const weights::PanelTask& task, int64_t multiprocessors) {
  const int64_t weights = int64_t{kTileRows} * task.in;
  int64_t panels = kBatchWeights / weights;
  if (task.hessian != nullptr) {
    panels = std::min(kPanelsOfMultiprocessor * multiprocessors, kMostFedBackWeights / weights);
    if (panels > multiprocessors) panels -= panels % multiprocessors;
  }
  return static_cast<int32_t>(std::clamp<int64_t>(panels, 1, weights::panels_of(task.out)));
}

size_t levels_of(const Segments& segments) {
  size_t levels = 0;
  for (const Segment& segment : segments) levels += weights::codebook_of(segment.code).levels.size();
  return levels;
}

/// Bytes that a block of a search keeps, in any of the codes.
size_t kept_bytes(const Segments& segments) {
  size_t bytes = 0;
  for (const Segment& segment : segments) {
    if (segment.code.is_trellis()) bytes = std::max(bytes, trellis_block_bytes(segment.code));
  }
  return bytes;
}

/// Whether the device has the shared memory to code in this scheme.
bool can_code(const Device& device, const weights::Scheme& scheme) {
  const Segments segments = scheme.segments(weights::kInputMultiple);
  return std::all_of(segments.begin(), segments.end(), [&](const Segment& segment) {
    return !segment.code.is_trellis() || searches_trellis(segment.code, device.shared_limit());
  });
}

/// Codes of panels, found on the device. Keeps its memory from batch to batch.
class DevicePanelCoder final : public weights::PanelCoder {
 public:
  DevicePanelCoder(Device& device, const Call& call, Allocator& allocator, const weights::PanelTask& task)
      : device_(device),
        task_(task),
        segments_(task.scheme.segments(task.in)),
        panels_(panels_for(task, device.multiprocessors())),
        levels_(device, allocator, levels_of(segments_)),
        numbers_(device, allocator, batch_floats()),
        codes_(device, allocator, static_cast<size_t>(panels_) * weights::panel_bytes(task.scheme, task.in)) {
    size_t first = 0;
    for (size_t i = 0; i < segments_.size(); ++i) {
      codebooks_[i] = weights::codebook_of(segments_[i].code);
      const std::span<const int8_t> levels = codebooks_[i].levels;
      upload(call, levels, levels_.from(first));
      codebooks_[i].levels = {levels_.from(first), levels.size()};
      first += levels.size();
    }
    if (const size_t bytes = kept_bytes(segments_); bytes > 0) {
      const int64_t tiles = int64_t{panels_} * (task.hessian != nullptr ? 1 : task.in / kTileColumns);
      const auto most = std::min(tiles, static_cast<int64_t>(kMostKeptBytes / bytes));
      blocks_ = static_cast<int32_t>(std::min<int64_t>(device.multiprocessors(), most));
      kept_.emplace(device, allocator, static_cast<size_t>(blocks_) * bytes / sizeof(float));
    }
    if (task.hessian == nullptr) return;
    factors_.emplace(device, allocator, task.hessian->factors().size());
    upload(call, task.hessian->factors(), factors_->data());
    errors_.emplace(device, allocator, batch_floats());
    error_sums_.emplace(device, allocator, batch_floats());
    number_sums_.emplace(device, allocator, batch_floats());
  }

  int32_t panels() const override { return panels_; }

  void encode(const weights::PanelBatch& batch) override {
    const Call call(device_, Call::Reports::kNothing);
    upload(call, batch.numbers, numbers_.data());
    for (size_t i = segments_.size(); i-- > 0;) {
      task_.hessian == nullptr ? encode_tiles(call, tiles_of(i, batch.panels))
                               : encode_backwards(call, i, batch.panels);
    }
    if (task_.hessian != nullptr) {
      download(call, error_sums_->data(), batch.error_sums);
      download(call, number_sums_->data(), batch.number_sums);
    }
    download(call, codes_.data(), batch.codes);
  }

 private:
  /// Floats of a batch's panels.
  size_t batch_floats() const { return static_cast<size_t>(panels_) * kTileRows * static_cast<size_t>(task_.in); }

  TilesToCode tiles_of(size_t segment, int32_t panels) const {
    size_t before = 0;
    for (size_t i = 0; i < segment; ++i) {
      before += static_cast<size_t>(segments_[i].columns / kTileColumns) * segments_[i].code.tile_bytes();
    }
    const int32_t first = segments_[segment].first_column / kTileColumns;
    return {.codebook = codebooks_[segment],
            .numbers = numbers_.data(),
            .codes = codes_.data(),
            .panel_bytes = static_cast<int64_t>(weights::panel_bytes(task_.scheme, task_.in)),
            .segment_bytes = static_cast<int64_t>(before),
            .in = task_.in,
            .panels = panels,
            .segment_tile = first,
            .first_tile = first,
            .tiles = segments_[segment].columns / kTileColumns,
            .feed_back = false,
            .factors = nullptr,
            .errors = nullptr,
            .error_sums = nullptr,
            .number_sums = nullptr};
  }

  /// Encodes a tile of every panel, then the one before it, which needs the errors of those behind.
  void encode_backwards(const Call& call, size_t segment, int32_t panels) const {
    TilesToCode tile = tiles_of(segment, panels);
    tile.feed_back = task_.feed_back;
    tile.errors = errors_->data();
    tile.error_sums = error_sums_->data();
    tile.number_sums = number_sums_->data();
    const int32_t end = tile.segment_tile + std::exchange(tile.tiles, 1);
    for (int32_t i = end; i-- > tile.segment_tile;) {
      tile.first_tile = i;
      tile.factors = factors_->from(task_.hessian->begin_of(i));
      call.require(launch_feedback_sums(tile, device_.stream()), "kernel of quantizing");
      encode_tiles(call, tile);
    }
  }

  void encode_tiles(const Call& call, const TilesToCode& tiles) const {
    const bool searches = tiles.codebook.code.is_trellis();
    call.require(searches ? launch_search_trellis(tiles, blocks_, kept_->data(), device_.stream())
                          : launch_nearest_levels(tiles, device_.stream()),
                 "kernel of quantizing");
  }

  Device& device_;
  weights::PanelTask task_;
  weights::Segments segments_;
  int32_t panels_;
  int32_t blocks_ = 0;                            // of a search
  std::array<weights::Codebook, 2> codebooks_{};  // of the segments
  DeviceArray<int8_t> levels_;
  DeviceArray<float> numbers_;
  DeviceArray<uint8_t> codes_;
  std::optional<DeviceArray<float>> kept_;  // of blocks of searches
  // With a Hessian:
  std::optional<DeviceArray<float>> factors_;
  std::optional<DeviceArray<float>> errors_;
  std::optional<DeviceArray<float>> error_sums_;
  std::optional<DeviceArray<float>> number_sums_;
};

}  // namespace

Owned<weights::PanelCoder> CudaQuantizing::make_coder(Allocator& allocator, const weights::PanelTask& task) {
  if (!can_code(device_, task.scheme)) return {nullptr, Deleter<weights::PanelCoder>(allocator, 0, 0)};
  const Call call(device_, Call::Reports::kNothing);
  return make_owned<DevicePanelCoder>(allocator, device_, call, allocator, task);
}

bool CudaQuantizing::factorize(Allocator& allocator, float* matrix, int32_t n) {
  const Call call(device_, Call::Reports::kNothing);
  const std::span<float> numbers(matrix, static_cast<size_t>(n) * static_cast<size_t>(n));
  const DeviceArray<float> on_device(device_, allocator, numbers.size());
  const DeviceArray<int32_t> failed(device_, allocator, 1);
  upload(call, std::span<const float>(numbers), on_device.data());
  call.require(cudaMemsetAsync(failed.data(), 0, sizeof(int32_t), call.stream()), "cudaMemsetAsync");
  call.require(launch_factorize(on_device.data(), n, failed.data(), call.stream()), "kernel of quantizing");
  int32_t has_failed = 0;
  download(call, failed.data(), std::span(&has_failed, 1));
  if (has_failed != 0) return false;
  download(call, on_device.data(), numbers);
  return true;
}

}  // namespace kvq::cuda
