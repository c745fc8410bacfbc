// Tables of kernels, one for each Highway target of a source.
#pragma once

#include <hwy/detect_targets.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>

namespace kvq {

/// Users' name of a Highway target. On ARM64 there is one, whose name Highway changes with what it may use beyond NEON.
constexpr const char* isa_name(int64_t target) {
  if (target == HWY_AVX3) return "avx512";
  if (target == HWY_AVX2) return "avx2";
  return HWY_ARCH_ARM_A64 ? "neon" : "baseline";
}

/// Whether the processor and its system run Highway's target HWY_AVX2 or HWY_AVX3. Checked here so that only Highway's
/// headers are needed, not its library.
bool runs_target(int64_t target);

/// Whether the processor and its system run AVX-VNNI, or ARM64's dot products of bytes.
bool runs_dot_products();

template <typename Table>
struct TargetTable {
  int64_t target;  // Highway's bit; 0: runs everywhere
  const Table* table;

  bool runs_here() const { return target == 0 || runs_target(target); }
};

/// Tables that this processor can run, in the given order.
template <typename Table>
class RunnableTables {
 public:
  RunnableTables(std::initializer_list<TargetTable<Table>> tables) {
    for (const TargetTable<Table>& each : tables) {
      if (each.runs_here()) entries_[count_++] = each.table;
    }
  }
  std::span<const Table* const> all() const { return {entries_.data(), count_}; }

 private:
  std::array<const Table*, 3> entries_{};
  size_t count_ = 0;
};

}  // namespace kvq

#if (HWY_TARGETS & HWY_AVX3) != 0
#define KVQ_AVX3_TABLE(function) {HWY_AVX3, &N_AVX3::function()},
#else
#define KVQ_AVX3_TABLE(function)
#endif
#if (HWY_TARGETS & HWY_AVX2) != 0 && HWY_STATIC_TARGET != HWY_AVX2
#define KVQ_AVX2_TABLE(function) {HWY_AVX2, &N_AVX2::function()},
#else
#define KVQ_AVX2_TABLE(function)
#endif
/// The TargetTables that the function `function` of each target returns, best first; the last one runs everywhere.
/// Where HWY_ONCE is set, in the namespace around the targets'.
#define KVQ_TARGET_TABLES(function)                                                           \
  {                                                                                           \
    KVQ_AVX3_TABLE(function) KVQ_AVX2_TABLE(function) { 0, &HWY_STATIC_DISPATCH(function)() } \
  }
