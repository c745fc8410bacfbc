// Compiles the kernels of a source with dot products of bytes, AVX-VNNI or those of ARM64: sources with the suffix
// dot_products include this, then that source. What they define has namespaces of its own, and only that may use the
// extension.
#pragma once

#define KVQ_DOT_PRODUCTS 1

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/dispatch/dot_products.h"

#if defined(__x86_64__) || defined(_M_X64)
#define N_AVX2 N_AVX2_VNNI
#undef HWY_COMPILE_ONLY_STATIC
#undef HWY_DISABLED_TARGETS
#define HWY_COMPILE_ONLY_STATIC 1
#define HWY_DISABLED_TARGETS 0
#define HWY_BASELINE_TARGETS HWY_AVX2
#define KVQ_DOT_PRODUCTS_TARGET HWY_TARGET_STR ",avxvnni"
#else
#define N_NEON N_NEON_DOTPROD
#if defined(__clang__)
#define KVQ_DOT_PRODUCTS_TARGET "dotprod"
#else
#define KVQ_DOT_PRODUCTS_TARGET "arch=armv8.2-a+dotprod"
#endif
#endif

#include <hwy/foreach_target.h>  // must precede highway.h

#include <hwy/highway.h>

#undef HWY_ATTR
#undef HWY_BEFORE_NAMESPACE
#undef HWY_AFTER_NAMESPACE
#define HWY_ATTR __attribute__((target(KVQ_DOT_PRODUCTS_TARGET)))
#define HWY_BEFORE_NAMESPACE() HWY_PUSH_ATTRIBUTES(KVQ_DOT_PRODUCTS_TARGET) static_assert(true)
#define HWY_AFTER_NAMESPACE() HWY_POP_ATTRIBUTES static_assert(true)
