#pragma once

#include "backend/pages.h"
#include "device/device.h"

namespace kvq::cuda {

/// Memory of pages, page tables, and what was trained for their formats.
class CudaPages final : public Pages {
 public:
  explicit CudaPages(Device& device);

  bool knows(const PageFormat& format) const override;
  bool knows_heads(const HeadShape& head, int32_t rotary_begin) const override;
  std::shared_ptr<const Resident> make_resident(Allocator& allocator, const Codec& codec,
                                                std::shared_ptr<const Trained> trained) override;
  Owned<LayerContext> make_context(Allocator& allocator, const Codec& codec, const Resident& resident, int32_t layer,
                                   const PageFormat& format, const OptionValues& options,
                                   const RotationTable& rotations) override;
  std::byte* allocate(Allocator& allocator, size_t bytes) override;
  void release(Allocator& allocator, std::byte* data, size_t bytes) noexcept override;
  void read(const PageFormat& format, const std::byte* data, std::byte* host) override;
  const std::byte* read_tensor(const std::byte* tensor, size_t bytes, Vector<std::byte>& room) override;
  void upload(const void* host, size_t bytes, std::byte* data) override;
  void write(const PageFormat& format, const std::byte* host, std::byte* data) override;
  Owned<LayerMirror> make_mirror(Allocator& allocator, int32_t kv_heads) override;
  uint64_t mirror_bytes(int32_t kv_heads, int32_t pages, int32_t ring) const override;
  void read_lengths(std::span<const Owned<LayerMirror>> mirrors, std::span<int32_t> lengths) override;
  void append(const TokenBatch& tokens, const PageWrites& writes, std::span<const AppendedLayer> layers,
              Allocator& scratch) override;
  void compact(const SlotCompaction& compaction) override;
  uint64_t append_bytes(const ExpectedAppend& /*expected*/) const override { return 0; }

 private:
  Device& device_;
};

}  // namespace kvq::cuda
