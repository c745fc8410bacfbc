// Units of work: their rows, pages and positions.
#pragma once

#include "kernels/device/tensor.cuh"
#include "kernels/pages/geometry.cuh"
#include "kernels/pages/math.cuh"
#include "kernels/pool/pages.cuh"
#include "kernels/pool/search.cuh"

namespace kvq::cuda {

/// Rows of one KV head of one sequence that walk its pages together.
struct Unit {
  int32_t sequence;  // an index, because kernel arguments are read much faster in place than through an address
  int32_t head;
  int32_t first_row;  // row r is query r / group of the sequence, query head head · group + r % group
};

/// Only of sequences that are arguments of the kernel.
__device__ __forceinline__ const AttendSequenceArguments& sequence_of(const AttendArguments& arguments,
                                                                      const Unit& unit) {
  return arguments.sequences[unit.sequence];
}

// Fields of any sequence. Chosen by value, so that kernel arguments are still read in place.
__device__ __forceinline__ int32_t query_begin_of(const AttendArguments& arguments, const Unit& unit) {
  if (arguments.pooled != 0) return __ldg(&arguments.lists.pages.sequences[unit.sequence].query_begin);
  return arguments.sequences[unit.sequence].query_begin;
}
__device__ __forceinline__ int32_t query_count_of(const AttendArguments& arguments, const Unit& unit) {
  if (arguments.pooled != 0) return __ldg(&arguments.lists.pages.sequences[unit.sequence].query_count);
  return arguments.sequences[unit.sequence].query_count;
}

/// Units of all sequences.
__device__ __forceinline__ int32_t unit_count(const AttendArguments& arguments) {
  if (arguments.pooled == 0 || arguments.one_row_block != 0) return arguments.units;
  return __ldg(arguments.lists.pages.row_starts + arguments.n_sequences) * arguments.kv_heads;
}

/// Returns the unit of block `row_block` of kRows rows, counted over all sequences.
template <int kRows>
__device__ __forceinline__ Unit unit_of(const AttendArguments& arguments, int32_t row_block, int32_t head) {
  int32_t i = row_block;
  int32_t of_sequence = 0;
  if (arguments.one_row_block == 0) {
    of_sequence = row_block;
    if (arguments.pooled != 0) {
      i = last_not_above(arguments.lists.pages.row_starts, arguments.n_sequences, row_block);
      return {i, head, (row_block - __ldg(arguments.lists.pages.row_starts + i)) * kRows};
    }
    for (i = 0;; ++i) {
      const uint32_t rows = static_cast<uint32_t>(arguments.sequences[i].query_count) * arguments.group.number;
      const auto blocks = static_cast<int32_t>((rows + kRows - 1) / kRows);
      if (of_sequence < blocks) break;
      of_sequence -= blocks;
    }
  }
  return {i, head, of_sequence * kRows};
}

template <int kRows>
__device__ __forceinline__ Unit find_unit(const AttendArguments& arguments, int32_t index) {
  return unit_of<kRows>(arguments, index / arguments.kv_heads, index % arguments.kv_heads);
}

/// Rows of the unit, at most kRows.
template <int kRows>
__device__ __forceinline__ int32_t row_count(const AttendArguments& arguments, const Unit& unit) {
  const int32_t of_head =
      query_count_of(arguments, unit) * static_cast<int32_t>(arguments.group.number) - unit.first_row;
  return min(kRows, of_head);
}

/// A row's place in the batch.
struct RowPlace {
  int32_t query;
  int32_t head;
};

__device__ __forceinline__ RowPlace row_place(const AttendArguments& arguments, const Unit& unit, int32_t row) {
  const auto of_unit = static_cast<uint32_t>(unit.first_row + row);
  const uint32_t query = divide(of_unit, arguments.group);
  const auto head = static_cast<int32_t>(static_cast<uint32_t>(unit.head) * arguments.group.number + of_unit -
                                         query * arguments.group.number);
  return {query_begin_of(arguments, unit) + static_cast<int32_t>(query), head};
}

/// Offset of a row's first channel in q or out.
__device__ __forceinline__ int64_t row_offset(const HeadStrides& strides, const RowPlace& row) {
  return row.query * strides.token + row.head * strides.head;
}

/// Softmax denominator of a row: Σ 2^logit = sum · 2^maximum over its visible tokens.
struct RowSum {
  float maximum;
  float sum;
};

/// Adds a row's sink and writes its log-sum-exp. Returns the factor on the sum of values, which is relative to the
/// maximum; it is 0 for a query that sees no token. Rarely called, and not inlined, so that short lists do not wait for
/// its instructions.
inline __device__ __noinline__ float finish_row(const AttendArguments& arguments, const RowPlace& row,
                                                const RowSum& seen, bool writes) {
  constexpr float kLog2E = 1.4426950408889634F;
  constexpr float kLn2 = 0.69314718055994531F;
  constexpr float kLargest = 3.402823466e38F;
  RowSum whole = seen;
  const float sink = arguments.sinks != nullptr ? arguments.sinks[row.head] : minus_infinity();
  if (sink > minus_infinity()) {
    const float logit = fminf(fmaxf(sink * kLog2E, -kLargest), kLargest);
    whole.maximum = fmaxf(seen.maximum, logit);
    whole.sum = fmaf(seen.sum, exp2_fast(seen.maximum - whole.maximum), exp2_fast(logit - whole.maximum));
  }
  if (writes && arguments.lse != nullptr) {
    arguments.lse[static_cast<int64_t>(row.query) * arguments.q_heads + row.head] =
        whole.sum > 0.0F ? kLn2 * (whole.maximum + log2f(whole.sum)) : minus_infinity();
  }
  return seen.sum > 0.0F ? exp2_fast(seen.maximum - whole.maximum) / whole.sum : 0.0F;
}

/// Scales of a unit's pages.
__device__ __forceinline__ LayerScales scales_of(const AttendArguments& arguments, const Unit& unit) {
  return arguments.sequences[arguments.pooled != 0 ? 0 : unit.sequence].view.scales;
}

/// A rotated pair of a query's channels, divided by the scales of keys.
__device__ __forceinline__ float2 unscale_query(const LayerScales& scales, int32_t head, const HeadShape& shape,
                                                const float2& pair, int32_t first, int32_t second) {
  const float* factors = scales.of(ScaleArray::kQueries, head, shape);
  return {pair.x * __ldg(factors + first), pair.y * __ldg(factors + second)};
}

/// An output in the scale of given values. `of_tokens`: share of attention that tokens get, the rest goes to a sink.
__device__ __forceinline__ float unscale_output(const LayerScales& scales, int32_t head, const HeadShape& shape,
                                                int32_t channel, float output, float of_tokens) {
  const float factor = __ldg(scales.of(ScaleArray::kOutputs, head, shape) + channel);
  return fmaf(output, factor, of_tokens * __ldg(scales.of(ScaleArray::kOffsets, head, shape) + channel));
}

/// Writes the outputs of a unit without pages. All threads of a block take part.
template <int kRows>
__device__ __forceinline__ void write_zeros(const AttendArguments& arguments, const Unit& unit) {
  const int32_t head_dim = arguments.head.values;
  const int32_t rows = row_count<kRows>(arguments, unit);
  for (auto i = static_cast<int32_t>(threadIdx.x); i < rows * head_dim; i += static_cast<int32_t>(blockDim.x)) {
    const RowPlace row = row_place(arguments, unit, i / head_dim);
    const int32_t channel = i % head_dim;
    write_float(arguments.out, arguments.out_dtype, row_offset(arguments.out_strides, row) + channel, 0.0F);
    if (channel == 0 && arguments.lse != nullptr) finish_row(arguments, row, {minus_infinity(), 0.0F}, true);
  }
}

__device__ __forceinline__ int32_t page_count(const AttendArguments& arguments, const Unit& unit) {
  if (arguments.uniform_pages >= 0) return arguments.uniform_pages;
  if (arguments.pooled != 0) return __ldg(&arguments.lists.pages.sequences[unit.sequence].pages);
  return sequence_of(arguments, unit).view.heads[unit.head].pages;
}

__device__ __forceinline__ const DevicePage* pages_of(const AttendArguments& arguments, const Unit& unit) {
  // Lists of a pool, where a table has been made of them, follow each other.
  const bool pooled = arguments.pooled != 0;
  const SequenceView& view = arguments.sequences[pooled ? 0 : unit.sequence].view;
  const int32_t list = pooled ? unit.sequence * arguments.kv_heads + unit.head : unit.head;
  return view.pages + static_cast<int64_t>(list) * view.capacity;
}

/// The record of page `index` of a unit's list.
__device__ __forceinline__ DevicePage page_record(const AttendArguments& arguments, const Unit& unit, int32_t index) {
  if (arguments.pooled != 0) return pooled_page(arguments.lists.pages, unit.sequence, unit.head, index);
  const uint4 words = __ldg(reinterpret_cast<const uint4*>(pages_of(arguments, unit)) + index);
  return {static_cast<uint64_t>(words.y) << 32U | words.x, static_cast<int32_t>(words.z), words.w};
}

/// Slots of a unit's list, which has pages.
__device__ __forceinline__ int32_t list_length(const AttendArguments& arguments, const Unit& unit) {
  if (arguments.pooled != 0) return __ldg(&arguments.lists.pages.sequences[unit.sequence].length);
  const int32_t pages = page_count(arguments, unit);
  return (pages - 1) * kSlots + pages_of(arguments, unit)[pages - 1].count();
}

/// Position of a slot of page `index`.
__device__ __forceinline__ int32_t position_in_page(const AttendArguments& arguments, const Unit& unit,
                                                    const DevicePage& page, int32_t index, int32_t slot) {
  if (!page.has_positions()) return page.first_position + slot;
  const SequenceView& view = sequence_of(arguments, unit).view;
  return view.positions[(static_cast<int64_t>(unit.head) * view.capacity + index) * kSlots + slot];
}

/// Whether the sequence's queries are at consecutive positions up to the newest one, as the host knows.
__device__ __forceinline__ bool has_consecutive_queries(const AttendArguments& arguments, const Unit& unit) {
  return arguments.pooled != 0 || sequence_of(arguments, unit).last_position >= 0;
}

/// Position of query `query` of the unit's sequence.
__device__ __forceinline__ int32_t query_position(const AttendArguments& arguments, const Unit& unit, int32_t query) {
  if (arguments.pooled != 0) {
    return list_length(arguments, unit) - query_count_of(arguments, unit) + query;
  }
  const AttendSequenceArguments& sequence = sequence_of(arguments, unit);
  if (arguments.query_positions != nullptr) return arguments.query_positions[sequence.query_begin + query];
  if (sequence.last_position >= 0) return sequence.last_position - (sequence.query_count - 1 - query);
  if (sequence.query_count == 1) return sequence.view.heads[unit.head].next_position - 1;
  const DevicePage* pages = pages_of(arguments, unit);
  int32_t back = sequence.query_count - query;
  for (int32_t i = page_count(arguments, unit) - 1; i >= 0; --i) {
    const DevicePage page = pages[i];
    if (back <= page.count()) return position_in_page(arguments, unit, page, i, page.count() - back);
    back -= page.count();
  }
  return 0;
}

}  // namespace kvq::cuda
