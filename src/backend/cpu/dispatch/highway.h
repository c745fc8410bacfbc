// Kernels compiled from each room's portable source, one entry per Highway target, best first; the last runs
// everywhere. All rooms have the same targets.
#pragma once

#include "backend/cpu/append/kernels.h"
#include "backend/cpu/attend/commvq/kernels.h"
#include "backend/cpu/attend/kernels.h"
#include "backend/cpu/dispatch/kernels.h"
#include "backend/cpu/linear/kernels.h"
#include "core/target_tables.h"

#include <span>

namespace kvq::cpu {

// Kernels registered by each codec.
std::span<const TargetTable<CodecKernels>> highway_float16_kernels();
std::span<const TargetTable<CodecKernels>> highway_integer_kernels();
std::span<const TargetTable<CodecKernels>> highway_gain_shape_kernels();

std::span<const TargetTable<AppendKernels>> highway_append_kernels();
std::span<const TargetTable<AttendKernels>> highway_attend_kernels();
std::span<const TargetTable<CommvqKernels>> highway_commvq_kernels();
std::span<const TargetTable<LinearKernels>> highway_linear_kernels();

/// The portable AVX-512 kernel.
SoftmaxKernel avx512_softmax();

/// The portable AVX-512 kernels of packed matrices on byte activations.
LinearKernels avx512_byte_kernels();

}  // namespace kvq::cpu
