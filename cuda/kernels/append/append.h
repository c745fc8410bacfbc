// Page writes: rotation, conversion, encoding and page-table entries in one launch.
#pragma once

#include "backend/append_kind.h"
#include "core/head_strides.h"
#include "kernels/device/rope.h"
#include "kernels/pages/centre_tables.h"
#include "kernels/pages/records.h"

#include <cuda_runtime_api.h>

namespace kvq::cuda {

/// One page to write: PageWrite (backend/pages.h) as kernels take it.
struct alignas(16) DeviceWrite {
  uint64_t source;  // FP16 page whose first `kept` slots are copied, or 0
  uint64_t target;
  uint32_t format;
  uint8_t kept;
  uint8_t token_count;
  uint8_t has_positions;
  uint8_t ends_list;  // the page is the last of the head's list
  int32_t head;
  int32_t token_begin;
  int32_t token_position;  // position of the first token, the others follow; < 0: see AppendArguments::positions
  int32_t index;           // in the head's page table
  int32_t first_position;
  int32_t sequence;  // index of the sequence that owns the page
};
static_assert(sizeof(DeviceWrite) == 48);

/// Writes passed as kernel arguments; longer lists are read from device-accessible memory.
inline constexpr int32_t kInlineWrites = 32;

/// One layer of a sequence whose page table receives the pages.
struct AppendTarget {
  SequenceView view;  // pages null: no table
  HeadState after;    // new state of every head except `pages`
};

/// Kinds of pages in a launch and how they are written; they determine the shared memory of a block.
struct PagesWritten {
  int32_t gains = 0;          // some page has gain–shape codes
  int32_t centres = 0;        // some of these pages are relative to trained centres
  int32_t search_lanes = 0;   // trellis paths that a block searches at once; 0: no trellis codes
  int32_t scratch_apart = 0;  // AppendArguments::scratch is needed: shared memory has no room for it

  void add(FormatCode format);
};

struct AppendArguments {
  const void* k;  // [n, kv_heads] rows of a side's channels
  const void* v;
  HeadStrides k_strides;
  HeadStrides v_strides;
  int32_t dtype;
  int32_t vectors;  // all rows of k and v are 16-byte aligned
  int32_t kv_heads;
  HeadShape head;
  int32_t hadamard;  // some page may be Hadamard-rotated; otherwise rotated pages go to the slow path
  PagesWritten pages;
  // Positions of a page's new tokens start at ~DeviceWrite::token_position, preceded by those of its kept slots if the
  // page has gaps and needs all of them. Null if every page has consecutive positions.
  const int32_t* positions;
  AppendTarget target;          // a single sequence; unused with targets
  const AppendTarget* targets;  // one per sequence, or null
  int32_t* status;              // [0] becomes 1 when a value was changed to fit FP16; [1]: see kNoRoom
  const DeviceWrite* writes;    // null: inline_writes; heads of the same 32 tokens are adjacent so that they share work
  int32_t n_writes;
  int32_t n_slow;  // leading writes that take a block each
  RopeArguments rope;
  CentreTables centres;
  float* scratch;          // [scratch_blocks][scratch_floats(head)], with PagesWritten::scratch_apart
  int32_t scratch_blocks;  // that are launched at most
  DeviceWrite inline_writes[kInlineWrites];

  /// Whether both sides have equally many channels, which most kernels assume.
  bool has_equal_sides() const { return head.keys == head.values && head.keys <= kMaxHeadDim && rope.begin == 0; }
  KVQ_HOST_DEVICE bool enters_pages() const { return targets != nullptr || target.view.pages != nullptr; }
  KVQ_HOST_DEVICE const AppendTarget& target_of(const DeviceWrite& write) const {
    return targets != nullptr ? targets[write.sequence] : target;
  }
};

cudaError_t prepare_append();
/// Adapts `pages` to the shared memory of a device's blocks: fewer trellis paths at once, then scratch memory apart.
PagesWritten fit(PagesWritten pages, HeadShape head, int32_t shared_limit);
/// Scratch memory of a block.
size_t scratch_floats(HeadShape head);
cudaError_t launch_append(const AppendArguments& arguments, cudaStream_t stream);
/// Whether that writes pages of 32 new tokens as a whole. Writes without a target are then left out.
bool writes_whole_pages(const AppendArguments& arguments);

/// Maximum tokens per launch_append_next: no list grows by more than one page.
inline constexpr int32_t kMaxNextTokens = kSlots;
/// Stored in AppendArguments::status[1] when a list had no room; nothing was appended then.
inline constexpr int32_t kNoRoom = 1;

/// Appends `n` tokens at the next positions, where the page table in device memory ends, or seals the page that such an
/// append left. The launch depends on no host state of the sequence, so a graph can replay it.
cudaError_t launch_append_next(const AppendArguments& arguments, const ReserveView& reserve, int32_t n, AppendKind kind,
                               cudaStream_t stream);
cudaError_t prepare_append_next(int32_t shared_limit);

}  // namespace kvq::cuda
