#include "append/voting.h"

#include "append/append.h"
#include "core/rotation_table.h"
#include "device/device_arrays.h"
#include "kernels/append/vote.h"

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
              offsetof(VotingPage, key_factors) == offsetof(PageToRoute, key_factors) &&
              sizeof(VotingPage) == sizeof(PageToRoute));

/// A model's routers in device memory.
class DeviceRouter final : public Resident {
 public:
  DeviceRouter(Device& device, Allocator& allocator, std::shared_ptr<const ModelRouter> router)
      : router_(std::move(router)), arrays_(device, allocator, bytes_for(*router_)), networks_(allocator) {
    networks_.reserve(router_->groups.size());
    for (const GroupRouter& group : router_->groups) {
      networks_.push_back(
          {arrays_.put(group.network.w1), arrays_.put(group.network.w2), arrays_.put(group.network.w3)});
    }
  }

  const RouterShape& shape() const { return router_->shape; }
  const VotingNetwork& network(int32_t group) const { return networks_[static_cast<size_t>(group)]; }

 private:
  std::shared_ptr<const ModelRouter> router_;
  DeviceArrays arrays_;
  Vector<VotingNetwork> networks_;
};

}  // namespace

CudaVoting::CudaVoting(Device& device) : device_(device) {
  const Call call(device_);
  check(prepare_vote(), "cudaFuncSetAttribute");
}

std::shared_ptr<const Resident> CudaVoting::make_resident(Allocator& allocator,
                                                          std::shared_ptr<const ModelRouter> router) {
  const Call call(device_, Call::Reports::kNothing);
  return std::allocate_shared<const DeviceRouter>(StlAllocator<DeviceRouter>(allocator), device_, allocator,
                                                  std::move(router));
}

void CudaVoting::vote(std::span<const PageToRoute> pages, const RotationTable& rotations, const Resident& router,
                      int32_t group, std::span<int32_t> counts) {
  const Call call(device_);
  const auto& networks = static_cast<const DeviceRouter&>(router);
  // The kernel reads pages' positions from page-locked host memory and writes counts there.
  auto* staged = static_cast<std::byte*>(device_.staging().take(pages.size_bytes() + counts.size_bytes()));
  std::memcpy(staged, pages.data(), pages.size_bytes());
  auto* counted = reinterpret_cast<int32_t*>(staged + pages.size_bytes());
  const VoteArguments arguments{.pages = reinterpret_cast<const VotingPage*>(staged),
                                .n_pages = static_cast<int32_t>(pages.size()),
                                .n_experts = networks.shape().n_experts,
                                .head_dim = networks.shape().head_dim,
                                .rope = rope_arguments(rotations.rope()),
                                .network = networks.network(group),
                                .counts = counted};
  call.require(launch_vote(arguments, call.stream()), "voting kernel");
  call.require(cudaStreamSynchronize(call.stream()), "cudaStreamSynchronize");
  std::copy_n(counted, counts.size(), counts.begin());
}

}  // namespace kvq::cuda
