#include "core/target_tables.h"

#if HWY_ARCH_X86
#include <cpuid.h>
#elif HWY_ARCH_ARM_A64 && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#elif HWY_ARCH_ARM_A64 && defined(__APPLE__)
#include <sys/sysctl.h>
#elif HWY_ARCH_ARM_A64 && defined(_WIN32)
#include <windows.h>
#endif

namespace kvq {

#if HWY_ARCH_X86

namespace {

/// FP16 conversions. Clang's __builtin_cpu_supports does not know them before version 17.
bool has_f16c() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

/// The extensions that hwy/ops/set_macros-inl.h lets the compiler use. For AVX and later the compiler's check includes
/// that the system saves their registers.
bool runs_avx2() {
  return __builtin_cpu_supports("aes") != 0 && __builtin_cpu_supports("pclmul") != 0 &&
         __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 &&
         __builtin_cpu_supports("bmi") != 0 && __builtin_cpu_supports("bmi2") != 0 && has_f16c();
}

bool runs_avx3() {
  return runs_avx2() && __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512cd") != 0 &&
         __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
         __builtin_cpu_supports("avx512bw") != 0;
}

}  // namespace

bool runs_target(int64_t target) {
  __builtin_cpu_init();
  if (target == HWY_AVX3) return runs_avx3();
  return target == HWY_AVX2 && runs_avx2();
}

#else

bool runs_target(int64_t /*target*/) { return false; }  // the baseline is the only target

#endif

#if HWY_ARCH_ARM_A64 && defined(__linux__)

bool runs_dot_products() { return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0; }

#elif HWY_ARCH_ARM_A64 && defined(__APPLE__)

bool runs_dot_products() {
  int value = 0;
  size_t size = sizeof(value);
  return sysctlbyname("hw.optional.arm.FEAT_DotProd", &value, &size, nullptr, 0) == 0 && value != 0;
}

#elif HWY_ARCH_ARM_A64 && defined(_WIN32)

bool runs_dot_products() { return IsProcessorFeaturePresent(PF_ARM_V82_DP_INSTRUCTIONS_AVAILABLE) != 0; }

#elif HWY_ARCH_X86

/// AVX-VNNI. Older compilers' checks do not know it.
bool runs_dot_products() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return runs_target(HWY_AVX2) && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax & 1U << 4U) != 0;
}

#else

bool runs_dot_products() { return false; }

#endif

}  // namespace kvq
