// An instruction set's kernels for pages around trained centres.
#pragma once

#include "backend/cpu/append/kernels.h"
#include "backend/cpu/attend/kernels.h"
#include "formats/gain_shape/rotated_centres.h"

#include <cstddef>
#include <cstdint>

namespace kvq::cpu {

/// Block r of a row interleaves slots {4r, …, 4r + 3}, one word of two values each.
inline size_t centre_plane_numbers(const centred::RotationOrder& order) {
  return static_cast<size_t>(kPageSlots * order.vectors() * centred::RotationOrder::kLanes);
}

/// Rotation of the next page, which begins `step` later. Rows as written by put_rotation(); `out` may be `row`.
using NextRotationKernel = void (*)(const centred::RotationOrder& order, const float* row, const float* step,
                                    float* out);

/// Centres of a page with consecutive positions, rotated as if it began at position 0.
/// indices: [32]; plane: centre_plane_numbers().
using PutCentresKernel = void (*)(const centred::RotatedCentres& centres, int32_t head, const uint8_t* indices,
                                  int16_t* plane);

/// scores[r][t] += q[r] · centre[t] for the 32 slots of a page.
/// rotation: the rotation of the page's first slot; q: [rows, numbers()], in the order of centres, times kNorm over its
/// norm; units[r]: the inverse of that factor times the centres' unit; scores: [rows, kTileSlots].
using CentreScoreKernel = void (*)(const centred::RotationOrder& order, const int16_t* plane, const float* rotation,
                                   int32_t rows, const float* q, const float* units, float* scores);

/// Products of a row's pairs with a head's only centre, and their part without RoPE.
struct OneCentreRow {
  const float* weights;  // conj(q) · centre per pair, in the middle of a page from position 0; [rotation_floats()]
  float unit;            // unit of the pairs rotated slot by slot
  float rest;            // sum over channels without RoPE
};
/// CentreScoreKernel for a head with one centre: rotates its products with queries instead.
using OneCentreKernel = void (*)(const centred::RotatedCentres& centres, const float* rotation, int32_t rows,
                                 const OneCentreRow* q, float* scores);

struct CentreKernels {
  NearestKernel nearest = nullptr;
  EncodeCentredKernel encode = nullptr;
  RoomKernel room_bytes = nullptr;             // for `encode`
  NextRotationKernel next_rotation = nullptr;  // null, like the next three: centres are assembled as FP16 keys
  PutCentresKernel put_centres = nullptr;
  CentreScoreKernel add_scores = nullptr;
  OneCentreKernel add_one_centre = nullptr;
};

}  // namespace kvq::cpu
