#include "append/device_router.h"

#include "core/position_turns.h"
#include "cuda_backend.h"
#include "device/rope_arguments.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

namespace kvq::cuda {
namespace {

size_t bytes_for(const ModelRouter& router) {
  size_t bytes = 0;
  for (const GroupRouter& group : router.groups) {
    bytes += DeviceArrays::bytes_for(group.network.w1, group.network.w2, group.network.w3);
  }
  return bytes;
}

static_assert(offsetof(VotingPage, data) == offsetof(PageToRoute, data) &&
              offsetof(VotingPage, positions) == offsetof(PageToRoute, positions) &&
              sizeof(VotingPage) == sizeof(PageToRoute));

}  // namespace

DeviceRouter::DeviceRouter(CudaBackend& backend, Allocator& allocator, std::shared_ptr<const ModelRouter> router)
    : router_(std::move(router)),
      arrays_(backend, allocator, bytes_for(*router_)),
      networks_(StlAllocator<VotingNetwork>(allocator)) {
  networks_.reserve(router_->groups.size());
  for (const GroupRouter& group : router_->groups) {
    networks_.push_back({arrays_.put(group.network.w1), arrays_.put(group.network.w2), arrays_.put(group.network.w3)});
  }
}

std::shared_ptr<const Resident> CudaBackend::make_resident(Allocator& allocator,
                                                           std::shared_ptr<const ModelRouter> router) {
  const Call call(*this, Call::Reports::kNothing);
  return std::allocate_shared<const DeviceRouter>(StlAllocator<DeviceRouter>(allocator), *this, allocator,
                                                  std::move(router));
}

void CudaBackend::vote(std::span<const PageToRoute> pages, const PositionTurns& turns, const Resident& router,
                       int32_t group, std::span<int32_t> counts) {
  const Call call(*this);
  const auto& networks = static_cast<const DeviceRouter&>(router);
  // The device reads pages' positions from, and writes counts to, memory of the host.
  auto* staged = static_cast<std::byte*>(staging_->take(pages.size_bytes() + counts.size_bytes()));
  std::memcpy(staged, pages.data(), pages.size_bytes());
  auto* counted = reinterpret_cast<int32_t*>(staged + pages.size_bytes());
  const VoteArguments arguments{.pages = reinterpret_cast<const VotingPage*>(staged),
                                .n_pages = static_cast<int32_t>(pages.size()),
                                .n_experts = networks.shape().n_experts,
                                .head_dim = networks.shape().head_dim,
                                .rope = rope_arguments(turns.rope()),
                                .network = networks.network(group),
                                .counts = counted};
  call.require(launch_vote(arguments, stream_), "voting kernel");
  call.require(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  std::copy_n(counted, counts.size(), counts.begin());
}

}  // namespace kvq::cuda
