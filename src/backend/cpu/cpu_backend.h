#pragma once

#include "backend/backend.h"
#include "backend/cpu/dispatch/kernels.h"
#include "backend/cpu/linear/linear_pool.h"
#include "core/parallel.h"

namespace kvq::cpu {

/// Pages in host memory, kernels of one instruction set.
class CpuBackend final : public Backend {
 public:
  CpuBackend(const KernelTable& kernels, Parallel& parallel) : kernels_(kernels), parallel_(parallel) {}

  const char* name() const override { return "cpu"; }
  const char* isa() const override { return kernels_.name; }
  void set_stream(void* stream) override;
  bool knows(const PageFormat& /*format*/) const override { return true; }
  bool recording() override { return false; }

  std::byte* allocate(Allocator& allocator, size_t bytes) override;
  void release(Allocator& allocator, std::byte* data, size_t bytes) noexcept override;
  void read(const PageFormat& format, const std::byte* data, std::byte* host) override;
  void write(const PageFormat& format, const std::byte* host, std::byte* data) override;

  Owned<LayerMirror> make_mirror(Allocator& allocator, int32_t kv_heads) override;
  void read_lengths(std::span<const Owned<LayerMirror>> mirrors, std::span<int32_t> lengths) override;
  void append(const TokenBatch& tokens, std::span<const PageWrite> writes, LayerMirror* mirror,
              Allocator& scratch) override;

  bool votes() const override { return true; }
  void vote(std::span<const PageToRoute> pages, const Rope& rope, const PositionTurns& turns,
            const RouterNetwork& network, std::span<int32_t> counts) override;

  Owned<Workspace> make_workspace(Allocator& allocator) override;
  void attend(const AttendBatch& batch, Workspace& workspace) override;
  bool weighs() const override { return true; }
  void weigh(const AttendBatch& batch, Pooling group, Workspace& workspace, std::span<float* const> masses) override;

  bool multiplies() const override { return true; }
  void linear(const LinearBatch& batch, Allocator& allocator) override;

 private:
  const KernelTable& kernels_;
  Parallel& parallel_;
  LinearPool linear_pool_;
};

}  // namespace kvq::cpu
