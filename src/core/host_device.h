#pragma once

/// Before functions that device code calls too: what is defined once must be the same on both sides.
#if defined(__CUDACC__)
#define KVQ_HOST_DEVICE __host__ __device__
#else
#define KVQ_HOST_DEVICE
#endif
