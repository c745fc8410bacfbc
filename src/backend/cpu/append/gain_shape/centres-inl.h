// Vectors relative to the nearest centre of their head: 32 slots at once, as `[channels][32 slots]`. Operations and
// their order equal those of centred::encode() and CentreSearch.
#if defined(KVQ_APPEND_CENTRES_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef KVQ_APPEND_CENTRES_INL_H
#undef KVQ_APPEND_CENTRES_INL_H
#else
#define KVQ_APPEND_CENTRES_INL_H
#endif

#include "backend/cpu/append/gain_shape/gain_shape-inl.h"
#include "backend/cpu/append/kernels.h"
#include "backend/cpu/append/transpose-inl.h"
#include "formats/gain_shape/centre_search.h"
#include "formats/gain_shape/context.h"

#include <hwy/highway.h>

#include <algorithm>
#include <array>
#include <limits>

HWY_BEFORE_NAMESPACE();
namespace kvq::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Multiplies four slots by a vector of centres at a time. Sums of byte products are exact in floats.
inline void nearest_centres(const centred::CentreSearch& search, const float* biases, const uint32_t* words,
                            const float* units, int32_t used, uint8_t* indices) {
  constexpr int32_t kQuad = centred::CentreSearch::kQuad;
  constexpr int32_t kSlots = 4;
  const hn::CappedTag<float, centred::CentreSearch::kLanes> d;
  const hn::RebindToSigned<decltype(d)> di;
  const auto lanes = static_cast<int32_t>(hn::Lanes(d));
  const int32_t padded = search.padded_count();
  const auto* centres = reinterpret_cast<const int32_t*>(search.rounded.data());
  HWY_ALIGN_MAX float numbers[kMaxTrainedDim + kQuad][kSlots];
  for (int32_t first = 0; first < used; first += kSlots) {
    for (int32_t channel = 0; channel < search.quads() * kQuad; ++channel) {
      for (int32_t i = 0; i < kSlots; ++i) {
        const uint32_t word = words[channel / kQuad * kPageSlots + first + i];
        numbers[channel][i] = static_cast<int8_t>(word >> static_cast<uint32_t>(8 * (channel % kQuad)));
      }
    }
    hn::Vec<decltype(d)> best[kSlots];
    hn::Vec<decltype(di)> places[kSlots];
    for (int32_t i = 0; i < kSlots; ++i) {
      best[i] = hn::Set(d, -std::numeric_limits<float>::infinity());
      places[i] = hn::Zero(di);
    }
    for (int32_t centre = 0; centre < padded; centre += lanes) {
      hn::Vec<decltype(d)> sums[kSlots];
      for (int32_t i = 0; i < kSlots; ++i) sums[i] = hn::Zero(d);
      for (int32_t quad = 0; quad < search.quads(); ++quad) {
        const auto bytes = hn::LoadU(di, centres + quad * padded + centre);
        const hn::Vec<decltype(d)> channels[kQuad] = {hn::ConvertTo(d, hn::ShiftRight<24>(hn::ShiftLeft<24>(bytes))),
                                                      hn::ConvertTo(d, hn::ShiftRight<24>(hn::ShiftLeft<16>(bytes))),
                                                      hn::ConvertTo(d, hn::ShiftRight<24>(hn::ShiftLeft<8>(bytes))),
                                                      hn::ConvertTo(d, hn::ShiftRight<24>(bytes))};
        for (int32_t k = 0; k < kQuad; ++k) {
          const float* of_channel = numbers[quad * kQuad + k];
          for (int32_t i = 0; i < kSlots; ++i) {
            sums[i] = hn::MulAdd(channels[k], hn::Set(d, of_channel[i]), sums[i]);
          }
        }
      }
      const auto bias = hn::LoadU(d, biases + centre);
      const auto place = hn::Iota(di, centre);
      for (int32_t i = 0; i < kSlots; ++i) {
        const auto score = hn::Sub(hn::Mul(sums[i], hn::Set(d, units[first + i])), bias);
        const auto better = hn::Gt(score, best[i]);
        best[i] = hn::IfThenElse(better, score, best[i]);
        places[i] = hn::IfThenElse(hn::RebindMask(di, better), place, places[i]);
      }
    }
    for (int32_t i = 0; i < std::min(kSlots, used - first); ++i) {
      const auto highest = hn::Eq(best[i], hn::MaxOfLanes(d, best[i]));
      const auto candidates = hn::IfThenElse(hn::RebindMask(di, highest), places[i], hn::Set(di, padded));
      indices[first + i] = static_cast<uint8_t>(hn::GetLane(hn::MinOfLanes(di, candidates)));
    }
  }
}

/// Work space of a CentreTaker.
struct CentreRoom {
  CentreRoom(int32_t head_dim, MemoryCutter& room) {
    const auto channels = static_cast<size_t>(head_dim + 4);
    rotations = room.take<float>(channels * kPageSlots);
    numbers = room.take<float>(channels * kPageSlots);
    rows = room.take<float>(channels * kPageSlots);
    words = room.take<uint32_t>(channels * kPageSlots / 4);
  }

  float* rotations;  // [2 · pairs][slots]
  float* numbers;    // [channels][slots]
  float* rows;       // [slots][channels]
  uint32_t* words;   // [quads][slots]
};

class CentreTaker {
  using D = hn::ScalableTag<float>;  // 16 lanes at most
  using V = hn::Vec<D>;
  static constexpr int32_t kLanes = hn::MaxLanes(D());
  static constexpr float kTop = 127.0F;

 public:
  CentreTaker(const SideToEncode& side, MemoryCutter& room)
      : side_(side),
        context_(centred::context_of(*side.context)),
        search_(context_.search(side.side, side.first_head)),
        rope_(context_.rotations.rope()),
        dim_(side.format.head.of(side.side)),
        room_(side.format.head.of(side.side), room) {}

  /// Subtracts the nearest centres from `[channels][32]`; free slots stay as they are.
  void take(NearestKernel nearest, float* x) {
    const SideLayout where = context_.layout(side_.side, side_.format);
    std::byte* out = side_.out.front();
    bool by_page = true;
    if (keys()) {
      by_page = fill_slot_rotations();
      const uint16_t own = by_page ? 0 : 1;
      std::memcpy(out + where.slot_rotation_offset(), &own, sizeof(own));
    }
    std::array<uint8_t, kPageSlots> indices{};
    if (where.has_indices) {
      round(x);
      nearest(search_, context_.biases(side_.side, side_.first_head, by_page), room_.words, units_, side_.used,
              indices.data());
      std::memcpy(out + where.index_offset(), indices.data(), static_cast<size_t>(side_.used));
    }
    gather(indices.data());
    subtract(x);
  }

 private:
  bool keys() const { return side_.side == Side::kKeys; }
  float* cosines(int32_t pair) { return room_.rotations + pair * kPageSlots; }
  float* sines(int32_t pair) { return room_.rotations + (rope_.pairs() + pair) * kPageSlots; }

  bool fill_slot_rotations() {
    const D d;
    const int32_t pairs = rope_.pairs();
    const SlotPositions& positions = side_.positions;
    std::array<float, kMaxTrainedDim> row;
    if (!positions.are_consecutive(side_.used)) {
      for (int32_t slot = 0; slot < kPageSlots; ++slot) {
        context_.rotations.fill(positions[std::min(slot, side_.used - 1)], row.data());
        for (int32_t i = 0; i < 2 * pairs; ++i) room_.rotations[i * kPageSlots + slot] = row[static_cast<size_t>(i)];
      }
      return false;
    }
    context_.rotations.fill(positions[0], row.data());
    const float* columns = context_.page_columns.data();
    for (int32_t pair = 0; pair < pairs; ++pair) {
      const auto c = hn::Set(d, row[static_cast<size_t>(pair)]);
      const auto s = hn::Set(d, row[static_cast<size_t>(pairs + pair)]);
      for (int32_t slot = 0; slot < kPageSlots; slot += kLanes) {
        const auto within_c = hn::LoadU(d, columns + pair * kPageSlots + slot);
        const auto within_s = hn::LoadU(d, columns + (pairs + pair) * kPageSlots + slot);
        hn::Store(hn::Sub(hn::Mul(c, within_c), hn::Mul(s, within_s)), d, cosines(pair) + slot);
        hn::Store(hn::Add(hn::Mul(c, within_s), hn::Mul(s, within_c)), d, sines(pair) + slot);
      }
    }
    return true;
  }

  /// Centres one value, rotated back if it is a key's, on the mean of the centres.
  void put_back(int32_t channel, int32_t slot, V x, V& largest) {
    const D d;
    const auto number = hn::Sub(x, hn::Set(d, search_.mean[static_cast<size_t>(channel)]));
    hn::Store(number, d, room_.numbers + channel * kPageSlots + slot);
    largest = hn::Max(largest, hn::Abs(number));
  }

  void round(const float* x) {
    const D d;
    const hn::RebindToUnsigned<D> du;
    constexpr int32_t kQuad = centred::CentreSearch::kQuad;
    const int32_t pairs = keys() ? rope_.pairs() : 0;
    for (int32_t slot = 0; slot < kPageSlots; slot += kLanes) {
      auto largest = hn::Zero(d);
      for (int32_t pair = 0; pair < pairs; ++pair) {
        const int32_t first = rope_.first_channel(pair);
        const int32_t second = rope_.second_channel(pair);
        const auto a = hn::Load(d, x + first * kPageSlots + slot);
        const auto b = hn::Load(d, x + second * kPageSlots + slot);
        const auto c = hn::Load(d, cosines(pair) + slot);
        const auto s = hn::Load(d, sines(pair) + slot);
        put_back(first, slot, hn::Add(hn::Mul(a, c), hn::Mul(b, s)), largest);
        put_back(second, slot, hn::Sub(hn::Mul(b, c), hn::Mul(a, s)), largest);
      }
      for (int32_t channel = 2 * pairs; channel < dim_; ++channel) {
        put_back(channel, slot, hn::Load(d, x + channel * kPageSlots + slot), largest);
      }
      const auto inverse = hn::IfThenElseZero(hn::Gt(largest, hn::Zero(d)), hn::Div(hn::Set(d, kTop), largest));
      hn::Store(hn::Mul(hn::Div(largest, hn::Set(d, kTop)), hn::Set(d, search_.scale)), d, units_ + slot);
      std::fill(room_.numbers + dim_ * kPageSlots, room_.numbers + search_.quads() * kQuad * kPageSlots, 0.0F);
      for (int32_t quad = 0; quad < search_.quads(); ++quad) {
        const float* from = room_.numbers + quad * kQuad * kPageSlots + slot;
        const auto byte = [&](int32_t i) {
          const auto rounded = hn::NearestInt(hn::Mul(hn::Load(d, from + i * kPageSlots), inverse));
          return hn::And(hn::BitCast(du, rounded), hn::Set(du, 0xFFU));
        };
        const auto low = hn::Or(byte(0), hn::ShiftLeft<8>(byte(1)));
        const auto high = hn::Or(hn::ShiftLeft<16>(byte(2)), hn::ShiftLeft<24>(byte(3)));
        hn::Store(hn::Or(low, high), du, room_.words + quad * kPageSlots + slot);
      }
    }
  }

  /// Loads the centres of all slots; zeros for free slots.
  void gather(const uint8_t* indices) {
    const D d;
    const hn::RebindToUnsigned<D> du;
    const int32_t stride = (dim_ + 3) / 4 * 4;
    for (int32_t slot = 0; slot < kPageSlots; ++slot) {
      float* row = room_.rows + slot * stride;
      const float* centre = context_.centre(side_.side, side_.first_head, indices[slot]);
      std::fill(std::copy_n(centre, slot < side_.used ? dim_ : 0, row), row + stride, 0.0F);
    }
    for (int32_t slot = 0; slot < kPageSlots; slot += kLanes) {
      for (int32_t channel = 0; channel < dim_; channel += 4) {
        hn::Vec<decltype(du)> columns[4];
        load_columns(du, reinterpret_cast<const uint32_t*>(room_.rows + slot * stride) + channel, stride, columns);
        for (int32_t i = 0; i < 4; ++i) {
          hn::Store(hn::BitCast(d, columns[i]), d, room_.numbers + (channel + i) * kPageSlots + slot);
        }
      }
    }
  }

  void subtract(float* x) {
    const D d;
    const int32_t pairs = keys() ? rope_.pairs() : 0;
    for (int32_t slot = 0; slot < kPageSlots; slot += kLanes) {
      const auto take = [&](int32_t channel, V centre) {
        float* of_channel = x + channel * kPageSlots + slot;
        hn::Store(hn::Sub(hn::Load(d, of_channel), centre), d, of_channel);
      };
      for (int32_t pair = 0; pair < pairs; ++pair) {
        const int32_t first = rope_.first_channel(pair);
        const int32_t second = rope_.second_channel(pair);
        const auto a = hn::Load(d, room_.numbers + first * kPageSlots + slot);
        const auto b = hn::Load(d, room_.numbers + second * kPageSlots + slot);
        const auto c = hn::Load(d, cosines(pair) + slot);
        const auto s = hn::Load(d, sines(pair) + slot);
        take(first, hn::Sub(hn::Mul(a, c), hn::Mul(b, s)));
        take(second, hn::Add(hn::Mul(a, s), hn::Mul(b, c)));
      }
      for (int32_t channel = 2 * pairs; channel < dim_; ++channel) {
        take(channel, hn::Load(d, room_.numbers + channel * kPageSlots + slot));
      }
    }
  }

  const SideToEncode& side_;
  const centred::Context& context_;
  const centred::CentreSearch& search_;
  const Rope& rope_;
  const int32_t dim_;
  CentreRoom room_;
  HWY_ALIGN_MAX float units_[kPageSlots];
};

inline size_t centred_room_bytes(int32_t head_dim) {
  MemoryCutter room(nullptr);
  room.take<std::byte>(GainShapeEncoder::trellis_room_bytes(head_dim));
  static_cast<void>(CentreRoom(head_dim, room));
  return room.used();
}

inline void encode_centred(const SideToEncode& side, NearestKernel nearest, std::byte* room) {
  const SideLayout where = centred::context_of(*side.context).layout(side.side, side.format);
  MemoryCutter memory(room);
  auto* of_encoder = memory.take<std::byte>(GainShapeEncoder::trellis_room_bytes(side.format.head.of(side.side)));
  CentreTaker taker(side, memory);
  GainShapeEncoder(where, side.used, of_encoder, side.out.front()).encode(side.float16.front(), [&](float* x) {
    taker.take(nearest, x);
  });
}

}  // namespace kvq::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
