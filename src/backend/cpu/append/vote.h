#pragma once

#include "backend/backend.h"
#include "core/parallel.h"

namespace kvq::cpu {

/// As Backend::vote(). Every instruction set counts the same.
void vote(std::span<const PageToRoute> pages, const Rope& rope, const PositionTurns& turns,
          const RouterNetwork& network, Parallel& parallel, std::span<int32_t> counts);

}  // namespace kvq::cpu
