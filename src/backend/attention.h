#pragma once

#include "backend/eviction.h"
#include "backend/pages.h"
#include "backend/stream_rotation.h"
#include "core/tensor.h"

#include <optional>
#include <span>

namespace kvq {

/// Queries of one sequence within a batch.
struct AttendSequence {
  LayerMirror* mirror;              // null if the backend keeps none
  const Page* const* const* pages;  // [kv_heads] page lists
  const int32_t* page_counts;       // [kv_heads]
  int32_t query_begin;              // first row in the batch's q
  int32_t query_count;
  LayerScales scales{};
  int32_t first_masked = 0;  // slot of the lists of the mask's first bit, may be negative; only with a mask
};

/// One call of attention over one layer.
struct AttendBatch {
  std::span<const AttendSequence> sequences{};
  // [total queries]; if recorded, in the device's memory, or empty: of the newest tokens.
  std::span<const int32_t> query_positions{};
  bool newest_queries = false;  // the queries are their sequence's last tokens, in order
  bool recorded = false;        // replayed while sequences grow, so only the device knows their lengths
  const void* q = nullptr;      // [total queries, q_heads, whole_key()]
  kvq_dtype q_dtype = KVQ_F32;
  HeadStrides q_strides{};
  void* out = nullptr;  // [total queries, q_heads, channels of values]
  kvq_dtype out_dtype = KVQ_F32;
  HeadStrides out_strides{};
  float* lse = nullptr;          // [total queries, q_heads]; null: not wanted
  const float* sinks = nullptr;  // [q_heads]; null: none
  // [total queries, mask_words()] slots that a query sees, from AttendSequence::first_masked on; null: all by position.
  // Where there is none, and before these slots, positions ascend. Lists are dense: slot i is in page i / 32.
  const uint32_t* mask = nullptr;
  int32_t mask_slots = 0;
  int32_t q_heads = 0;
  int32_t kv_heads = 0;
  HeadShape head{};
  const Rope* rope = nullptr;
  float scale = 0.0F;
  float softcap = 0.0F;            // 0: none
  int32_t window = 0;              // as of newest_hidden()
  bool any_hadamard_keys = false;  // some page format of the layer stores Hadamard-rotated keys
  bool any_hadamard_values = false;
  bool any_gain_shape_keys = false;
  bool any_gain_shape_values = false;
  bool routed = false;                    // neighbouring pages may differ in format
  const LayerContext* context = nullptr;  // the layer's; null if its formats need none

  size_t mask_words() const { return (static_cast<size_t>(mask_slots) + 31) / 32; }
};

/// Memory that attend reuses from call to call.
class Workspace {
 public:
  virtual ~Workspace() = default;
};

/// Future attention calls: one entry per layer, and a list of `pages` pages for every sequence and head.
struct ExpectedCall {
  std::span<const AttendBatch> layers;  // known before there are sequences and queries
  int32_t sequences;
  int32_t queries;  // of each sequence
  int32_t pages;
  std::optional<Pooling> weighed{};  // pooling of the softmax weights, if these are wanted too
  int32_t more_queries = 0;          // of one more sequence, in the same call
};

class Attention {
 public:
  virtual ~Attention() = default;
  virtual Owned<Workspace> make_workspace(Allocator& allocator) = 0;
  /// Bytes of a new work space, including its object, after reserve() of each of these.
  virtual uint64_t workspace_bytes(std::span<const ExpectedCall> calls) = 0;
  /// Make room for such calls: on a GPU that of the host, since the device's depends on pages and on the device.
  virtual void reserve(const ExpectedCall& call, Workspace& workspace) = 0;
  /// Throws KVQ_E_UNSUPPORTED unless reserve() makes all of it.
  virtual void require_known_sizes(int32_t queries) const = 0;
  virtual void attend(const AttendBatch& batch, Workspace& workspace) = 0;
  /// Rotated heads, dense and in FP32, in memory of the work space that the next rotation of such a tensor overwrites.
  virtual const float* rotate(const StreamRotation& heads, Workspace& workspace) = 0;
};

}  // namespace kvq
