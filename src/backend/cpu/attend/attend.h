#pragma once

#include "backend/attention.h"
#include "backend/cpu/dispatch/kernels.h"
#include "backend/eviction.h"
#include "core/parallel.h"
#include "core/scratch.h"

namespace kvq::cpu {

/// Query rows of one KV head that walk the pages together in one work item.
inline constexpr int32_t kItemRows = 64;
/// Pages of one work item: what batch 1 is split into. Fixed, so that results don't depend on the thread count.
inline constexpr int32_t kSplitPages = 64;

/// A stretch of pages for some query rows of one KV head of one sequence. Row i of a head is query token i / group,
/// query head `head · group + i % group`.
struct AttendItem {
  int32_t sequence;
  int32_t head;
  int32_t row_begin;
  int32_t row_count;
  int32_t page_begin;
  int32_t page_count;
  int32_t way;     // to pages that need their layer's context (ContextPlan)
  size_t partial;  // floats into the partials: per row {maximum, sum, plain output, rotated output, sums}
};

/// All splits of the same rows: consecutive items.
struct AttendMerge {
  size_t first_item;
  int32_t items;
};

/// What a call has room for in the work space. Its vectors have no more than the most that any call needed, so that
/// sizes of calls say how large it is.
struct AttendSizes {
  size_t rope_table = 0;
  size_t queries = 0;
  size_t rotated_queries = 0;
  size_t rounded_queries = 0;
  size_t partials = 0;
  size_t items = 0;
  size_t merges = 0;
  size_t largest = 0;
  size_t pieces = 0;  // of scratch
  size_t piece_bytes = 0;

  /// The larger of each.
  void join(const AttendSizes& other);
  /// Of vectors and scratch that have had room for so much.
  uint64_t bytes() const;
};

/// Memory of attend, kept from call to call.
class AttendWorkspace : public Workspace {
 public:
  explicit AttendWorkspace(Allocator& allocator)
      : rope_table(StlAllocator<float>(allocator)),
        queries(StlAllocator<float>(allocator)),
        rotated_queries(StlAllocator<float>(allocator)),
        rounded_queries(StlAllocator<int32_t>(allocator)),
        partials(StlAllocator<float>(allocator)),
        items(StlAllocator<AttendItem>(allocator)),
        order(StlAllocator<int32_t>(allocator)),
        merges(StlAllocator<AttendMerge>(allocator)),
        largest(StlAllocator<float>(allocator)),
        scratch(allocator) {}

  /// Everything that a call may allocate. Items and merges are none then, largest weights zeros.
  void make_room(const AttendSizes& sizes);

  Vector<float> rope_table;         // [total queries, rotary_dim]
  Vector<float> queries;            // [total queries · q_heads, head_dim], grouped by sequence, then KV head
  Vector<float> rotated_queries;    // the same after a Hadamard rotation; empty when no page needs it
  Vector<int32_t> rounded_queries;  // of those, RoundedQueries; empty when no page needs it
  Vector<float> partials;
  Vector<AttendItem> items;
  Vector<int32_t> order;  // in which items are run
  Vector<AttendMerge> merges;
  Vector<float> largest;  // of weigh: [slots of all heads]
  ScratchPool scratch;    // of items whose pages need their layer's context
};

void attend(const AttendBatch& batch, const KernelTable& kernels, Parallel& parallel, AttendWorkspace& workspace);

/// As Attention::workspace_bytes().
uint64_t workspace_bytes(const ExpectedCall& call, const KernelTable& kernels, int32_t n_threads);

/// As Weighing::weigh().
void weigh(const AttendBatch& batch, Pooling group, const KernelTable& kernels, Parallel& parallel,
           AttendWorkspace& workspace, std::span<float* const> masses);

}  // namespace kvq::cpu
