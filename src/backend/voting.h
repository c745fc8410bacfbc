// Routers: which format the tokens of a page prefer.
#pragma once

#include "core/limits.h"
#include "core/memory.h"
#include "core/resident.h"
#include "formats/router/router.h"

#include <array>
#include <cstddef>
#include <memory>
#include <span>

namespace kvq {

class PositionTurns;

/// A full page in FP16 whose tokens vote for the format that it is sealed in.
struct PageToRoute {
  const std::byte* data;
  std::array<int32_t, kPageSlots> positions;
};

class Voting {
 public:
  virtual ~Voting() = default;
  /// The networks of a router, for all caches on this backend.
  virtual std::shared_ptr<const Resident> make_resident(Allocator& allocator,
                                                        std::shared_ptr<const ModelRouter> router) = 0;
  /// Count for every page and expert the tokens that prefer it, their keys as they were before RoPE, by the network of
  /// one group of layers. `counts`: [pages, experts], zeros.
  virtual void vote(std::span<const PageToRoute> pages, const PositionTurns& turns, const Resident& router,
                    int32_t group, std::span<int32_t> counts) = 0;
};

}  // namespace kvq
