#include "backend/cpu/attend/rounded_queries.h"

#include "core/limits.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

namespace kvq::cpu {
namespace {

constexpr float kTopByte = 127.0F;
constexpr float kTopWord = 32512.0F;
constexpr int32_t kTopChannels = 512;  // whose products with bytes and trellis levels add up to less than 2^31

/// The nearest integers, for magnitudes up to 2^22: those end up in the low bits of a float.
void round(const float* x, int32_t n, float factor, int32_t* out) {
  constexpr float kShift = 12582912.0F;  // 1.5 · 2^23
  for (int32_t i = 0; i < n; ++i) {
    out[i] = static_cast<int32_t>(std::bit_cast<uint32_t>(x[i] * factor + kShift) - std::bit_cast<uint32_t>(kShift));
  }
}

/// Splits an integer into two of kBits bits.
template <int kBits>
int32_t packed(int32_t low, int32_t high) {
  return (low & ((1 << kBits) - 1)) | (high & ((1 << kBits) - 1)) << kBits;
}

}  // namespace

void round_query(const float* q, int32_t head_dim, int32_t* out) {
  const int32_t words = RoundedQueries::words_of(head_dim);
  float largest = 0.0F;
  for (int32_t i = 0; i < head_dim; ++i) largest = std::max(largest, std::abs(q[i]));
  std::fill_n(out, RoundedQueries::stride_of(words), 0);
  const float inverse = 1.0F / std::max(largest, 1e-30F);
  std::array<int32_t, kMaxHeadDim> integers;

  round(q, head_dim, kTopByte * inverse, integers.data());
  int32_t* bytes = out + RoundedQueries::kHead;
  uint32_t sum = 0;  // of queries that are not finite it may overflow
  for (int32_t i = 0; i < head_dim; i += 4) {
    const int32_t* four = integers.data() + i;
    bytes[i / 4] = packed<8>(four[0], four[1]) | packed<8>(four[2], four[3]) << 16;
    for (int32_t j = 0; j < 4; ++j) sum += static_cast<uint32_t>(four[j]);
  }
  out[2] = static_cast<int32_t>(sum);
  const float top =
      head_dim <= kTopChannels ? kTopWord : kTopWord * static_cast<float>(kTopChannels) / static_cast<float>(head_dim);
  round(q, head_dim, top * inverse, integers.data());
  for (int32_t i = 0; i < head_dim; i += 2) {
    const int32_t* two = integers.data() + i;
    bytes[words + i / 2] = packed<16>(two[0], two[1]);
  }
  out[0] = std::bit_cast<int32_t>(largest / kTopByte);
  out[1] = std::bit_cast<int32_t>(largest / top);
}

}  // namespace kvq::cpu
