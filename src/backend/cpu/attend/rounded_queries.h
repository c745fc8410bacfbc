// Queries in fixed point, rounded once per call for all gain–shape pages.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace kvq::cpu {

/// Rows of queries as bytes, for codes, and as 16-bit integers, for the mean of a page, which may exceed the residuals.
/// Zeros beyond the head size.
struct RoundedQueries {
  const int32_t* rows;  // [rows][stride_of(words)]: kHead words of scalars, bytes, 16-bit integers
  int32_t words;        // words of a row's bytes

  static constexpr int32_t kHead = 4;
  static constexpr int32_t words_of(int32_t head_dim) { return (head_dim + 63) / 64 * 16; }
  static constexpr int32_t stride_of(int32_t words) { return kHead + 3 * words; }

  /// Unit of the bytes, and of the 16-bit integers.
  float step(int row) const { return std::bit_cast<float>(at(row)[0]); }
  float fine_step(int row) const { return std::bit_cast<float>(at(row)[1]); }
  /// Sum of the bytes.
  int32_t sum(int row) const { return at(row)[2]; }
  /// Bytes, four channels per word.
  const int32_t* bytes(int row) const { return at(row) + kHead; }
  /// 16-bit integers, two channels per word.
  const int32_t* fine(int row) const { return bytes(row) + words; }

 private:
  const int32_t* at(int row) const { return rows + static_cast<ptrdiff_t>(row) * stride_of(words); }
};

/// Round one row `[head_dim]` to `[stride]` words.
void round_query(const float* q, int32_t head_dim, int32_t* out);

}  // namespace kvq::cpu
