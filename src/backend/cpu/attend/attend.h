#pragma once

#include "backend/attention.h"
#include "backend/cpu/dispatch/kernels.h"
#include "backend/eviction.h"
#include "core/parallel.h"
#include "core/scratch.h"

namespace kvq::cpu {

/// Query rows of one KV head in one work item.
inline constexpr int32_t kItemRows = 64;
/// Pages per work item: how batch 1 is split. Fixed, so that results do not depend on the thread count.
inline constexpr int32_t kSplitPages = 64;

/// Range of pages for some query rows of one KV head of one sequence. Row i of a head is query token i / group, query
/// head `head · group + i % group`.
struct AttendItem {
  int32_t sequence;
  int32_t head;
  int32_t row_begin;
  int32_t row_count;
  int32_t page_begin;
  int32_t page_count;
  int32_t path;  // for pages that need their layer's context (ContextPath)
  // First float in the partials: per row {maximum, sum, plain output, rotated output, sums}.
  size_t partial;
};

/// All splits of the same rows: consecutive items.
struct AttendMerge {
  size_t first_item;
  int32_t items;
};

/// Capacity of the work space. Vectors never grow beyond the most that any call needed, so call sizes predict its
/// bytes.
struct AttendSizes {
  uint64_t rope_table = 0;
  uint64_t queries = 0;
  uint64_t rotated_queries = 0;
  uint64_t rounded_queries = 0;
  uint64_t biases = 0;
  uint64_t stream_keys = 0;
  uint64_t stream_values = 0;
  uint64_t stream_queries = 0;
  uint64_t partials = 0;
  uint64_t items = 0;
  uint64_t merges = 0;
  uint64_t largest = 0;
  uint64_t pieces = 0;  // scratch buffers
  uint64_t piece_bytes = 0;

  /// Takes the maximum of each size.
  void join(const AttendSizes& other);
  /// Bytes of vectors and scratch with this capacity.
  uint64_t bytes() const;
};

/// Work space of attend, kept between calls.
class AttendWorkspace : public Workspace {
 public:
  explicit AttendWorkspace(Allocator& allocator)
      : rope_table(allocator),
        queries(allocator),
        rotated_queries(allocator),
        rounded_queries(allocator),
        biases(allocator),
        streams{Vector<float>(allocator), Vector<float>(allocator), Vector<float>(allocator)},
        partials(allocator),
        items(allocator),
        order(allocator),
        merges(allocator),
        largest(allocator),
        scratch(allocator) {}

  Vector<float>& stream(StreamTensor tensor) { return streams[static_cast<size_t>(tensor)]; }
  /// Makes every allocation of a call. Afterwards there are no items or merges, and largest weights are zeros.
  void make_room(const AttendSizes& sizes);

  Vector<float> rope_table;               // [total queries, rotary_dim]
  Vector<float> queries;                  // QueryRoom; rows are grouped by sequence, then KV head
  Vector<float> rotated_queries;          // `queries` after a Hadamard rotation; empty if no page needs it
  Vector<int32_t> rounded_queries;        // `rotated_queries` as RoundedQueries; empty if no page needs it
  Vector<float> biases;                   // [rows] of latents: what their offset adds to scores
  Vector<float> streams[kStreamTensors];  // of rotate()
  Vector<float> partials;
  Vector<AttendItem> items;
  Vector<int32_t> order;  // execution order of the items
  Vector<AttendMerge> merges;
  Vector<float> largest;  // for weigh(): [slots of all heads]
  ScratchPool scratch;    // for items whose pages need their layer's context, or are latents
};

/// Empties a vector and makes room for n elements. Memory that is too small is freed first: both at once might not fit.
template <typename T>
void make_room(Vector<T>& vector, size_t n) {
  const size_t before = vector.capacity();
  vector.clear();
  if (before >= n) return;
  vector.shrink_to_fit();
  try {
    vector.reserve(n);
  } catch (...) {
    vector.reserve(before);  // smaller calls still need no more than they had
    throw;
  }
}

/// Grows a vector to n elements, whose values are not kept.
template <typename T>
void grow(Vector<T>& vector, size_t n) {
  if (vector.size() >= n) return;
  make_room(vector, n);  // resize alone may take more
  vector.resize(n);
}

void attend(const AttendBatch& batch, const KernelTable& kernels, Parallel& parallel, AttendWorkspace& workspace);

/// Implementation of Attention::rotate().
const float* rotate(const StreamRotation& given, Parallel& parallel, AttendWorkspace& workspace);

/// Work space of such calls.
AttendSizes sizes_of(const ExpectedCall& call, const KernelTable& kernels, int32_t n_threads);
/// Implementation of Attention::workspace_bytes().
uint64_t workspace_bytes(std::span<const ExpectedCall> calls, const KernelTable& kernels, int32_t n_threads);

/// Implementation of Weighing::weigh().
void weigh(const AttendBatch& batch, Pooling group, const KernelTable& kernels, Parallel& parallel,
           AttendWorkspace& workspace, std::span<float* const> masses);

}  // namespace kvq::cpu
