// Queries in fixed point, rounded once a call for all gain–shape pages.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace kvq::cpu {

/// Rows of queries as bytes, which codes meet, and as 16-bit integers, which the mean of a page meets: it may be larger
/// than what is left of the keys. Everything from the head size on is zero.
struct RoundedQueries {
  const int32_t* rows;  // [rows][stride_of(words)]: kHead words of scalars, bytes, 16-bit integers
  int32_t words;        // of a row's bytes

  static constexpr int32_t kHead = 4;
  static constexpr int32_t words_of(int32_t head_dim) { return (head_dim + 63) / 64 * 16; }
  static constexpr int32_t stride_of(int32_t words) { return kHead + 3 * words; }

  /// What 1 stands for among bytes, and among 16-bit integers.
  float step(int row) const { return std::bit_cast<float>(at(row)[0]); }
  float fine_step(int row) const { return std::bit_cast<float>(at(row)[1]); }
  /// Of the bytes.
  int32_t sum(int row) const { return at(row)[2]; }
  /// Four channels a word.
  const int32_t* bytes(int row) const { return at(row) + kHead; }
  /// Two channels a word.
  const int32_t* fine(int row) const { return bytes(row) + words; }

 private:
  const int32_t* at(int row) const { return rows + static_cast<ptrdiff_t>(row) * stride_of(words); }
};

/// Round one row `[head_dim]` to `[stride]` words.
void round_query(const float* q, int32_t head_dim, int32_t* out);

}  // namespace kvq::cpu
