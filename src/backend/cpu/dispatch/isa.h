#pragma once

#include "backend/cpu/dispatch/kernels.h"

#include <span>

namespace kvq::cpu {

/// Tables of this build that this processor can run, best first.
std::span<const KernelTable* const> available_tables();

/// The table called `name`; null: the best. Throws KVQ_E_UNSUPPORTED, listing the available ones.
const KernelTable& find_table(const char* name);

}  // namespace kvq::cpu
