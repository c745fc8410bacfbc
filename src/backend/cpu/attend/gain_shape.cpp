// Gain–shape pages one number at a time, by the reference.
#include "backend/cpu/attend/gain_shape.h"

#include "formats/gain_shape/gain_shape.h"

#include <array>

namespace kvq::cpu {
namespace {

/// A side as its reference decodes it, `[32][head_dim]`, still rotated.
template <Kind kKind>
void decode(Side side, const SideShape& shape, const std::byte* data, float* rows) {
  const SideFormat format{.kind = kKind, .hadamard = true, .page_mean = shape.page_mean};
  const PageFormat page(format, format, shape.head_dim);
  gain_shape::decode({.side = side, .format = page, .layer = 0, .head = 0, .sides = &data, .rope = nullptr,
                      .positions = nullptr},
                     0, kPageSlots, rows);
}

using Rows = std::array<float, static_cast<size_t>(kPageSlots * kMaxHeadDim)>;

template <Kind kKind>
void keys(const SideShape& shape, const SideData& side, int32_t rows, const float* q, float* scores) {
  Rows decoded;
  decode<kKind>(Side::kKeys, shape, side.data, decoded.data());
  for (int32_t r = 0; r < rows; ++r) {
    for (int32_t slot = 0; slot < kPageSlots; ++slot) {
      float sum = 0.0F;
      for (int32_t i = 0; i < shape.head_dim; ++i) {
        sum += q[r * shape.head_dim + i] * decoded[static_cast<size_t>(slot * shape.head_dim + i)];
      }
      scores[r * kTileSlots + slot] = sum;
    }
  }
}

template <Kind kKind>
void values(const SideShape& shape, const SideData* sides, int32_t pages, int32_t rows, const float* p, float* out) {
  Rows decoded;
  const int32_t width = padded_dim(shape.head_dim);
  for (int32_t page = 0; page < pages; ++page) {
    decode<kKind>(Side::kValues, shape, sides[page].data, decoded.data());
    for (int32_t r = 0; r < rows; ++r) {
      for (int32_t slot = 0; slot < kPageSlots; ++slot) {
        const float weight = p[r * kTileSlots + page * kPageSlots + slot];
        for (int32_t i = 0; i < shape.head_dim; ++i) {
          out[r * width + i] += weight * decoded[static_cast<size_t>(slot * shape.head_dim + i)];
        }
      }
    }
  }
}

template <Kind kKind>
PageKernels kernels() {
  return {keys<kKind>, values<kKind>};
}

}  // namespace

PageKernels gain_shape_kernels(Kind kind) {
  switch (kind) {
    case Kind::kGs4: return kernels<Kind::kGs4>();
    case Kind::kGs3: return kernels<Kind::kGs3>();
    case Kind::kGs2: return kernels<Kind::kGs2>();
    case Kind::kGs1: return kernels<Kind::kGs1>();
    case Kind::kGt3: return kernels<Kind::kGt3>();
    case Kind::kGt2: return kernels<Kind::kGt2>();
    default: return kernels<Kind::kGt1>();
  }
}

}  // namespace kvq::cpu
