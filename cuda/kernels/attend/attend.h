// Attention over the pages of a batch of sequences.
#pragma once

#include "core/head_strides.h"
#include "kernels/pages/centre_rows.h"
#include "kernels/pages/records.h"
#include "kernels/pool/records.h"

#include <cuda_runtime_api.h>
#include <cstdint>

namespace kvq::cuda {

/// Maximum sequences per launch: their views are kernel arguments.
inline constexpr int32_t kMaxLaunchSequences = 64;
/// Above this many units, the pages of a unit are not split over blocks.
inline constexpr int32_t kMaxSplitUnits = 1024;
/// Cost in pages of crossing from one unit to the next within a block, which repeats query loads and output stores.
inline constexpr int32_t kCrossing = 48;

struct AttendSequenceArguments {
  SequenceView view;
  int32_t query_begin;
  int32_t query_count;
  int32_t last_position;  // position of the newest query if positions are consecutive up to it; −1: see the table
};

/// Division by a host-known number through multiplication, for dividends below 2^31 / number.
struct Divisor {
  uint32_t number;
  uint32_t reciprocal;  // ⌈2^31 / number⌉
};
inline Divisor divisor(uint32_t number) { return {number, ((uint32_t{1} << 31U) + number - 1) / number}; }

/// For each query, bits of the slots that it sees among the newest of every list; position rules older ones.
struct SlotMask {
  const uint32_t* bits;  // [total queries, words], device memory; null: there is no mask
  int32_t slots;
  int32_t words;
};

/// Sequences of a pool, which are in device memory.
struct PooledLists {
  AttendSequenceArguments common;  // what all have in common
  PoolPages pages;
};

/// Ordered by first use: kernel arguments arrive through a cache, line by line.
struct AttendArguments {
  int32_t n_sequences;
  int32_t q_heads;
  int32_t kv_heads;
  HeadShape head;
  Divisor group;  // query heads per KV head; launch_attend sets all fields from here to ring_bytes
  int32_t units;
  int32_t parts;          // parts per unit, one block each; 0: blocks take equal shares of all units' pages in sequence
  int32_t part_pages;     // 0: only the device knows
  int32_t one_row_block;  // every sequence has one block of rows
  int32_t single_newest;  // every sequence has one query, its newest token, which sees every page
  int32_t ring_bytes;
  int32_t window;
  int32_t uniform_pages;  // pages of every list; −1: lengths differ, or only the device knows them
  int32_t pooled;         // sequences are those of a pool
  int32_t planned;        // shares are found by the starts in `lists.pages`
  const void* q;
  HeadStrides q_strides;
  void* out;
  int32_t q_dtype;  // kvq_dtype
  int32_t out_dtype;
  float scale;                     // logit scale, times log2(e)
  float softcap;                   // times log2(e); 0: none
  const int32_t* query_positions;  // null: every query is one of the newest tokens
  int32_t hadamard_keys;           // some page's keys are Hadamard-rotated
  int32_t hadamard_values;         // some page's values are Hadamard-rotated
  int32_t any_gains;               // some page has gain–shape codes
  int32_t any_centres;             // some page is relative to trained centres
  int32_t rope_pairing;            // kvq_rope
  int32_t rotary_begin;            // among the channels of the key side
  int32_t rotary_dim;
  const float* inv_freq;  // [rotary_dim / 2], device memory
  float* partials;
  int32_t* tickets;
  HeadStrides out_strides;
  float* lse;          // [total queries, q_heads], or null
  const float* sinks;  // [q_heads], or null
  SlotMask mask;
  CentreRows centres;
  union {
    AttendSequenceArguments sequences[kMaxLaunchSequences]{};
    PooledLists lists;  // if `pooled`
  };
};
static_assert(sizeof(PooledLists) <= kMaxLaunchSequences * sizeof(AttendSequenceArguments));  // pools take no more

/// What the host knows of a call on a pool: limits.
struct PooledWork {
  int32_t tokens;   // queries of all sequences
  int32_t queries;  // of a sequence
  int32_t pages;    // of a list
};

/// Launch configuration of a batch.
struct AttendLaunch {
  const void* kernel;
  int32_t threads;
  int32_t rows;  // of a block
  dim3 blocks;   // row blocks, KV heads, parts; any number of blocks if parts is 0
  int32_t shared_bytes;
  int32_t ring_bytes;
  int32_t units;
  int32_t parts;
  int32_t part_pages;
  bool one_row_block;
  bool single_newest;
  bool planned;
  size_t partial_floats;
  size_t tickets;
};

/// Raises the shared-memory limit of every kernel, once per device.
cudaError_t prepare_attend(int32_t shared_limit);

/// `even_pages`: pages of every list when the launch is chosen, −1 if they differ.
AttendLaunch choose_launch(const AttendArguments& arguments, int32_t even_pages, int32_t multiprocessors,
                           int32_t shared_limit);
/// The same for a call on a pool.
AttendLaunch choose_pooled_launch(const AttendArguments& arguments, const PooledWork& work, int32_t multiprocessors,
                                  int32_t shared_limit);
/// Most blocks of rows of a pool's sequences, of which each has at least one.
int64_t most_row_blocks(const PooledWork& work, int32_t n_sequences, const PoolDivision& division);

/// `tickets` must be zero before the first launch; each launch leaves them zero.
cudaError_t launch_attend(const AttendLaunch& launch, AttendArguments& arguments, float* partials, int32_t* tickets,
                          cudaStream_t stream);

}  // namespace kvq::cuda
