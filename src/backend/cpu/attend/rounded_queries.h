// Queries in fixed point, rounded once per call for all gain–shape pages.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace kvq::cpu {

/// Rows of queries as bytes, for codes, and as 16-bit integers, for the mean of a page, which may exceed the residuals.
/// Zeros beyond the head size.
struct RoundedQueries {
  const int32_t* rows;  // [rows][stride_of(words)]: kHead words of scalars, bytes, smaller bytes, 16-bit integers
  int32_t words;        // words of a row's bytes

  static constexpr int32_t kHead = 6;
  static constexpr int32_t words_of(int32_t head_dim) { return (head_dim + 63) / 64 * 16; }
  static constexpr int32_t stride_of(int32_t words) { return kHead + 4 * words; }

  /// Bytes up to 127, or up to 64: two products with unsigned bytes then fit 16 bits.
  struct Bytes {
    const int32_t* words;  // four channels each
    float step;            // unit
    int32_t sum;
  };
  Bytes bytes(int row) const { return {at(row) + kHead, std::bit_cast<float>(at(row)[0]), at(row)[1]}; }
  Bytes small_bytes(int row) const { return {at(row) + kHead + words, std::bit_cast<float>(at(row)[2]), at(row)[3]}; }
  /// 16-bit integers, two channels per word, and their unit.
  const int32_t* fine(int row) const { return at(row) + kHead + 2 * words; }
  float fine_step(int row) const { return std::bit_cast<float>(at(row)[4]); }

 private:
  const int32_t* at(int row) const { return rows + static_cast<ptrdiff_t>(row) * stride_of(words); }
};

/// Round one row `[head_dim]` to `[stride]` words.
void round_query(const float* q, int32_t head_dim, int32_t* out);

}  // namespace kvq::cpu
