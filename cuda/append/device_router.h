#pragma once

#include "core/resident.h"
#include "formats/router/router.h"
#include "kernels/append/vote.h"
#include "pages/device_centres.h"

namespace kvq::cuda {

/// A model's routers in device memory.
class DeviceRouter final : public Resident {
 public:
  DeviceRouter(CudaBackend& backend, Allocator& allocator, std::shared_ptr<const ModelRouter> router);

  const RouterShape& shape() const { return router_->shape; }
  const VotingNetwork& network(int32_t group) const { return networks_[static_cast<size_t>(group)]; }

 private:
  std::shared_ptr<const ModelRouter> router_;
  DeviceArrays arrays_;
  Vector<VotingNetwork> networks_;
};

}  // namespace kvq::cuda
