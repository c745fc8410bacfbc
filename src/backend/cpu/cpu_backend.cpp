#include "backend/cpu/cpu_backend.h"

#include "backend/cpu/append.h"
#include "backend/cpu/attend.h"

#include <cstring>

namespace kvq::cpu {

std::byte* CpuBackend::allocate(Allocator& allocator, size_t bytes) {
  void* data = allocator.allocate(bytes, kDataAlignment);
  std::memset(data, 0, bytes);
  return static_cast<std::byte*>(data);
}

void CpuBackend::release(Allocator& allocator, std::byte* data, size_t bytes) noexcept {
  allocator.release(data, bytes, kDataAlignment);
}

void CpuBackend::read(const std::byte* data, size_t bytes, void* host) { std::memcpy(host, data, bytes); }

void CpuBackend::write(const void* host, size_t bytes, std::byte* data) { std::memcpy(data, host, bytes); }

void CpuBackend::check(const TokenBatch& tokens) { cpu::check(tokens); }

void CpuBackend::append(const TokenBatch& tokens, std::span<const PageWrite> writes, Allocator& scratch) {
  cpu::append(tokens, writes, parallel_, scratch);
}

Owned<Workspace> CpuBackend::make_workspace(Allocator& allocator) {
  return make_owned<AttendWorkspace>(allocator, allocator);
}

void CpuBackend::attend(const AttendBatch& batch, Workspace& workspace) {
  cpu::attend(batch, kernels_, parallel_, static_cast<AttendWorkspace&>(workspace));
}

}  // namespace kvq::cpu
