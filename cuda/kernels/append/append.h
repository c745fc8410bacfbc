// Writing pages: rotation, conversion, encoding and page-table entries in one launch.
#pragma once

#include "core/head_strides.h"
#include "kernels/device/rope.h"
#include "kernels/pages/centre_tables.h"
#include "kernels/pages/records.h"

#include <cuda_runtime_api.h>

namespace kvq::cuda {

/// One page to write; what PageWrite (backend/pages.h) says, for a kernel.
struct alignas(16) DeviceWrite {
  uint64_t source;  // FP16 page whose first `kept` slots are kept, or 0
  uint64_t target;
  uint32_t format;
  uint8_t kept;
  uint8_t token_count;
  uint8_t has_positions;
  uint8_t ends_list;  // the head's list ends with this page
  int32_t head;
  int32_t token_begin;
  int32_t token_position;  // of the first token, which the others' follow; < 0: see AppendArguments::positions
  int32_t index;           // in the head's page table
  int32_t first_position;
  int32_t sequence;  // whose page it is
};
static_assert(sizeof(DeviceWrite) == 48);

/// Writes that travel as kernel arguments; more are read from memory that the device can read.
inline constexpr int32_t kInlineWrites = 32;

/// A layer of a sequence whose table takes pages.
struct AppendTarget {
  SequenceView view;  // pages null: no table
  HeadState after;    // what the table's heads become; pages apart
};

/// What kinds of pages a launch may write: says how much shared memory blocks need.
struct PagesWritten {
  int32_t gains = 0;         // some in gain–shape codes
  int32_t centres = 0;       // some of them relative to trained centres
  int32_t search_lanes = 0;  // trellis paths that a block looks for at once; 0: there are none

  void add(FormatCode format);
};

struct AppendArguments {
  const void* k;  // [n, kv_heads, head_dim]
  const void* v;
  HeadStrides k_strides;
  HeadStrides v_strides;
  int32_t dtype;
  int32_t vectors;  // all rows of k and v are aligned to 16 bytes
  int32_t kv_heads;
  int32_t head_dim;
  int32_t hadamard;  // pages may be stored so (otherwise they are written slowly)
  PagesWritten pages;
  // Those of a page's new tokens are from ~DeviceWrite::token_position on, after those of its kept slots if it has gaps
  // and needs them all. Null if tokens of every page follow each other.
  const int32_t* positions;
  AppendTarget target;          // of the only sequence
  const AppendTarget* targets;  // of several, or null
  int32_t* status;              // [0] set to 1 when a value had to be changed to fit FP16; [1]: see kNoRoom
  const DeviceWrite* writes;    // null: inline_writes; the heads of a page of tokens side by side share work
  int32_t n_writes;
  int32_t n_slow;  // of them, the first: a block each
  RopeArguments rope;
  CentreTables centres;
  DeviceWrite inline_writes[kInlineWrites];

  KVQ_HOST_DEVICE bool enters_pages() const { return targets != nullptr || target.view.pages != nullptr; }
  KVQ_HOST_DEVICE const AppendTarget& target_of(const DeviceWrite& write) const {
    return targets != nullptr ? targets[write.sequence] : target;
  }
};

cudaError_t prepare_append();
/// What a device's blocks have enough shared memory for.
PagesWritten fit(PagesWritten pages, int32_t head_dim, int32_t shared_limit);
cudaError_t launch_append(const AppendArguments& arguments, cudaStream_t stream);

/// Tokens that one launch_append_next takes at most: no list grows by more than a page.
inline constexpr int32_t kMaxNextTokens = kSlots;
/// Set in AppendArguments::status[1] when a list had no room; nothing was appended then.
inline constexpr int32_t kNoRoom = 1;

/// Append `n` tokens at the positions that follow, where the device's own table ends: nothing that the host knows about
/// the sequence goes in.
cudaError_t launch_append_next(const AppendArguments& arguments, const ReserveView& reserve, int32_t n,
                               cudaStream_t stream);
cudaError_t prepare_append_next(int32_t shared_limit);

}  // namespace kvq::cuda
