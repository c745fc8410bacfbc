#include "backend/cpu/cpu_backend.h"

#include "backend/cpu/append/append.h"
#include "backend/cpu/append/vote.h"
#include "backend/cpu/attend/attend.h"
#include "backend/cpu/linear/linear.h"
#include "core/error.h"

#include <cstring>

namespace kvq::cpu {

void CpuBackend::set_stream(void* /*stream*/) {
  fail(KVQ_E_UNSUPPORTED, "context computes on the CPU, which has no streams");
}

std::byte* CpuBackend::allocate(Allocator& allocator, size_t bytes) {
  return static_cast<std::byte*>(allocator.allocate(bytes, kDataAlignment));
}

void CpuBackend::release(Allocator& allocator, std::byte* data, size_t bytes) noexcept {
  allocator.release(data, bytes, kDataAlignment);
}

void CpuBackend::read(const PageFormat& format, const std::byte* data, std::byte* host) {
  std::memcpy(host, data, format.bytes());
}

void CpuBackend::write(const PageFormat& format, const std::byte* host, std::byte* data) {
  std::memcpy(data, host, format.bytes());
}

Owned<LayerMirror> CpuBackend::make_mirror(Allocator& allocator, int32_t /*kv_heads*/) {
  return {nullptr, Deleter<LayerMirror>(allocator, 0, 0)};
}

// There are no mirrors: only the host appends.
void CpuBackend::read_lengths(std::span<const Owned<LayerMirror>> /*mirrors*/, std::span<int32_t> /*lengths*/) {}

void CpuBackend::append(const TokenBatch& tokens, std::span<const PageWrite> writes, LayerMirror* /*mirror*/,
                        Allocator& scratch) {
  cpu::append(tokens, writes, *kernels_.append, parallel_, scratch);
}

void CpuBackend::vote(std::span<const PageToRoute> pages, const Rope& rope, const PositionTurns& turns,
                      const RouterNetwork& network, std::span<int32_t> counts) {
  cpu::vote(pages, rope, turns, network, parallel_, counts);
}

Owned<Workspace> CpuBackend::make_workspace(Allocator& allocator) {
  return make_owned<AttendWorkspace>(allocator, allocator);
}

void CpuBackend::attend(const AttendBatch& batch, Workspace& workspace) {
  cpu::attend(batch, kernels_, parallel_, static_cast<AttendWorkspace&>(workspace));
}

void CpuBackend::weigh(const AttendBatch& batch, Pooling group, Workspace& workspace, std::span<float* const> masses) {
  cpu::weigh(batch, group, kernels_, parallel_, static_cast<AttendWorkspace&>(workspace), masses);
}

void CpuBackend::linear(const LinearBatch& batch, Allocator& allocator) {
  cpu::linear(batch, *kernels_.linear, weights::codebook_of, parallel_, linear_pool_, allocator);
}

}  // namespace kvq::cpu
