// Products of decoded levels with many rows by AMX byte tiles: a tile of levels is 64 columns of 16 matrix rows, in
// decoding order; a tile of activations is 64 inputs of up to eight rows.
#include "backend/cpu/dispatch/avx512vnni.h"
#include "backend/cpu/linear/linear_avx512vnni.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,avx2,fma,f16c,amx-tile,amx-int8")

namespace kvq::cpu {
namespace {

// Matrix columns of a tile.
constexpr int32_t kDepth = weights::kInputMultiple;
constexpr int32_t kLevelTileBytes = kDepth * weights::kTileRows;
// Groups of rows accumulated in tiles at once: products into one tile of sums wait for each other.
constexpr int kGroupsAtOnce = 4;

// Tiles 0 to 3 are sums, 4 and 5 activations, 6 levels.
struct alignas(64) TileShapes {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {};
};

void begin(int32_t rows) {
  TileShapes shapes;
  for (int i = 0; i < 6; ++i) shapes.rows[i] = static_cast<uint8_t>(rows);
  shapes.rows[6] = kDepth / 4;
  __asm__ volatile("" : : "r"(&shapes) : "memory");  // GCC assumes that the intrinsic reads only eight bytes
  _tile_loadconfig(&shapes);
}

// Context switches of other code need not save tiles then.
void end() { _tile_release(); }

/// Sums of `kCount` groups with equal row counts, [kCount][rows][16].
template <int kCount>
inline void multiply_tiles(const uint8_t* levels, const std::byte* const (&x)[kGroupsAtOnce], size_t x_stride,
                           int32_t steps, int32_t* sums, int32_t group_sums) {
  _tile_zero(0);
  if constexpr (kCount > 1) _tile_zero(1);
  if constexpr (kCount > 2) _tile_zero(2);
  if constexpr (kCount > 3) _tile_zero(3);
  for (int32_t i = 0; i < steps; ++i) {
    const size_t at = static_cast<size_t>(i) * x_stride;
    _tile_loadd(6, levels + i * kLevelTileBytes, kQuadBytes);
    _tile_loadd(4, x[0] + at, kRowBytes);
    _tile_dpbsud(0, 4, 6);
    if constexpr (kCount > 1) {
      _tile_loadd(5, x[1] + at, kRowBytes);
      _tile_dpbsud(1, 5, 6);
    }
    if constexpr (kCount > 2) {
      _tile_loadd(4, x[2] + at, kRowBytes);
      _tile_dpbsud(2, 4, 6);
    }
    if constexpr (kCount > 3) {
      _tile_loadd(5, x[3] + at, kRowBytes);
      _tile_dpbsud(3, 5, 6);
    }
  }
  _tile_stored(0, sums, 64);
  if constexpr (kCount > 1) _tile_stored(1, sums + group_sums, 64);
  if constexpr (kCount > 2) _tile_stored(2, sums + 2 * group_sums, 64);
  if constexpr (kCount > 3) _tile_stored(3, sums + 3 * group_sums, 64);
}

template <int kCount>
void multiply_groups(const uint8_t* levels, const LinearSegment& segment, int32_t column, int32_t stop,
                     const ActivationGroup* groups, float* sums) {
  const int32_t rows = groups[0].rows;
  const std::byte* x[kGroupsAtOnce] = {};
  for (int g = 0; g < kCount; ++g) x[g] = groups[g].quads + kQuadSize * groups[g].quad_at(column, 0);
  alignas(64) int32_t tiles[kGroupsAtOnce * kGroupRows * weights::kTileRows];
  const int32_t group_sums = rows * weights::kTileRows;
  multiply_tiles<kCount>(levels, x, kRowBytes * static_cast<size_t>(rows), (stop - column) / kDepth, tiles, group_sums);
  const int32_t* tile_row = tiles;
  for (int g = 0; g < kCount; ++g) {
    for (int r = 0; r < rows; ++r, tile_row += weights::kTileRows, sums += weights::kTileRows) {
      const __m512i acc = _mm512_load_si512(tile_row);
      add_block(acc, segment, groups[g], column / weights::kActivationBlock, r, sums);
    }
  }
}

void multiply(const uint8_t* levels, const LinearSegment& segment, int32_t column, int32_t stop,
              const ActivationGroup* groups, int32_t count, float* sums) {
  int32_t done = 0;
  // Half-blocks may begin within a tile of activations, and the last group may have fewer rows.
  if (column % kDepth == 0 && stop % kDepth == 0) {
    const int32_t equal = groups[count - 1].rows == groups[0].rows ? count : count - 1;
    const auto multiply_next = [&]<int kCount>() {
      multiply_groups<kCount>(levels, segment, column, stop, groups + done, sums);
      sums += kCount * groups[0].rows * weights::kTileRows;
      done += kCount;
    };
    while (equal - done >= kGroupsAtOnce) multiply_next.template operator()<kGroupsAtOnce>();
    if (equal - done == 3) multiply_next.template operator()<3>();
    if (equal - done == 2) multiply_next.template operator()<2>();
    if (equal - done == 1) multiply_next.template operator()<1>();
  }
  if (done < count) avx512vnni_products().multiply(levels, segment, column, stop, groups + done, count - done, sums);
}

}  // namespace
}  // namespace kvq::cpu

HWY_POP_ATTRIBUTES

namespace kvq::cpu {

DecodedProducts amx_products() {
  constexpr int32_t kLeastRows = 5;
  return {kLeastRows, begin, multiply, end};
}

bool can_use_amx() {
  constexpr uint32_t kTilesAndByteProducts = 3U << 24U;
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;
  uint32_t eax = 0;
  uint32_t ebx = 0;
  uint32_t ecx = 0;
  uint32_t edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  return (edx & kTilesAndByteProducts) == kTilesAndByteProducts &&
         syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace kvq::cpu
