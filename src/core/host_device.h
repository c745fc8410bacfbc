#pragma once

/// Marks functions that device code calls too, so that both sides share one definition.
#if defined(__CUDACC__)
#define KVQ_HOST_DEVICE __host__ __device__
#else
#define KVQ_HOST_DEVICE
#endif
