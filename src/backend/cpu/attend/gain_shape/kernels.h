// What an instruction set provides for pages around trained centres.
#pragma once

#include "backend/cpu/append/kernels.h"
#include "backend/cpu/attend/kernels.h"
#include "formats/gain_shape/turned_centres.h"

#include <cstddef>
#include <cstdint>

namespace kvq::cpu {

/// Block r of a row has numbers of the slots {4r, …, 4r + 3} in turn, a word of two numbers each.
inline size_t centre_plane_numbers(const centred::TurnOrder& order) {
  return static_cast<size_t>(kPageSlots * order.vectors() * centred::TurnOrder::kLanes);
}

/// The turns of the next page, which begins `step` later. Rows as put_turn() writes them; `out` may be `row`.
using NextTurnKernel = void (*)(const centred::TurnOrder& order, const float* row, const float* step, float* out);

/// The centres of a page of consecutive positions, turned as if it began at position 0.
/// indices: [32]; plane: centre_plane_numbers().
using PutCentresKernel = void (*)(const centred::TurnedCentres& centres, int32_t head, const uint8_t* indices,
                                  int16_t* plane);

/// scores[r][t] += q[r] · centre[t] for the 32 slots of a page.
/// turn: of the page's first slot; q: [rows, numbers()], in the order of centres, times kNorm over its norm, whose
/// inverse times the centres' unit is units[r]; scores: [rows, kTileSlots].
using CentreScoreKernel = void (*)(const centred::TurnOrder& order, const int16_t* plane, const float* turn,
                                   int32_t rows, const float* q, const float* units, float* scores);

/// The products of a row's pairs with those of a head's only centre, and what they come to without RoPE.
struct OneCentreRow {
  const float* weights;  // conj(q) · centre of pairs, in the middle of a page from position 0; [turn_floats()]
  float unit;            // of the pairs that are turned slot by slot
  float rest;            // of channels without RoPE
};
/// The same for a head with one centre, whose products with queries are turned instead.
using OneCentreKernel = void (*)(const centred::TurnedCentres& centres, const float* turn, int32_t rows,
                                 const OneCentreRow* q, float* scores);

struct CentreKernels {
  NearestKernel nearest = nullptr;
  EncodeCentredKernel encode = nullptr;
  RoomKernel room_bytes = nullptr;  // for `encode`
  NextTurnKernel next_turn = nullptr;  // null, as the three after it: centres are put together as FP16 keys
  PutCentresKernel put_centres = nullptr;
  CentreScoreKernel add_scores = nullptr;
  OneCentreKernel add_one_centre = nullptr;
};

}  // namespace kvq::cpu
