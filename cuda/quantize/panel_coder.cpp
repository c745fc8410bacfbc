#include "quantize/panel_coder.h"

#include "kernels/quantize/cholesky.h"
#include "weights/hessian.h"
#include "weights/matrix.h"

#include <algorithm>
#include <utility>

namespace kvq::cuda {
namespace {

using weights::kTileColumns;
using weights::kTileRows;
using weights::Segment;
using weights::Segments;

/// Weights of a batch: some hundred tiles a block, and moments between two looks at whether to go on.
constexpr int64_t kBatchWeights = int64_t{1} << 22U;
/// With a Hessian a step codes a tile of each panel, so there should be several for every multiprocessor, and as many
/// for each; but what a batch needs is limited.
constexpr int64_t kPanelsOfMultiprocessor = 4;
constexpr int64_t kMostFedBackWeights = int64_t{1} << 26U;
/// Of what searches keep.
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

/// What a block of a search in any of the codes keeps.
size_t kept_bytes(const Segments& segments) {
  size_t bytes = 0;
  for (const Segment& segment : segments) {
    if (segment.code.is_trellis()) bytes = std::max(bytes, trellis_block_bytes(segment.code));
  }
  return bytes;
}

}  // namespace

bool DevicePanelCoder::codes(const CudaBackend& backend, const weights::Scheme& scheme) {
  const Segments segments = scheme.segments(weights::kInputMultiple);
  return std::all_of(segments.begin(), segments.end(), [&](const Segment& segment) {
    return !segment.code.is_trellis() || searches_trellis(segment.code, backend.shared_limit());
  });
}

DevicePanelCoder::DevicePanelCoder(CudaBackend& backend, const CudaBackend::Call& call, Allocator& allocator,
                                   const weights::PanelTask& task)
    : backend_(backend),
      task_(task),
      segments_(task.scheme.segments(task.in)),
      panels_(panels_for(task, backend.linear_device().multiprocessors)),
      levels_(backend, allocator, levels_of(segments_)),
      numbers_(backend, allocator, batch_floats()),
      codes_(backend, allocator, static_cast<size_t>(panels_) * weights::panel_bytes(task.scheme, task.in)) {
  size_t first = 0;
  for (size_t i = 0; i < segments_.size(); ++i) {
    codebooks_[i] = weights::codebook_of(segments_[i].code);
    const std::span<const int8_t> levels = codebooks_[i].levels;
    upload(backend, call, levels, levels_.from(first));
    codebooks_[i].levels = {levels_.from(first), levels.size()};
    first += levels.size();
  }
  if (const size_t bytes = kept_bytes(segments_); bytes > 0) {
    const int64_t tiles = int64_t{panels_} * (task.hessian != nullptr ? 1 : task.in / kTileColumns);
    const auto most = std::min(tiles, static_cast<int64_t>(kMostKeptBytes / bytes));
    blocks_ = static_cast<int32_t>(std::min<int64_t>(backend.linear_device().multiprocessors, most));
    kept_.emplace(backend, allocator, static_cast<size_t>(blocks_) * bytes / sizeof(float));
  }
  if (task.hessian == nullptr) return;
  factors_.emplace(backend, allocator, task.hessian->factors().size());
  upload(backend, call, task.hessian->factors(), factors_->data());
  errors_.emplace(backend, allocator, batch_floats());
  error_sums_.emplace(backend, allocator, batch_floats());
  number_sums_.emplace(backend, allocator, batch_floats());
}

size_t DevicePanelCoder::batch_floats() const {
  return static_cast<size_t>(panels_) * kTileRows * static_cast<size_t>(task_.in);
}

void DevicePanelCoder::encode(const weights::PanelBatch& batch) {
  const CudaBackend::Call call(backend_, CudaBackend::Call::Reports::kNothing);
  upload(backend_, call, batch.numbers, numbers_.data());
  for (size_t i = segments_.size(); i-- > 0;) {
    task_.hessian == nullptr ? encode_all(call, i, batch.panels) : encode_backwards(call, i, batch.panels);
  }
  if (task_.hessian != nullptr) {
    download(backend_, call, error_sums_->data(), batch.error_sums);
    download(backend_, call, number_sums_->data(), batch.number_sums);
  }
  download(backend_, call, codes_.data(), batch.codes);
}

TilesToCode DevicePanelCoder::tiles_of(size_t segment, int32_t panels) const {
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

void DevicePanelCoder::encode_all(const CudaBackend::Call& call, size_t segment, int32_t panels) const {
  encode_tiles(call, tiles_of(segment, panels));
}

void DevicePanelCoder::encode_backwards(const CudaBackend::Call& call, size_t segment, int32_t panels) const {
  TilesToCode tile = tiles_of(segment, panels);
  tile.feed_back = task_.feed_back;
  tile.errors = errors_->data();
  tile.error_sums = error_sums_->data();
  tile.number_sums = number_sums_->data();
  const int32_t end = tile.segment_tile + std::exchange(tile.tiles, 1);
  for (int32_t i = end; i-- > tile.segment_tile;) {
    tile.first_tile = i;
    tile.factors = factors_->from(task_.hessian->begin_of(i));
    call.require(launch_feedback_sums(tile, backend_.stream()), "kernel of quantizing");
    encode_tiles(call, tile);
  }
}

void DevicePanelCoder::encode_tiles(const CudaBackend::Call& call, const TilesToCode& tiles) const {
  const bool searches = tiles.codebook.code.is_trellis();
  call.require(searches ? launch_search_trellis(tiles, blocks_, kept_->data(), backend_.stream())
                        : launch_nearest_levels(tiles, backend_.stream()),
               "kernel of quantizing");
}

Owned<weights::PanelCoder> CudaBackend::make_coder(Allocator& allocator, const weights::PanelTask& task) {
  if (!DevicePanelCoder::codes(*this, task.scheme)) return {nullptr, Deleter<weights::PanelCoder>(allocator, 0, 0)};
  const Call call(*this, Call::Reports::kNothing);
  return make_owned<DevicePanelCoder>(allocator, *this, call, allocator, task);
}

bool CudaBackend::factorize(Allocator& allocator, float* matrix, int32_t n) {
  const Call call(*this, Call::Reports::kNothing);
  const std::span<float> numbers(matrix, static_cast<size_t>(n) * static_cast<size_t>(n));
  const DeviceArray<float> on_device(*this, allocator, numbers.size());
  const DeviceArray<int32_t> failed(*this, allocator, 1);
  upload(*this, call, std::span<const float>(numbers), on_device.data());
  call.require(cudaMemsetAsync(failed.data(), 0, sizeof(int32_t), stream_), "cudaMemsetAsync");
  call.require(launch_factorize(on_device.data(), n, failed.data(), stream_), "kernel of quantizing");
  int32_t has_failed = 0;
  download(*this, call, failed.data(), std::span(&has_failed, 1));
  if (has_failed != 0) return false;
  download(*this, call, on_device.data(), numbers);
  return true;
}

}  // namespace kvq::cuda
