// Kernels of files with the suffix avx512vnni: each function replaces some of the portable AVX-512 kernels.
#pragma once

#include "backend/cpu/dispatch/kernels.h"

namespace kvq::cpu {

void set_avx512vnni_keys(KernelTable& table);
void set_avx512vnni_values(KernelTable& table);
void set_avx512vnni_gain_shape_keys(KernelTable& table);
void set_avx512vnni_gain_shape_values(KernelTable& table);
void set_avx512vnni_softmax(KernelTable& table);
void set_avx512vnni_commvq_keys(CommvqKernels& kernels);
void set_avx512vnni_commvq_values(CommvqKernels& kernels);
void set_avx512vnni_centres(CentreKernels& kernels);

// Kernels of packed matrices, by family.
void set_avx512vnni_nuq(LinearKernels& kernels);
void set_avx512vnni_vq(LinearKernels& kernels);
void set_avx512vnni_trellis(LinearKernels& kernels);

DecodedProducts avx512vnni_products();

// AMX tiles, for linear layers on many rows.
DecodedProducts amx_products();
/// The processor has AMX tiles and the system lets this process use them; asks for permission once.
bool can_use_amx();

}  // namespace kvq::cpu
