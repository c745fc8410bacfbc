// Rotation angles in double precision, as on the host: float loses whole radians at long context.
#pragma once

#include <cstdint>

namespace kvq::cuda {

/// cos and sin of an angle of any size, with an error far below float rounding.
__device__ inline double2 cos_sin_double(double angle) {
  const double turns = rint(angle * 0.63661977236758134308);  // quarter revolutions
  const double r = fma(-turns, 6.123233995736766036e-17, fma(-turns, 1.57079632679489655800, angle));
  const double z = r * r;
  // Taylor series; |r| ≤ π/4.
  double s = fma(z, 2.8114572543455206e-15, -7.6471637318198164e-13);
  s = fma(s, z, 1.6059043836821613e-10);
  s = fma(s, z, -2.5052108385441720e-08);
  s = fma(s, z, 2.7557319223985893e-06);
  s = fma(s, z, -1.9841269841269841e-04);
  s = fma(s, z, 8.3333333333333332e-03);
  s = fma(s, z, -1.6666666666666666e-01);
  s = fma(s * z, r, r);
  double c = fma(z, -1.1470745597729725e-11, 2.0876756987868099e-09);
  c = fma(c, z, -2.7557319223985888e-07);
  c = fma(c, z, 2.4801587301587302e-05);
  c = fma(c, z, -1.3888888888888889e-03);
  c = fma(c, z, 4.1666666666666664e-02);
  c = fma(c, z, -0.5);
  c = fma(c, z, 1.0);
  const auto quarter = static_cast<int32_t>(static_cast<int64_t>(turns) & 3);
  const double cosine = (quarter & 1) != 0 ? s : c;
  const double sine = (quarter & 1) != 0 ? c : s;
  return make_double2(quarter == 1 || quarter == 2 ? -cosine : cosine, quarter >= 2 ? -sine : sine);
}

__device__ inline float2 cos_sin(double angle) {
  const double2 turn = cos_sin_double(angle);
  return make_float2(static_cast<float>(turn.x), static_cast<float>(turn.y));
}

/// cos and sin with an absolute error of 5e-7, enough for queries, which are rounded to FP16; a tenth of the
/// instructions.
__device__ inline float2 cos_sin_fast(double angle) {
  const double turns = rint(angle * 0.15915494309189533577);
  const auto r = static_cast<float>(fma(-turns, 6.28318530717958647693, angle));
  return make_float2(__cosf(r), __sinf(r));
}

}  // namespace kvq::cuda
