#pragma once

#include "backend/backend.h"
#include "backend/cpu/kernels.h"
#include "core/memory.h"

#include <array>
#include <cstdint>

namespace kvq::cpu {

/// Where a page stands: its place in the list of its head, in those of all heads.
struct PagePlace {
  const Page* const* const* lists;  // [kv_heads]
  int32_t head;
  ptrdiff_t index;

  const Page& page() const { return *lists[head][index]; }
};

/// Sums of probabilities over tokens by the bits of their codes: what value pages with codes add up to. The last of
/// them is over all tokens.
struct BitSums {
  BitSums() = default;
  explicit BitSums(const CodebookShape& shape) : bits((static_cast<size_t>(shape.code_bits()) + 15) / 16 * 16) {}

  size_t bits = 0;  // padded; 0: no values have codes

  size_t width() const { return bits == 0 ? 0 : bits + 16; }  // of a row
  size_t total() const { return bits; }                       // where the sum over all tokens is
};

/// Keys and values of pages stored with codes, for some rows of queries of one head.
class CodedAttention {
 public:
  CodedAttention(const AttendBatch& batch, const KernelTable& kernels) : batch_(batch), kernels_(kernels) {}

  /// As a KeyKernel. Keys are rebuilt once for all rows and left at the positions 0 to 31; the queries are turned back
  /// by the position of the first slot instead.
  void score(const PagePlace& place, int32_t rows, const float* q, float* scores);

  /// As a ValueKernel with one page, but into rows of bit sums.
  void add_values(const PagePlace& place, int32_t rows, const float* p, const BitSums& layout, float* sums);

 private:
  const float* slot_turns(const Page& page);
  void rebuild(const PagePlace& place);

  const AttendBatch& batch_;
  const KernelTable& kernels_;
  alignas(kDataAlignment) std::array<float, static_cast<size_t>(kPageSlots* kMaxHeadDim)> rows_;
  alignas(kDataAlignment) std::array<float, static_cast<size_t>(kPageSlots* kMaxHeadDim)> vectors_;
  alignas(kDataAlignment) std::array<uint16_t, static_cast<size_t>(kPageSlots* kMaxHeadDim)> plane_;
  alignas(kDataAlignment) std::array<float, static_cast<size_t>(kBlockRows* kMaxHeadDim)> queries_{};
  std::array<float, kMaxHeadDim> turn_;
  alignas(kDataAlignment) std::array<float, static_cast<size_t>(kPageSlots* kMaxHeadDim)> turns_;
};

/// out[head_dim] += what the bit sums of a query of KV head `head` decode to.
void add_decoded(const LayerCodes& codes, const KernelTable& kernels, int32_t head, const BitSums& layout,
                 const float* sums, float* out);

}  // namespace kvq::cpu
