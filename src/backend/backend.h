#pragma once

#include "core/error.h"
#include "core/rope.h"
#include "eviction/eviction.h"
#include "formats/commvq/attention_way.h"
#include "formats/commvq/coding_effort.h"
#include "formats/page.h"
#include "kvq.h"
#include "router/router.h"

#include <array>
#include <optional>
#include <span>

namespace kvq {

struct LayerCoder;
class PositionTurns;
namespace weights {
struct Matrix;
}

/// What pages coded with a codebook need beside their bytes.
struct LayerCodes {
  const LayerCoder& coder;
  const PositionTurns& turns;
  CodingEffort effort;
  AttentionWay way;
  bool values;  // pages have codes for values
};

/// Produce one page of one head from slots that exist and tokens that arrive: append, seal and copy are all this.
struct PageWrite {
  const std::byte* source;  // FP16 page whose first `kept` slots are kept; may equal `target`; null when kept is 0
  int32_t kept;
  int32_t head;
  int32_t token_begin;  // tokens [token_begin, token_begin + token_count) of the appended tensors follow
  int32_t token_count;
  std::byte* target;
  const PageFormat* format;  // of the target; FP16 writes only the new slots when source equals target
  // What the head's list holds at `index` afterwards, with kept + token_count slots.
  int32_t index;
  int32_t first_position;
  const int32_t* positions;  // as Page::positions
};

/// A full page in FP16 whose tokens vote for the format that it is sealed in.
struct PageToRoute {
  const std::byte* data;
  std::array<int32_t, kPageSlots> positions;
};

/// How far a layer of a sequence has come.
struct LayerState {
  int32_t length = 0;         // tokens
  int32_t next_position = 0;  // that follows the newest token's
  int32_t room = 0;           // tokens for which pages have been made ahead
};

/// Tokens to append to one layer.
struct TokenBatch {
  const void* k;  // [n, kv_heads, head_dim]
  const void* v;
  kvq_dtype dtype;
  int32_t n;
  int32_t kv_heads;
  int32_t head_dim;
  const Rope* rope;
  std::span<const int32_t> positions;  // [n]
  bool hadamard_keys;                  // pages of the layer are sealed after a Hadamard rotation
  bool hadamard_values;
  std::optional<LayerCodes> codes;  // of the layer's format
  LayerState after;                 // of the layer that the tokens go to
};

/// Pages made ahead for the lists of one layer.
struct ReservedPages {
  const Page* const* const* finals;  // [kv_heads][final_counts] by place in the list, in their final format, or null
  const int32_t* final_counts;       // [kv_heads]
  const Page* const* const* open;    // [kv_heads][ring] FP16 pages: page i is open in open[i % ring]
  int32_t ring;
  int32_t sink;
  int32_t recent;
  const PageFormat* sealed;
};

/// What a backend keeps about one layer of one sequence beside the host's page lists: a GPU's page table.
class LayerMirror {
 public:
  virtual ~LayerMirror() = default;
  /// The pages of a head from `first_page` on are no longer what the backend was told, or gone.
  virtual void invalidate(int32_t head, int32_t first_page) noexcept = 0;
  /// Take the memory that lists of up to `pages` pages and rings of `ring` need; what publish() is told then fits.
  virtual void make_room(int32_t pages, int32_t ring) = 0;
  /// Tell the backend everything about the layer, so that it can append by itself. `pages`: [kv_heads] lists of
  /// `counts` pages; null `reserve`: no pages have been made ahead.
  virtual void publish(const Page* const* const* pages, const int32_t* counts, const LayerState& state,
                       const ReservedPages* reserve) = 0;
  /// The backend appended by itself; the host's lists say the same as its own now.
  virtual void agreed(const int32_t* counts) noexcept = 0;
  /// Record that `tokens` follow the layer's newest one, whichever that is when the record is replayed.
  virtual void record_append(const TokenBatch& tokens) = 0;
  /// Memory of this object, on the host and on the device.
  virtual uint64_t bytes() const noexcept = 0;
};

/// Queries of one sequence, in a batch.
struct AttendSequence {
  LayerMirror* mirror;              // null if the backend keeps none
  const Page* const* const* pages;  // [kv_heads] lists
  const int32_t* page_counts;       // [kv_heads]
  int32_t query_begin;              // row of the batch's q
  int32_t query_count;
};

/// One call of attention over one layer.
struct AttendBatch {
  std::span<const AttendSequence> sequences;
  std::span<const int32_t> query_positions;  // [total queries]; empty if recorded
  bool newest_queries;                       // every query is one of its sequence's last tokens, in order
  bool recorded;                             // replayed while sequences grow: only the device knows lengths
  const void* q;                             // [total queries, q_heads, head_dim]
  kvq_dtype q_dtype;
  void* out;
  kvq_dtype out_dtype;
  int32_t q_heads;
  int32_t kv_heads;
  int32_t head_dim;
  const Rope* rope;
  float scale;
  float softcap;           // 0: none
  int32_t window;          // 0: none
  bool any_hadamard_keys;  // some page format of the layer stores rotated keys
  bool any_hadamard_values;
  bool routed;                      // neighbouring pages differ in format
  std::optional<LayerCodes> codes;  // of the layer's format
};

/// Products of the same activations with one or more matrices: y[i] = x · Wᵢᵀ + biasᵢ.
struct LinearBatch {
  std::span<const weights::Matrix* const> matrices;  // of the same `in`; packed ones have the same signs
  const void* x;                                     // [batch, in]
  kvq_dtype x_dtype;
  int32_t batch;
  void* const* y;  // [matrices] of [batch, out]
  kvq_dtype y_dtype;
};

/// Memory that attend reuses from call to call.
class Workspace {
 public:
  virtual ~Workspace() = default;
};

/// Where pages live and are computed on. Everything throws Error; nothing changes on failure.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual const char* name() const = 0;
  virtual const char* isa() const = 0;
  /// Order later work after what was issued so far, on another queue of the device.
  virtual void set_stream(void* stream) = 0;
  /// Whether this backend knows pages of that format.
  virtual bool knows(const PageFormat& format) const = 0;
  /// Whether work is only recorded now, to be done later and repeatedly. Nothing may be allocated or waited for then.
  virtual bool recording() = 0;

  /// Page memory. Slots that append never wrote read as zeros once it has written the page: they must not hold NaN.
  virtual std::byte* allocate(Allocator& allocator, size_t bytes) = 0;
  virtual void release(Allocator& allocator, std::byte* data, size_t bytes) noexcept = 0;
  /// A whole page, in the order of bytes that its format defines, from and to host memory.
  virtual void read(const PageFormat& format, const std::byte* data, std::byte* host) = 0;
  virtual void write(const PageFormat& format, const std::byte* host, std::byte* data) = 0;

  /// Null if the backend needs nothing beside the host's lists.
  virtual Owned<LayerMirror> make_mirror(Allocator& allocator, int32_t kv_heads) = 0;
  /// Tokens of the layers of some mirrors, replayed appends included; waits for the device.
  virtual void read_lengths(std::span<const Owned<LayerMirror>> mirrors, std::span<int32_t> lengths) = 0;

  /// Rotate keys and write pages. `mirror`: of the layer whose lists will hold them, null for none. `scratch` serves
  /// memory that lives as long as the call. Throws KVQ_E_ARGUMENT if a value cannot be stored in FP16: slots that were
  /// in use are then as before, the others nobody's. A backend that cannot look at the values now reports them on a
  /// later call.
  virtual void append(const TokenBatch& tokens, std::span<const PageWrite> writes, LayerMirror* mirror,
                      Allocator& scratch) = 0;

  /// Whether this backend can vote.
  virtual bool votes() const { return false; }
  /// Count for every page and expert the tokens that prefer it, their keys as they were before RoPE.
  /// `counts`: [pages, experts], zeros.
  virtual void vote(std::span<const PageToRoute> /*pages*/, const Rope& /*rope*/, const PositionTurns& /*turns*/,
                    const RouterNetwork& /*network*/, std::span<int32_t> /*counts*/) {
    fail(KVQ_E_UNSUPPORTED, "%s does not route pages yet", name());
  }

  virtual Owned<Workspace> make_workspace(Allocator& allocator) = 0;
  virtual void attend(const AttendBatch& batch, Workspace& workspace) = 0;
  /// Whether this backend can weigh.
  virtual bool weighs() const { return false; }
  /// Add to masses[kv head][slot] the attention that the slot gets from the queries of the batch's only sequence: a
  /// query's mean or largest softmax weight over the query heads of the KV head. Writes nothing else.
  virtual void weigh(const AttendBatch& /*batch*/, Pooling /*group*/, Workspace& /*workspace*/,
                     std::span<float* const> /*masses*/) {
    fail(KVQ_E_UNSUPPORTED, "%s does not weigh tokens yet", name());
  }

  /// Whether this backend can multiply.
  virtual bool multiplies() const { return false; }
  /// Rows of x with NaN or infinity give rows of NaN (FP16 matrices: what FP32 arithmetic gives). May be called by
  /// several threads at once. `allocator` serves memory that is kept for later calls and must outlive the backend.
  virtual void linear(const LinearBatch& /*batch*/, Allocator& /*allocator*/) {
    fail(KVQ_E_UNSUPPORTED, "%s does not multiply by packed matrices yet", name());
  }
};

}  // namespace kvq
