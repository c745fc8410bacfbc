// Compiled once per Highway target: this file includes itself through foreach_target.h.
#include "llama/weight_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "llama/weight_kernels.cpp"
#include <hwy/foreach_target.h>  // must precede highway.h

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "core/target_tables.h"

#include <array>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

HWY_BEFORE_NAMESPACE();
namespace llama::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using Floats = hn::Vec<FloatTag>;

/// Bytes may lie at any address, other types may not.
template <class T>
HWY_INLINE hn::Vec<hn::Rebind<T, FloatTag>> load(const std::byte* stored) {
  const hn::Rebind<T, FloatTag> d;
  const hn::Repartition<uint8_t, decltype(d)> bytes;
  return hn::BitCast(d, hn::LoadU(bytes, reinterpret_cast<const uint8_t*>(stored)));
}

struct Float32 {
  static constexpr size_t kBytes = 4;
  static HWY_INLINE Floats floats(const std::byte* stored) { return load<float>(stored); }
};

struct Float16 {
  static constexpr size_t kBytes = 2;
  static HWY_INLINE Floats floats(const std::byte* stored) {
    const hn::Rebind<hwy::float16_t, FloatTag> d;
    const auto floats = hn::PromoteTo(FloatTag(), hn::BitCast(d, load<uint16_t>(stored)));
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_NEON
    return floats;
#else  // where there is no instruction for it, Highway 1.0 takes infinities for numbers from 65536
    const auto infinity = hn::BitCast(FloatTag(), hn::Set(hn::Rebind<uint32_t, FloatTag>(), 0x7F800000U));
    const auto is_finite = hn::Lt(hn::Abs(floats), hn::Set(FloatTag(), 65536.0f));
    return hn::IfThenElse(is_finite, floats, hn::Or(floats, infinity));
#endif
  }
};

struct BFloat16 {
  static constexpr size_t kBytes = 2;
  static HWY_INLINE Floats floats(const std::byte* stored) {
    const hn::Rebind<uint32_t, FloatTag> d;
    return hn::BitCast(FloatTag(), hn::ShiftLeft<16>(hn::PromoteTo(d, load<uint16_t>(stored))));
  }
};

/// The last numbers of a row, with zeros up to a whole vector.
template <class T>
class Padded {
 public:
  Padded(const void* first, size_t bytes) { std::memcpy(data_.data(), first, bytes); }
  const T* data() const { return data_.data(); }

 private:
  std::array<T, HWY_MAX_BYTES / sizeof(T)> data_{};
};

template <class Format>
void widen_all(const std::byte* stored, size_t n, float* out) {
  const FloatTag d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(Format::floats(stored + i * Format::kBytes), d, out + i);
  if (i == n) return;
  const Padded<std::byte> rest(stored + i * Format::kBytes, (n - i) * Format::kBytes);
  std::array<float, HWY_MAX_BYTES / sizeof(float)> last{};
  hn::StoreU(Format::floats(rest.data()), d, last.data());
  std::memcpy(out + i, last.data(), (n - i) * sizeof(float));
}

/// How far ahead of what is multiplied. Processors fetch ahead by themselves, but not across the ends of short streams:
/// of a row of 4 KiB they get 12 % less from memory than with this.
constexpr size_t kPrefetchBytes = 512;

/// Several rows at once share the loads of x, keep the sums of one from waiting for each other, and give the memory
/// several streams to fetch ahead.
template <class Format, size_t kRows>
HWY_INLINE void multiply_rows(const std::byte* rows, size_t n, const float* x, float beta, float* y) {
  const FloatTag d;
  const size_t lanes = hn::Lanes(d);
  const size_t stride = n * Format::kBytes;
  Floats sums[kRows];
  for (size_t r = 0; r < kRows; ++r) sums[r] = hn::Zero(d);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto inputs = hn::LoadU(d, x + i);
    for (size_t r = 0; r < kRows; ++r) {
      const std::byte* weights = rows + r * stride + i * Format::kBytes;
      hwy::Prefetch(weights + kPrefetchBytes);
      sums[r] = hn::MulAdd(Format::floats(weights), inputs, sums[r]);
    }
  }
  if (i < n) {
    const Padded<float> rest(x + i, (n - i) * sizeof(float));
    const auto inputs = hn::LoadU(d, rest.data());
    for (size_t r = 0; r < kRows; ++r) {
      const Padded<std::byte> weights(rows + r * stride + i * Format::kBytes, (n - i) * Format::kBytes);
      sums[r] = hn::MulAdd(Format::floats(weights.data()), inputs, sums[r]);
    }
  }
  for (size_t r = 0; r < kRows; ++r) {
    const float sum = hn::GetLane(hn::SumOfLanes(d, sums[r]));
    y[r] = beta == 0.0f ? sum : sum + beta * y[r];
  }
}

template <class Format>
void multiply_all(const std::byte* rows, size_t count, size_t n, const float* x, float beta, float* y) {
  constexpr size_t kTogether = 8;
  size_t i = 0;
  for (; i + kTogether <= count; i += kTogether) {
    multiply_rows<Format, kTogether>(rows + i * n * Format::kBytes, n, x, beta, y + i);
  }
  for (; i < count; ++i) multiply_rows<Format, 1>(rows + i * n * Format::kBytes, n, x, beta, y + i);
}

void widen(kvq_dtype dtype, const std::byte* stored, size_t n, float* out) {
  if (dtype == KVQ_F32) return widen_all<Float32>(stored, n, out);
  if (dtype == KVQ_F16) return widen_all<Float16>(stored, n, out);
  widen_all<BFloat16>(stored, n, out);
}

void multiply(kvq_dtype dtype, const std::byte* rows, size_t count, size_t n, const float* x, float beta, float* y) {
  if (dtype == KVQ_F32) return multiply_all<Float32>(rows, count, n, x, beta, y);
  if (dtype == KVQ_F16) return multiply_all<Float16>(rows, count, n, x, beta, y);
  multiply_all<BFloat16>(rows, count, n, x, beta, y);
}

WeightKernels kernels(const char* isa) { return {.isa = isa, .widen = widen, .multiply = multiply}; }

}  // namespace llama::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace llama {
namespace {

/// The library knows what the processor and the system can do.
bool runs_here(std::string_view isa) {
  for (int32_t i = 0; i < kvq_cpu_isa_count(); ++i) {
    if (isa == kvq_cpu_isa_name(i)) return true;
  }
  return false;
}

std::vector<WeightKernels> kernels_here() {
  std::vector<WeightKernels> all;
#if (HWY_TARGETS & HWY_AVX3) != 0
  if (runs_here("avx512")) all.push_back(N_AVX3::kernels("avx512"));
#endif
#if (HWY_TARGETS & HWY_AVX2) != 0 && HWY_STATIC_TARGET != HWY_AVX2
  if (runs_here("avx2")) all.push_back(N_AVX2::kernels("avx2"));
#endif
  all.push_back(HWY_STATIC_DISPATCH(kernels)(kvq::isa_name(HWY_STATIC_TARGET)));
  return all;
}

}  // namespace

std::span<const WeightKernels> weight_kernels() {
  static const std::vector<WeightKernels> kernels = kernels_here();
  return kernels;
}

}  // namespace llama
#endif
