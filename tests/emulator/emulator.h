// Emulates a CUDA device of compute capability 8.0 on one host thread, for kernels that translate.py converts to C++:
// blocks run one after the other, and the threads of a block are fibers that switch wherever they wait for each other.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <driver_types.h>
#include <vector_functions.h>
#include <vector_types.h>

#include <algorithm>
#include <bit>
#include <climits>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <type_traits>
#include <utility>

namespace emulator {

struct Index {
  unsigned x = 0;
  unsigned y = 0;
  unsigned z = 0;
};

// State of the running thread.
extern Index thread_index;
extern Index block_index;
extern dim3 block_dim;
extern dim3 grid_dim;
extern unsigned char* dynamic_memory;  // shared by its block; addresses of shared memory are relative to it

inline constexpr unsigned kLanes = 32;
inline constexpr unsigned kAll = ~0U;
inline constexpr size_t kLaneBytes = 64;  // that a lane passes to its warp at once

unsigned lane();
/// [kLanes][kLaneBytes]
unsigned char* warp_memory();
void yield();
void sync_block();
bool any_of_block(bool value);
void sync_warp(unsigned lanes);
void run(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& kernel);

template <typename Kernel>
void launch(dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t /*stream*/, const Kernel& kernel) {
  run(grid, block, shared_bytes, kernel);
}

template <typename... Parameters>
cudaError_t launch_pointer(const void* kernel, dim3 grid, dim3 block, void** parameters, size_t shared_bytes,
                           cudaStream_t /*stream*/) {
  const auto call = [&]<size_t... kIndex>(std::index_sequence<kIndex...> /*all*/) {
    reinterpret_cast<void (*)(Parameters...)>(const_cast<void*>(kernel))(
        *static_cast<Parameters*>(parameters[kIndex])...);
  };
  run(grid, block, shared_bytes, [&] { call(std::index_sequence_for<Parameters...>()); });
  return cudaSuccess;
}

/// Values of all lanes, by lane.
template <typename Value>
struct OfLanes {
  Value of[kLanes];
};

template <typename Value>
OfLanes<Value> gather(unsigned lanes, const Value& value) {
  static_assert(sizeof(Value) <= kLaneBytes);
  sync_warp(lanes);
  std::memcpy(warp_memory() + kLaneBytes * lane(), &value, sizeof(Value));
  sync_warp(lanes);
  OfLanes<Value> all{};
  for (unsigned i = 0; i < kLanes; ++i) std::memcpy(&all.of[i], warp_memory() + kLaneBytes * i, sizeof(Value));
  sync_warp(lanes);
  return all;
}

template <typename Value, typename Join>
Value join(unsigned lanes, Value value, const Join& join) {
  const OfLanes<Value> all = gather(lanes, value);
  bool first = true;
  for (unsigned i = 0; i < kLanes; ++i) {
    if ((lanes >> i & 1U) == 0) continue;
    value = first ? all.of[i] : join(value, all.of[i]);
    first = false;
  }
  return value;
}

inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(pointer) - reinterpret_cast<uintptr_t>(dynamic_memory));
}
/// Aborts, as a GPU would, if the address is not a multiple of `alignment`.
inline unsigned char* shared_memory(uint32_t address, size_t alignment) {
  unsigned char* pointer = dynamic_memory + static_cast<int32_t>(address);
  if (reinterpret_cast<uintptr_t>(pointer) % alignment != 0) __builtin_trap();
  return pointer;
}

// Instructions.

inline float from_half(uint32_t bits) {
  __half_raw raw;
  raw.x = static_cast<unsigned short>(bits);
  return __half2float(__half(raw));
}
inline uint32_t to_half(float value) { return static_cast<__half_raw>(__float2half_rn(value)).x; }
/// Calls compute(i) for each 16-bit half of a word.
template <typename Compute>
uint32_t halves(const Compute& compute) {
  return to_half(compute(0)) | to_half(compute(16)) << 16U;
}

inline void exp2(float& out, float x) { out = exp2f(x); }
inline void log2(float& out, float x) { out = log2f(x); }
template <typename Number>
void lane_id(Number& out) {
  out = static_cast<Number>(lane());
}
inline void permute_bytes(uint32_t& out, uint32_t a, uint32_t b, uint32_t select) {
  const uint64_t bytes = uint64_t{b} << 32U | a;
  uint32_t result = 0;
  for (unsigned i = 0; i < 4; ++i) {
    const uint32_t which = select >> (4 * i);
    uint32_t byte = static_cast<uint32_t>(bytes >> (8 * (which & 7U))) & 255U;
    if ((which & 8U) != 0) byte = byte >= 128 ? 255 : 0;
    result |= byte << (8 * i);
  }
  out = result;
}
/// 1, 2 or 4 words, then the address.
template <typename... Operands>
void load_shared(Operands&&... operands) {
  constexpr size_t kWords = sizeof...(Operands) - 1;
  uint32_t* words[kWords + 1];
  uint32_t address = 0;
  size_t i = 0;
  const auto take = [&](auto& operand) {
    if (i < kWords) words[i] = const_cast<uint32_t*>(&operand);
    if (i++ == kWords) address = operand;
  };
  (take(operands), ...);
  const unsigned char* from = shared_memory(address, 4 * kWords);
  for (size_t word = 0; word < kWords; ++word) std::memcpy(words[word], from + 4 * word, 4);
}
inline void read_bits(uint32_t& out, const void* from, int32_t bytes) {
  std::memcpy(&out, from, static_cast<size_t>(bytes));
}
inline void pack_halves(uint32_t& out, float high, float low) { out = to_half(low) | to_half(high) << 16U; }
inline void multiply_halves(uint32_t& out, uint32_t a, uint32_t b) {
  out = halves([=](unsigned i) { return from_half(a >> i) * from_half(b >> i); });
}
inline void multiply_add_halves(uint32_t& out, uint32_t a, uint32_t b, uint32_t c) {
  out = halves([=](unsigned i) {
    return static_cast<float>(double{from_half(a >> i)} * from_half(b >> i) + from_half(c >> i));
  });
}
inline void negate_halves(uint32_t& out, uint32_t a) { out = a ^ 0x80008000U; }

/// Element (row, column) of an 8 x 8 FP16 matrix is in lane 4 · row + column / 2.
inline void transpose_matrix(uint32_t& out, uint32_t two) {
  const auto all = gather(kAll, two);
  const unsigned row = lane() / 4;
  uint32_t result = 0;
  for (unsigned i = 0; i < 2; ++i) {
    const unsigned column = lane() % 4 * 2 + i;
    result |= (all.of[column * 4 + row / 2] >> (16 * (row % 2)) & 0xFFFFU) << (16 * i);
  }
  out = result;
}

struct Operands {
  uint32_t a[4];
  uint32_t b[2];
};

/// Sums += A · B with 16 rows, 8 columns and a depth of 8 words of `kPerWord` numbers; number(word, i).
template <unsigned kPerWord, typename Total, typename Sum, typename Number>
void multiply_tiles(Sum* const (&sums)[4], const Operands& own, const Number& number) {
  const auto all = gather(kAll, own);
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned row = lane() / 4 + 8 * (i / 2);
    const unsigned column = lane() % 4 * 2 + i % 2;
    Total total{};
    for (unsigned word = 0; word < 8; ++word) {
      const uint32_t a = all.of[row % 8 * 4 + word % 4].a[row / 8 + 2 * (word / 4)];
      const uint32_t b = all.of[column * 4 + word % 4].b[word / 4];
      for (unsigned k = 0; k < kPerWord; ++k) total += static_cast<Total>(number(a, k)) * number(b, k);
    }
    *sums[i] = static_cast<Sum>(*sums[i] + total);
  }
}
inline void mma_halves(float& c0, float& c1, float& c2, float& c3, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                       uint32_t b0, uint32_t b1) {
  multiply_tiles<2, double, float>({&c0, &c1, &c2, &c3}, {{a0, a1, a2, a3}, {b0, b1}},
                                   [](uint32_t word, unsigned k) { return from_half(word >> (16 * k)); });
}
inline void mma_bytes(int32_t& c0, int32_t& c1, int32_t& c2, int32_t& c3, uint32_t a0, uint32_t a1, uint32_t a2,
                      uint32_t a3, uint32_t b0, uint32_t b1) {
  multiply_tiles<4, int32_t, int32_t>(
      {&c0, &c1, &c2, &c3}, {{a0, a1, a2, a3}, {b0, b1}},
      [](uint32_t word, unsigned k) { return int32_t{static_cast<int8_t>(word >> (8 * k))}; });
}

template <bool kTransposed>
void load_four_matrices(uint32_t* const (&out)[4], uint32_t row) {
  const auto rows = gather(kAll, row);
  for (unsigned m = 0; m < 4; ++m) {
    uint32_t two = 0;
    for (unsigned i = 0; i < 2; ++i) {
      const unsigned r = kTransposed ? 2 * (lane() % 4) + i : lane() / 4;
      const unsigned column = kTransposed ? lane() / 4 : 2 * (lane() % 4) + i;
      uint16_t half = 0;
      std::memcpy(&half, shared_memory(rows.of[8 * m + r], 16) + 2 * column, 2);
      two |= uint32_t{half} << (16 * i);
    }
    *out[m] = two;
  }
}
inline void load_matrices(uint32_t& r0, uint32_t& r1, uint32_t& r2, uint32_t& r3, uint32_t row) {
  load_four_matrices<false>({&r0, &r1, &r2, &r3}, row);
}
inline void load_matrices_transposed(uint32_t& r0, uint32_t& r1, uint32_t& r2, uint32_t& r3, uint32_t row) {
  load_four_matrices<true>({&r0, &r1, &r2, &r3}, row);
}

struct Barrier {
  uint16_t arrivals;
  uint16_t pending;
  uint32_t phase;
};
inline Barrier& barrier(uint32_t address) { return *reinterpret_cast<Barrier*>(shared_memory(address, 8)); }
inline void init_barrier(uint32_t address, uint32_t arrivals) {
  barrier(address) = {static_cast<uint16_t>(arrivals), static_cast<uint16_t>(arrivals), 0};
}
inline void arrive(uint32_t address) {
  Barrier& at = barrier(address);
  if (--at.pending > 0) return;
  at.pending = at.arrivals;
  ++at.phase;
}
inline void test_barrier(uint32_t& done, uint32_t address, uint32_t parity) {
  done = barrier(address).phase % 2 != parity ? 1 : 0;
  if (done == 0) yield();
}

template <size_t kBytes, typename From>
void copy(uint32_t to, From from) {
  const auto* pointer = reinterpret_cast<const unsigned char*>(from);
  if (reinterpret_cast<uintptr_t>(pointer) % kBytes != 0) __builtin_trap();
  std::memcpy(shared_memory(to, kBytes), pointer, kBytes);
}
template <typename From>
void copy_16(uint32_t to, From from) {
  copy<16>(to, from);
}
inline void copy_next_16(uint32_t to, const void* from) { copy<16>(to, static_cast<const unsigned char*>(from) + 16); }
template <typename From>
void copy_8(uint32_t to, From from) {
  copy<8>(to, from);
}
inline void take(int32_t& before, int32_t* number) { before = (*number)++; }
template <typename... Anything>
void keep(Anything&... /*numbers*/) {}
template <typename... Anything>
void nothing(Anything&&... /*operands*/) {}

}  // namespace emulator

// CUDA's additions to C++.

template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               const Arguments&... arguments) {
  emulator::launch(config->gridDim, config->blockDim, config->dynamicSmemBytes, config->stream,
                   [&] { kernel(arguments...); });
  return cudaSuccess;
}

#define threadIdx emulator::thread_index
#define blockIdx emulator::block_index
#define blockDim emulator::block_dim
#define gridDim emulator::grid_dim
#undef __shared__
#define __shared__ static
#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __maxnreg__
#define __maxnreg__(...)
#undef __grid_constant__
#define __grid_constant__
#undef __global__
#define __global__
#undef __device__
#define __device__
#undef __host__
#define __host__
#undef __forceinline__
#define __forceinline__ inline
#undef __noinline__
#define __noinline__

// Loads that bypass the caches are plain loads.
#define __ldg(pointer) (*(pointer))
#define __ldcg(pointer) (*(pointer))
#define __ldcs(pointer) (*(pointer))

inline void __syncthreads() { emulator::sync_block(); }
inline int __syncthreads_or(int value) { return emulator::any_of_block(value != 0) ? 1 : 0; }
inline void __syncwarp(unsigned lanes = emulator::kAll) { emulator::sync_warp(lanes); }

template <typename Value>
Value __shfl_sync(unsigned lanes, Value value, int from) {
  return emulator::gather(lanes, value).of[static_cast<unsigned>(from) % emulator::kLanes];
}
template <typename Value>
Value __shfl_xor_sync(unsigned lanes, Value value, int distance) {
  return emulator::gather(lanes, value).of[emulator::lane() ^ static_cast<unsigned>(distance)];
}
template <typename Value>
Value __shfl_up_sync(unsigned lanes, Value value, unsigned distance) {
  const unsigned own = emulator::lane();
  return emulator::gather(lanes, value).of[own >= distance ? own - distance : own];
}
inline unsigned __ballot_sync(unsigned lanes, int value) {
  const unsigned own = value != 0 ? 1U << emulator::lane() : 0U;
  return emulator::join(lanes, own, [](unsigned a, unsigned b) { return a | b; });
}
inline int __all_sync(unsigned lanes, int value) { return __ballot_sync(lanes, value) == lanes ? 1 : 0; }
inline int __any_sync(unsigned lanes, int value) { return __ballot_sync(lanes, value) != 0 ? 1 : 0; }
template <typename Number>
Number __reduce_max_sync(unsigned lanes, Number number) {
  return emulator::join(lanes, number, [](Number a, Number b) { return std::max(a, b); });
}
template <typename Number>
Number __reduce_min_sync(unsigned lanes, Number number) {
  return emulator::join(lanes, number, [](Number a, Number b) { return std::min(a, b); });
}
template <typename Number>
Number __reduce_add_sync(unsigned lanes, Number number) {
  return emulator::join(lanes, number, [](Number a, Number b) { return a + b; });
}

template <typename To, typename From>
To emulated_cast(From from) {
  To to;
  std::memcpy(&to, &from, sizeof(To));
  return to;
}
inline float __uint_as_float(unsigned bits) { return emulated_cast<float>(bits); }
inline unsigned __float_as_uint(float number) { return emulated_cast<unsigned>(number); }
inline float __int_as_float(int bits) { return emulated_cast<float>(bits); }
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned select) {
  uint32_t result = 0;
  emulator::permute_bytes(result, a, b, select);
  return result;
}
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>(uint64_t{a} * b >> 32U); }
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) {
  return static_cast<unsigned>((uint64_t{high} << 32U | low) << (by % 32) >> 32U);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
  return static_cast<unsigned>((uint64_t{high} << 32U | low) >> (by % 32));
}
inline int __float2int_rn(float number) { return static_cast<int>(std::nearbyint(number)); }
inline float __fadd_rz(float a, float b) {
  const double exact = double{a} + b;
  const auto nearest = static_cast<float>(exact);
  return std::fabs(double{nearest}) > std::fabs(exact) ? std::nextafter(nearest, 0.0F) : nearest;
}
inline float __cosf(float x) { return std::cos(x); }
inline float __sinf(float x) { return std::sin(x); }
inline float rsqrtf(float x) { return 1.0F / std::sqrt(x); }
inline int __dp4a(int a, int b, int sum) {
  for (int i = 0; i < 32; i += 8) sum += int{static_cast<int8_t>(a >> i)} * static_cast<int8_t>(b >> i);
  return sum;
}
inline __half2 __hfma2(const __half2& a, const __half2& b, const __half2& c) {
  uint32_t pairs[3];
  std::memcpy(&pairs[0], &a, 4);
  std::memcpy(&pairs[1], &b, 4);
  std::memcpy(&pairs[2], &c, 4);
  uint32_t bits = 0;
  emulator::multiply_add_halves(bits, pairs[0], pairs[1], pairs[2]);
  __half2 out;
  std::memcpy(&out, &bits, 4);
  return out;
}
inline unsigned __viaddmin_u16x2(unsigned a, unsigned b, unsigned c) {
  const auto half = [=](unsigned i) { return std::min(((a >> i) + (b >> i)) & 0xFFFFU, c >> i & 0xFFFFU); };
  return half(0) | half(16) << 16U;
}
inline unsigned __vminu2(unsigned a, unsigned b) { return __viaddmin_u16x2(a, 0, b); }
inline void __threadfence() {}
template <typename Number>
Number atomicAdd(Number* to, Number number) {
  return std::exchange(*to, *to + number);
}
template <typename Number>
Number atomicMax(Number* to, Number number) {
  return std::exchange(*to, std::max(*to, number));
}
inline unsigned atomicOr(unsigned* to, unsigned bits) { return std::exchange(*to, *to | bits); }
inline size_t __cvta_generic_to_shared(const void* pointer) { return emulator::shared_address(pointer); }
template <typename Pointer>
Pointer __cvta_generic_to_global(Pointer pointer) {
  return pointer;
}

template <typename... Parameters>
cudaError_t cudaFuncSetAttribute(void (* /*kernel*/)(Parameters...), cudaFuncAttribute /*which*/, int /*value*/) {
  return cudaSuccess;
}

template <typename A, typename B>
concept DifferentNumbers = std::is_arithmetic_v<A> && std::is_arithmetic_v<B>;
template <typename A, typename B>
requires DifferentNumbers<A, B>
constexpr std::common_type_t<A, B> min(A a, B b) { return b < a ? b : a; }
template <typename A, typename B>
requires DifferentNumbers<A, B>
constexpr std::common_type_t<A, B> max(A a, B b) { return a < b ? b : a; }
using std::fma;
using std::rint;
