// Warpgroup products (Hopper's wgmma), their fences and named barriers.
#pragma once

#include <cstdint>

namespace kvq::cuda {

/// Swizzled plane in shared memory with rows of kRowBytes, 128 or 64, along the reduction; 16-byte chunks are permuted
/// by the row's number. Aligned to eight rows.
template <int kRowBytes>
__device__ __forceinline__ uint64_t describe_plane(uint32_t address) {
  constexpr uint64_t kSwizzle = uint64_t{kRowBytes == 128 ? 1 : 2} << 62U;
  constexpr uint64_t kEightRows = uint64_t{8 * kRowBytes / 16} << 32U;
  constexpr uint64_t kUnused = uint64_t{1} << 16U;
  return kSwizzle | kEightRows | kUnused | (address & 0x3FFFFU) >> 4U;
}

/// Swizzled plane in shared memory with rows of 64 bytes across the reduction: a row per value, one of 32 columns of
/// the operand after the other.
__device__ __forceinline__ uint64_t describe_transposed(uint32_t address) {
  constexpr uint64_t kSwizzle = uint64_t{2} << 62U;
  constexpr uint64_t kEightRows = uint64_t{8 * 64 / 16};
  return kSwizzle | kEightRows << 32U | kEightRows << 16U | (address & 0x3FFFFU) >> 4U;
}

/// The plane `bytes` further on. The address is the lower half of a description, and has no carry.
__device__ __forceinline__ uint64_t further(uint64_t plane, int32_t bytes) {
  const uint32_t address = static_cast<uint32_t>(plane) + static_cast<uint32_t>(bytes >> 4);
  return (plane & 0xFFFFFFFF00000000U) | address;
}
/// An address that is equal in all lanes, as the compiler then knows.
__device__ __forceinline__ uint32_t same_in_lanes(uint32_t address) { return __reduce_or_sync(0xFFFFFFFFU, address); }

/// Orders this thread's register and shared-memory writes before products started later.
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory"); }
/// Waits until at most kPending groups of products are pending.
template <int kPending>
__device__ __forceinline__ void wait_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kPending) : "memory");
}

/// Keeps the compiler from moving uses of an accumulator across waits.
template <int N>
__device__ __forceinline__ void hold(float (&x)[N]) {
#pragma unroll
  for (int32_t i = 0; i < N; ++i) asm volatile("" : "+f"(x[i])::"memory");
}

#define KVQ_F8(x, i)                                                                                          \
  "+f"(x[i]), "+f"(x[i + 1]), "+f"(x[i + 2]), "+f"(x[i + 3]), "+f"(x[i + 4]), "+f"(x[i + 5]), "+f"(x[i + 6]), \
      "+f"(x[i + 7])
#define KVQ_F32(x, i) KVQ_F8(x, i), KVQ_F8(x, i + 8), KVQ_F8(x, i + 16), KVQ_F8(x, i + 24)
#define KVQ_F16(x) KVQ_F8(x, 0), KVQ_F8(x, 8)
#define KVQ_REGISTERS_16 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}"
#define KVQ_REGISTERS_32                                                                            \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25," \
  "%26,%27,%28,%29,%30,%31}"
#define KVQ_REGISTERS_64                                                                            \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25," \
  "%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,"    \
  "%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}"

#define KVQ_REGISTERS_128                                                                    \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,"  \
  "%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45," \
  "%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,%64,%65,%66,%67," \
  "%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89," \
  "%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,"    \
  "%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,"    \
  "%126,%127}"

/// c (64 rows, 128 columns) = a · bᵀ, or c + a · bᵀ, over 16 values, both operands in shared memory. For lane (g, t) of
/// warp w, c[4j + 2h + i] is row 16w + 8h + g, column 8j + 2t + i.
__device__ __forceinline__ void multiply_planes(float (&c)[64], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 " KVQ_REGISTERS_64 ", %64, %65, p, 1, 1, 0, 0;\n}\n"
      : KVQ_F32(c, 0), KVQ_F32(c, 32)
      : "l"(a), "l"(b), "r"(add ? 1 : 0));
}

/// The same with 64 columns.
__device__ __forceinline__ void multiply_planes(float (&c)[32], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 " KVQ_REGISTERS_32 ", %32, %33, p, 1, 1, 0, 0;\n}\n"
      : KVQ_F32(c, 0)
      : "l"(a), "l"(b), "r"(add ? 1 : 0));
}

/// The same with 256 columns, always added.
__device__ __forceinline__ void multiply_planes(float (&c)[128], uint64_t a, uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 " KVQ_REGISTERS_128 ", %128, %129, 1, 1, 1, 0, 0;\n"
               : KVQ_F32(c, 0), KVQ_F32(c, 32), KVQ_F32(c, 64), KVQ_F32(c, 96)
               : "l"(a), "l"(b));
}
__device__ __forceinline__ void multiply_planes(float (&c)[64], uint64_t a, uint64_t b) {
  multiply_planes(c, a, b, true);
}

/// The same with 32 columns; kTransposed: of an operand with rows across the reduction.
template <bool kTransposed>
__device__ __forceinline__ void multiply_planes(float (&c)[16], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 " KVQ_REGISTERS_16 ", %16, %17, p, 1, 1, 0, %19;\n}\n"
      : KVQ_F16(c)
      : "l"(a), "l"(b), "r"(add ? 1 : 0), "n"(kTransposed ? 1 : 0));
}

/// c += a · bᵀ with `a` in registers: FP16 values of the columns of two groups of eight of an accumulator c.
__device__ __forceinline__ void multiply_registers(float (&c)[64], const uint32_t (&a)[4], uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 " KVQ_REGISTERS_64
               ", {%64,%65,%66,%67}, %68, 1, 1, 1, 0;\n"
               : KVQ_F32(c, 0), KVQ_F32(c, 32)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ __forceinline__ void multiply_registers(float (&c)[32], const uint32_t (&a)[4], uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 " KVQ_REGISTERS_32
               ", {%32,%33,%34,%35}, %36, 1, 1, 1, 0;\n"
               : KVQ_F32(c, 0)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

__device__ __forceinline__ void multiply_registers(float (&c)[128], const uint32_t (&a)[4], uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 " KVQ_REGISTERS_128
               ", {%128,%129,%130,%131}, %132, 1, 1, 1, 0;\n"
               : KVQ_F32(c, 0), KVQ_F32(c, 32), KVQ_F32(c, 64), KVQ_F32(c, 96)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

#undef KVQ_F8
#undef KVQ_F32
#undef KVQ_F16
#undef KVQ_REGISTERS_16
#undef KVQ_REGISTERS_32
#undef KVQ_REGISTERS_64
#undef KVQ_REGISTERS_128

template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}

/// Named barriers; 0 is that of __syncthreads.
__device__ __forceinline__ void wait_at(int32_t barrier, int32_t threads) {
  asm volatile("bar.sync %0, %1;\n" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ __forceinline__ void arrive_at(int32_t barrier, int32_t threads) {
  asm volatile("bar.arrive %0, %1;\n" ::"r"(barrier), "r"(threads) : "memory");
}

}  // namespace kvq::cuda
