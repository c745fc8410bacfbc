// Routing: the format that a page's tokens prefer.
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

class RotationTable;

/// A full FP16 page whose tokens vote for the format it is sealed in.
struct PageToRoute {
  const std::byte* data;
  std::array<int32_t, kPageSlots> positions;
  const float* key_factors = nullptr;  // [head_dim] that undo the scales of keys, in the backend's memory; null: none
};

class Voting {
 public:
  virtual ~Voting() = default;
  /// The networks of a router, for all caches on this backend.
  virtual std::shared_ptr<const Resident> make_resident(Allocator& allocator,
                                                        std::shared_ptr<const ModelRouter> router) = 0;
  /// Count the tokens of every page that prefer each expert, from their keys before RoPE, by the network of one group
  /// of layers. `counts`: [pages, experts], zeros.
  virtual void vote(std::span<const PageToRoute> pages, const RotationTable& rotations, const Resident& router,
                    int32_t group, std::span<int32_t> counts) = 0;
};

}  // namespace kvq
