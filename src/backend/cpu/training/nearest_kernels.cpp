// Compiled once per Highway target: this file includes itself through foreach_target.h.
#include "backend/cpu/training/nearest_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/training/nearest_kernels.cpp"
#include <hwy/foreach_target.h>  // must precede highway.h

#include <hwy/highway.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "core/target_tables.h"

HWY_BEFORE_NAMESPACE();
namespace kvq::centres::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using Tag = hn::CappedTag<float, kLanes>;
using Vector = hn::Vec<Tag>;

#if HWY_TARGET == HWY_AVX3
inline constexpr int kRows = 8;  // rows with sums in registers at once
inline constexpr int kVectors = 2;
#else
inline constexpr int kRows = 4;
inline constexpr int kVectors = 2;
#endif

/// The least costs so far by lane, and their centres' indices, which a float holds exactly.
template <int kN>
struct Least {
  Vector cost[kN];
  Vector centre[kN];
};

/// Compares kWide vectors of centres from number `first`.
template <int kN, int kWide>
HWY_INLINE void see(const PackedCentres& centres, size_t first, const float* vectors, Least<kN>& least) {
  const Tag d;
  const size_t lanes = hn::Lanes(d);
  const auto dim = static_cast<size_t>(centres.dim);
  const float* from[kWide];
  for (size_t a = 0; a < kWide; ++a) {
    const size_t centre = first + a * lanes;
    from[a] = centres.numbers + centre / kLanes * kLanes * dim + centre % kLanes;
  }
  Vector sum[kN][kWide];
  for (size_t r = 0; r < kN; ++r) {
    for (size_t a = 0; a < kWide; ++a) sum[r][a] = hn::Zero(d);
  }
  for (size_t i = 0; i < dim; ++i) {
    Vector c[kWide];
    for (size_t a = 0; a < kWide; ++a) c[a] = hn::LoadU(d, from[a] + i * kLanes);
    for (size_t r = 0; r < kN; ++r) {
      const Vector x = hn::Set(d, vectors[r * dim + i]);
      for (size_t a = 0; a < kWide; ++a) sum[r][a] = hn::Add(sum[r][a], hn::Mul(c[a], x));
    }
  }
  for (size_t a = 0; a < kWide; ++a) {
    const size_t centre = first + a * lanes;
    const Vector half_norm = hn::LoadU(d, centres.half_norms + centre);
    const Vector number = hn::Iota(d, static_cast<float>(centre));
    for (size_t r = 0; r < kN; ++r) {
      const Vector cost = hn::Sub(half_norm, sum[r][a]);
      const auto less = hn::Lt(cost, least.cost[r]);
      least.cost[r] = hn::IfThenElse(less, cost, least.cost[r]);
      least.centre[r] = hn::IfThenElse(less, number, least.centre[r]);
    }
  }
}

template <int kN>
HWY_INLINE void nearest_of_rows(const PackedCentres& centres, const float* vectors, uint8_t* nearest) {
  const Tag d;
  const size_t lanes = hn::Lanes(d);
  const auto end = static_cast<size_t>(padded(centres.n));
  Least<kN> least;
  for (size_t r = 0; r < kN; ++r) {
    least.cost[r] = hn::Set(d, HUGE_VALF);
    least.centre[r] = hn::Zero(d);
  }
  size_t first = 0;
  for (; first + kVectors * lanes <= end; first += kVectors * lanes) see<kN, kVectors>(centres, first, vectors, least);
  for (; first < end; first += lanes) see<kN, 1>(centres, first, vectors, least);
  for (size_t r = 0; r < kN; ++r) {
    std::array<float, kLanes> cost;
    std::array<float, kLanes> centre;
    hn::StoreU(least.cost[r], d, cost.data());
    hn::StoreU(least.centre[r], d, centre.data());
    size_t best = 0;
    for (size_t lane = 1; lane < lanes; ++lane) {
      const bool first_of_equals = cost[lane] == cost[best] && centre[lane] < centre[best];
      if (cost[lane] < cost[best] || first_of_equals) best = lane;
    }
    nearest[r] = static_cast<uint8_t>(centre[best]);
  }
}

void nearest(const PackedCentres& centres, const float* vectors, int32_t rows, uint8_t* nearest) {
  const auto dim = static_cast<size_t>(centres.dim);
  int32_t done = 0;
  for (; done + kRows <= rows; done += kRows) {
    const auto at = static_cast<size_t>(done);
    nearest_of_rows<kRows>(centres, vectors + at * dim, nearest + at);
  }
  for (; done < rows; ++done) {
    const auto at = static_cast<size_t>(done);
    nearest_of_rows<1>(centres, vectors + at * dim, nearest + at);
  }
}

const NearestKernels& nearest_table() {
  static constexpr NearestKernels kTable = {isa_name(HWY_TARGET), nearest};
  return kTable;
}

}  // namespace kvq::centres::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvq::centres {
std::span<const NearestKernels* const> nearest_kernels() {
  static const RunnableTables<NearestKernels> tables(KVQ_TARGET_TABLES(nearest_table));
  return tables.all();
}

}  // namespace kvq::centres
#endif
