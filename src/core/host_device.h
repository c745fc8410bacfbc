#pragma once

/// Marks functions that device code calls too, so that both sides share one definition.
#if defined(__CUDACC__)
#define KVQ_HOST_DEVICE __host__ __device__
#else
#define KVQ_HOST_DEVICE
#endif

/// Inlines a function whose arguments kernels know at compile time, also where the compiler would rather call it.
#if defined(__GNUC__)
#define KVQ_ALWAYS_INLINE __attribute__((always_inline))
#else
#define KVQ_ALWAYS_INLINE
#endif
