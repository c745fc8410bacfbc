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

// Kernels of bytes, compiled a second time with dot products; for one target.
std::span<const TargetTable<CodecKernels>> dot_product_integer_kernels();
std::span<const TargetTable<CodecKernels>> dot_product_gain_shape_kernels();
std::span<const TargetTable<LinearKernels>> dot_product_linear_kernels();

/// The portable AVX-512 kernel.
SoftmaxKernel avx512_softmax();

}  // namespace kvq::cpu

/// The function that a source with two sets of kernels defines.
#if defined(KVQ_DOT_PRODUCTS)
#define KVQ_KERNELS_OF(room) dot_product_##room##_kernels
#else
#define KVQ_KERNELS_OF(room) highway_##room##_kernels
#endif
