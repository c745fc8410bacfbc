#pragma once

#include "backend/cpu/dispatch/tables.h"

namespace kvq::cpu {

// Each replaces some of the portable AVX-512 kernels.
void set_avx512vnni_keys(KernelTable& table);
void set_avx512vnni_values(KernelTable& table);
void set_avx512vnni_coded_keys(KernelTable& table);
void set_avx512vnni_coded_values(KernelTable& table);
void set_avx512vnni_softmax(KernelTable& table);

// The kernels of packed matrices, by family.
void set_avx512vnni_nuq(LinearKernels& kernels);
void set_avx512vnni_vq(LinearKernels& kernels);
void set_avx512vnni_trellis(LinearKernels& kernels);

DecodedProducts avx512vnni_products();
DecodedProducts amx_products();

}  // namespace kvq::cpu
