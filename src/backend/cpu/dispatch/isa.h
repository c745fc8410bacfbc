#pragma once

#include "backend/cpu/dispatch/kernels.h"

#include <span>

namespace kvq::cpu {

/// Tables of this build that the processor at hand can run, best first.
std::span<const KernelTable* const> available_tables();

/// The table of that name; null name: the best. Throws KVQ_E_UNSUPPORTED, listing what there is.
const KernelTable& find_table(const char* name);

}  // namespace kvq::cpu
