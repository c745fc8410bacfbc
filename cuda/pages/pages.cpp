#include "pages/pages.h"

#include "append/append.h"
#include "commvq/device_codebook.h"
#include "core/rotation_table.h"
#include "formats/commvq/commvq.h"
#include "kernels/append/compact.h"
#include "pages/codecs.h"
#include "pages/device_centres.h"
#include "pages/page_table.h"

#include <algorithm>
#include <cstring>

namespace kvq::cuda {
namespace {

/// Codecs that need training have trained centres unless they are CommVQ.
bool has_codebooks(const Codec& codec) { return codec.number == commvq::kCodec.number; }

}  // namespace

CudaPages::CudaPages(Device& device) : device_(device) {
  const Call call(device_);
  prepare_appending(device_);
}

bool CudaPages::knows(const PageFormat& format) const { return cuda::knows(format); }

bool CudaPages::knows_heads(const HeadShape& head, int32_t /*rotary_begin*/) const {
  return head.largest() <= kMaxChannels;
}

std::shared_ptr<const Resident> CudaPages::make_resident(Allocator& allocator, const Codec& codec,
                                                         std::shared_ptr<const Trained> trained) {
  const Call call(device_, Call::Reports::kNothing);
  if (has_codebooks(codec)) {
    return std::allocate_shared<const DeviceCodebook>(
        StlAllocator<DeviceCodebook>(allocator), device_, allocator,
        std::static_pointer_cast<const ModelCodebook>(std::move(trained)));
  }
  return std::allocate_shared<const DeviceCentres>(StlAllocator<DeviceCentres>(allocator), device_, allocator,
                                                   std::static_pointer_cast<const ModelCentres>(std::move(trained)));
}

Owned<LayerContext> CudaPages::make_context(Allocator& allocator, const Codec& codec, const Resident& resident,
                                            int32_t layer, const PageFormat& /*format*/, const OptionValues& options,
                                            const RotationTable& rotations) {
  const Call call(device_, Call::Reports::kNothing);
  if (has_codebooks(codec)) {
    return make_owned<CodebookContext>(allocator, device_, allocator, codec,
                                       static_cast<const DeviceCodebook&>(resident), layer, options, rotations);
  }
  return make_owned<CentreContext>(allocator, device_, allocator, codec, static_cast<const DeviceCentres&>(resident),
                                   layer, rotations.rope());
}

std::byte* CudaPages::allocate(Allocator& allocator, size_t bytes) {
  const Call call(device_);
  return static_cast<std::byte*>(device_.allocate(allocator, bytes));
}

void CudaPages::release(Allocator& allocator, std::byte* data, size_t bytes) noexcept {
  device_.release(allocator, data, bytes);
}

void CudaPages::read(const PageFormat& format, const std::byte* data, std::byte* host) {
  const Call call(device_);
  const size_t bytes = format.bytes();
  auto* staged = static_cast<std::byte*>(device_.staging().take(bytes));
  call.require(cudaMemcpyAsync(staged, data, bytes, cudaMemcpyDeviceToHost, call.stream()), "cudaMemcpyAsync");
  call.require(cudaStreamSynchronize(call.stream()), "cudaStreamSynchronize");
  to_host_order(format, staged, host);
}

const std::byte* CudaPages::read_tensor(const std::byte* tensor, size_t bytes, Vector<std::byte>& room) {
  const Call call(device_);
  room.resize(bytes);
  call.require(cudaMemcpyAsync(room.data(), tensor, bytes, cudaMemcpyDefault, call.stream()), "cudaMemcpyAsync");
  call.require(cudaStreamSynchronize(call.stream()), "cudaStreamSynchronize");
  return room.data();
}

void CudaPages::upload(const void* host, size_t bytes, std::byte* data) {
  const Call call(device_);
  void* staged = device_.staging().take(bytes);
  std::memcpy(staged, host, bytes);
  call.require(cudaMemcpyAsync(data, staged, bytes, cudaMemcpyHostToDevice, call.stream()), "cudaMemcpyAsync");
  device_.staging().done(call.stream());
}

void CudaPages::write(const PageFormat& format, const std::byte* host, std::byte* data) {
  const Call call(device_);
  const size_t bytes = format.bytes();
  auto* staged = static_cast<std::byte*>(device_.staging().take(bytes));
  to_device_order(format, host, staged);
  call.require(cudaMemcpyAsync(data, staged, bytes, cudaMemcpyHostToDevice, call.stream()), "cudaMemcpyAsync");
  device_.staging().done(call.stream());
}

void CudaPages::compact(const SlotCompaction& compaction) {
  const Call call(device_, Call::Reports::kNothing);
  const size_t pages = compaction.pages.size();
  const size_t bytes = pages * sizeof(uint64_t) + compaction.slots.size_bytes();
  auto* staged = static_cast<uint64_t*>(device_.staging().take(bytes));
  auto* slots = reinterpret_cast<int32_t*>(staged + pages);
  std::ranges::transform(compaction.pages, staged, [](std::byte* page) { return reinterpret_cast<uint64_t>(page); });
  std::ranges::copy(compaction.slots, slots);
  const CompactArguments arguments{.pages = staged,
                                   .slots = slots,
                                   .n = static_cast<int32_t>(compaction.slots.size()),
                                   .pages_of_head = compaction.pages_of_head,
                                   .first = compaction.first,
                                   .head = compaction.format.head};
  const auto heads = static_cast<int32_t>(pages) / compaction.pages_of_head;
  call.require(launch_compact(arguments, heads, call.stream()), "compaction kernel");
  device_.staging().done(call.stream());
}

Owned<LayerMirror> CudaPages::make_mirror(Allocator& allocator, int32_t kv_heads) {
  return make_owned<PageTable>(allocator, device_, allocator, kv_heads);
}

uint64_t CudaPages::mirror_bytes(int32_t kv_heads, int32_t pages, int32_t ring) const {
  return PageTable::bytes_of(kv_heads, pages, ring);
}

void CudaPages::read_lengths(std::span<const Owned<LayerMirror>> mirrors, std::span<int32_t> lengths) {
  const Call call(device_);
  auto* staged = static_cast<int32_t*>(device_.staging().take(lengths.size_bytes()));
  for (size_t i = 0; i < mirrors.size(); ++i) {
    const auto& table = static_cast<const PageTable&>(*mirrors[i]);
    staged[i] = 0;
    if (table.states() == nullptr) continue;
    call.require(
        cudaMemcpyAsync(staged + i, &table.states()->length, sizeof(int32_t), cudaMemcpyDeviceToHost, call.stream()),
        "cudaMemcpyAsync");
  }
  call.require(cudaStreamSynchronize(call.stream()), "cudaStreamSynchronize");
  std::copy_n(staged, lengths.size(), lengths.begin());
}

void CudaPages::append(const TokenBatch& tokens, const PageWrites& writes, std::span<const AppendedLayer> layers,
                       Allocator& scratch) {
  if (writes.empty()) return;
  append_pages(device_, Call(device_), tokens, writes, layers, scratch);
}

}  // namespace kvq::cuda
