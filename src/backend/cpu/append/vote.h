#pragma once

#include "backend/voting.h"
#include "core/parallel.h"
#include "core/rotation_table.h"

namespace kvq::cpu {

/// Implementation of Voting::vote(); every instruction set counts the same.
void vote(std::span<const PageToRoute> pages, const RotationTable& rotations, const RouterNetwork& network,
          Parallel& parallel, std::span<int32_t> counts);

}  // namespace kvq::cpu
