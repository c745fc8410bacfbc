#pragma once

#include "backend/cpu/dispatch/kernels.h"
#include "core/target_tables.h"

#include <span>

namespace kvq::cpu {

/// Kernels compiled from the portable source, best first; the last one runs everywhere.
std::span<const TargetTable<KernelTable>> highway_tables();

/// Portable AVX-512 kernels, with int8 dot products for integer pages.
const KernelTable& avx512vnni_table();

/// The same, with products of tiles for linear layers on many rows.
const KernelTable& amx_table();

/// Whether the processor has tiles and the system lets this process use them, which it must be asked for once.
bool can_use_amx();

/// The portable AVX-512 table that avx512vnni_table() starts from.
const KernelTable& avx512_table();

/// The portable AVX-512 kernels of packed matrices that need no more than that, for activations in bytes.
LinearKernels avx512_byte_kernels();

}  // namespace kvq::cpu
