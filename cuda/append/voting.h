#pragma once

#include "backend/voting.h"
#include "device/device.h"

namespace kvq::cuda {

/// Routers and the votes of pages' tokens.
class CudaVoting final : public Voting {
 public:
  explicit CudaVoting(Device& device);

  std::shared_ptr<const Resident> make_resident(Allocator& allocator,
                                                std::shared_ptr<const ModelRouter> router) override;
  void vote(std::span<const PageToRoute> pages, const RotationTable& rotations, const Resident& router, int32_t group,
            std::span<int32_t> counts) override;

 private:
  Device& device_;
};

}  // namespace kvq::cuda
