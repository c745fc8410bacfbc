// Compiled once per Highway target: this file includes itself through foreach_target.h.
#include "formats/commvq/key_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "formats/commvq/key_kernels.cpp"
#include <hwy/foreach_target.h>  // must precede highway.h

#include <hwy/highway.h>

#include "core/target_tables.h"

HWY_BEFORE_NAMESPACE();
namespace kvq::keys::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using Tag = hn::CappedTag<float, kLanes>;
using Vector = hn::Vec<Tag>;

#if HWY_TARGET == HWY_AVX3
inline constexpr int kWideVectors = 2;  // row vectors in registers at once
#else
inline constexpr int kWideVectors = 1;
#endif

/// Products of kRows vectors with the codes of kVectors registers.
template <int kRows, int kVectors>
HWY_INLINE void multiply_codes_block(const float* planes, size_t group, size_t width, const float* vectors,
                                     size_t plane, float* products) {
  const Tag d;
  Vector real[kRows][kVectors];
  Vector imaginary[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int a = 0; a < kVectors; ++a) real[r][a] = imaginary[r][a] = hn::Zero(d);
  }
  for (size_t j = 0; j < group; ++j, planes += 2 * width) {
    Vector re[kVectors];
    Vector im[kVectors];
    for (int a = 0; a < kVectors; ++a) {
      re[a] = hn::LoadU(d, planes + static_cast<size_t>(a) * hn::Lanes(d));
      im[a] = hn::LoadU(d, planes + width + static_cast<size_t>(a) * hn::Lanes(d));
    }
    for (int r = 0; r < kRows; ++r) {
      const float* vector = vectors + static_cast<size_t>(r) * 2 * plane;
      const Vector x = hn::Set(d, vector[j]);
      const Vector y = hn::Set(d, vector[plane + j]);
      for (int a = 0; a < kVectors; ++a) {
        real[r][a] = hn::Add(hn::Add(real[r][a], hn::Mul(re[a], x)), hn::Mul(im[a], y));
        imaginary[r][a] = hn::Sub(hn::Add(imaginary[r][a], hn::Mul(re[a], y)), hn::Mul(im[a], x));
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    float* target = products + static_cast<size_t>(r) * 2 * width;
    for (int a = 0; a < kVectors; ++a) {
      hn::StoreU(real[r][a], d, target + static_cast<size_t>(a) * hn::Lanes(d));
      hn::StoreU(imaginary[r][a], d, target + width + static_cast<size_t>(a) * hn::Lanes(d));
    }
  }
}

template <int kRows>
HWY_INLINE void multiply_codes_rows(const float* planes, int32_t group, int32_t width, const float* vectors,
                                    float* products) {
  const auto pairs = static_cast<size_t>(group);
  const auto codes = static_cast<size_t>(width);
  const auto plane = static_cast<size_t>(padded(group));
  const size_t lanes = hn::Lanes(Tag());
  size_t code = 0;
  for (; code + kWideVectors * lanes <= codes; code += kWideVectors * lanes) {
    multiply_codes_block<kRows, kWideVectors>(planes + code, pairs, codes, vectors, plane, products + code);
  }
  for (; code < codes; code += lanes) {
    multiply_codes_block<kRows, 1>(planes + code, pairs, codes, vectors, plane, products + code);
  }
}

void multiply_codes(const float* planes, int32_t group, int32_t width, const float* vectors, int32_t rows,
                    float* products) {
  const size_t vector = vector_floats(group);
  const size_t row = 2 * static_cast<size_t>(width);
  int32_t done = 0;
  for (; done + 4 <= rows; done += 4, vectors += 4 * vector, products += 4 * row) {
    multiply_codes_rows<4>(planes, group, width, vectors, products);
  }
  for (; done < rows; ++done, vectors += vector, products += row) {
    multiply_codes_rows<1>(planes, group, width, vectors, products);
  }
}

template <int kWide>
HWY_INLINE void nearest_second_block(const float* products, const float* norms, int32_t codes, int32_t width,
                                     int32_t first, float* costs) {
  const Tag d;
  const auto stride = static_cast<size_t>(width);
  const float* from = norms + first;
  Vector least[kWide];
  for (int a = 0; a < kWide; ++a) least[a] = hn::Set(d, HUGE_VALF);
  for (size_t b = 0; b < static_cast<size_t>(codes); ++b, from += stride) {
    const Vector v = hn::Set(d, products[stride + b]);
    for (int a = 0; a < kWide; ++a) {
      least[a] = hn::Min(least[a], hn::Sub(hn::LoadU(d, from + static_cast<size_t>(a) * hn::Lanes(d)), v));
    }
  }
  for (int a = 0; a < kWide; ++a) {
    const size_t at = static_cast<size_t>(first) + static_cast<size_t>(a) * hn::Lanes(d);
    hn::StoreU(hn::Sub(least[a], hn::LoadU(d, products + at)), d, costs + at);
  }
}

void nearest_second(const float* products, const float* norms, int32_t codes, int32_t width, float* costs) {
  const auto lanes = static_cast<int32_t>(hn::Lanes(Tag()));
  int32_t first = 0;
  for (; first + 4 * lanes <= width; first += 4 * lanes) {
    nearest_second_block<4>(products, norms, codes, width, first, costs);
  }
  for (; first < width; first += lanes) nearest_second_block<1>(products, norms, codes, width, first, costs);
}

void subtract_centre(const float* source, const float* a, const float* b, int32_t plane, float* target) {
  const Tag d;
  const auto n = static_cast<size_t>(plane);
  for (size_t j = 0; j < n; j += hn::Lanes(d)) {
    const Vector real = hn::Sub(hn::LoadU(d, a + j), hn::LoadU(d, b + n + j));
    const Vector imaginary = hn::Add(hn::LoadU(d, a + n + j), hn::LoadU(d, b + j));
    hn::StoreU(hn::Sub(hn::LoadU(d, source + j), real), d, target + j);
    hn::StoreU(hn::Sub(hn::LoadU(d, source + n + j), imaginary), d, target + n + j);
  }
}

/// kRows × one vector of out += leftᵀ right; with kRows consecutive rows of left, of left · right.
template <int kRows>
HWY_INLINE void accumulate(const float* left, size_t row_step, size_t inner_step, const float* right, size_t columns,
                           size_t inner, float* out) {
  const Tag d;
  Vector sum[kRows];
  for (size_t r = 0; r < kRows; ++r) sum[r] = hn::LoadU(d, out + r * columns);
  for (size_t i = 0; i < inner; ++i) {
    const Vector x = hn::LoadU(d, right + i * columns);
    for (size_t r = 0; r < kRows; ++r) {
      sum[r] = hn::Add(sum[r], hn::Mul(x, hn::Set(d, left[r * row_step + i * inner_step])));
    }
  }
  for (size_t r = 0; r < kRows; ++r) hn::StoreU(sum[r], d, out + r * columns);
}

HWY_INLINE void accumulate_all(const float* left, size_t rows, size_t row_step, size_t inner_step, const float* right,
                               size_t columns, size_t inner, float* out) {
  for (size_t column = 0; column < columns; column += hn::Lanes(Tag())) {
    size_t r = 0;
    for (; r + 8 <= rows; r += 8) {
      accumulate<8>(left + r * row_step, row_step, inner_step, right + column, columns, inner,
                    out + r * columns + column);
    }
    for (; r < rows; ++r) {
      accumulate<1>(left + r * row_step, row_step, inner_step, right + column, columns, inner,
                    out + r * columns + column);
    }
  }
}

void add_products(const float* left, int32_t rows, const float* right, int32_t columns, int32_t n, float* out) {
  accumulate_all(left, static_cast<size_t>(rows), 1, static_cast<size_t>(rows), right, static_cast<size_t>(columns),
                 static_cast<size_t>(n), out);
}

void multiply(const float* left, int32_t inner, const float* right, int32_t columns, int32_t n, float* out) {
  for (size_t i = 0; i < static_cast<size_t>(n) * static_cast<size_t>(columns); ++i) out[i] = 0.0F;
  accumulate_all(left, static_cast<size_t>(n), static_cast<size_t>(inner), 1, right, static_cast<size_t>(columns),
                 static_cast<size_t>(inner), out);
}

/// e^x for x ≤ 0: 2^k · e^r with r in ±ln(2) / 2 by a polynomial.
HWY_INLINE Vector exponential(Vector x) {
  const Tag d;
  const hn::RebindToSigned<Tag> di;
  x = hn::Max(x, hn::Set(d, -87.0F));
  const Vector k = hn::Round(hn::Mul(x, hn::Set(d, 1.44269504F)));
  const Vector r = hn::Sub(hn::Sub(x, hn::Mul(k, hn::Set(d, 0.693359375F))), hn::Mul(k, hn::Set(d, -2.12194440e-4F)));
  Vector sum = hn::Set(d, 1.0F / 720.0F);
  for (const float coefficient : {1.0F / 120.0F, 1.0F / 24.0F, 1.0F / 6.0F, 0.5F, 1.0F, 1.0F}) {
    sum = hn::Add(hn::Mul(sum, r), hn::Set(d, coefficient));
  }
  const auto exponent = hn::ShiftLeft<23>(hn::Add(hn::ConvertTo(di, k), hn::Set(di, 127)));
  return hn::Mul(sum, hn::BitCast(d, exponent));
}

void exponentials(const float* bias, float scale, int32_t n, float* x) {
  const Tag d;
  const auto size = static_cast<size_t>(n);
  Vector largest = hn::Set(d, -HUGE_VALF);
  for (size_t i = 0; i < size; i += hn::Lanes(d)) {
    const Vector difference = hn::Sub(hn::LoadU(d, x + i), hn::LoadU(d, bias + i));
    largest = hn::Max(largest, difference);
    hn::StoreU(difference, d, x + i);
  }
  const Vector top = hn::MaxOfLanes(d, largest);
  const Vector factor = hn::Set(d, scale);
  for (size_t i = 0; i < size; i += hn::Lanes(d)) {
    hn::StoreU(exponential(hn::Mul(hn::Sub(hn::LoadU(d, x + i), top), factor)), d, x + i);
  }
}

const KeyKernels& key_table() {
  static constexpr KeyKernels kTable = {isa_name(HWY_TARGET), multiply_codes, nearest_second, subtract_centre,
                                        add_products,         multiply,       exponentials};
  return kTable;
}

}  // namespace kvq::keys::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvq::keys {
std::span<const KeyKernels* const> key_kernels() {
  static const RunnableTables<KeyKernels> tables(KVQ_TARGET_TABLES(key_table));
  return tables.all();
}

}  // namespace kvq::keys
#endif
