#pragma once

#include "backend/cpu/tables.h"

namespace kvq::cpu {

// Each replaces some of the portable AVX-512 kernels.
void set_avx512vnni_keys(KernelTable& table);
void set_avx512vnni_values(KernelTable& table);
void set_avx512vnni_coded_keys(KernelTable& table);
void set_avx512vnni_coded_values(KernelTable& table);
void set_avx512vnni_softmax(KernelTable& table);

}  // namespace kvq::cpu
