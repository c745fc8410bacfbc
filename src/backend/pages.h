// Storage of pages, and conversion of tokens to pages.
#pragma once

#include "backend/append_kind.h"
#include "core/rope.h"
#include "core/tensor.h"
#include "formats/codec.h"
#include "formats/layer_scales.h"
#include "formats/page.h"
#include "kvq.h"

#include <cassert>
#include <cstddef>
#include <memory>
#include <span>

namespace kvq {

/// Produce one page of one head from existing slots and new tokens: append, seal and copy are all this.
struct PageWrite {
  const std::byte* source = nullptr;  // FP16 page whose first `kept` slots are kept, or null; may equal `target`
  int32_t kept = 0;
  int32_t head = 0;
  int32_t token_begin = 0;  // followed by tokens [token_begin, token_begin + token_count) of the appended tensors
  int32_t token_count = 0;
  std::byte* target = nullptr;
  const PageFormat* format = nullptr;  // the target's; FP16 writes only the new slots when source equals target
  // Index in the head's list afterwards; the page then has kept + token_count slots.
  int32_t index = 0;
  int32_t first_position = 0;
  const int32_t* positions = nullptr;  // as Page::positions
  int32_t sequence = 0;                // index among the sequences appended to
  // If `source` is full of tokens of this call that were stored before, the first one: a backend may read them instead.
  int32_t given_token = -1;
  LayerScales scales{};  // of the new tokens

  int32_t count() const { return kept + token_count; }
  SlotPositions slot_positions() const { return {positions, first_position}; }
};

/// Pages to write, head by head, in groups written together. If a format of the layer spans heads, all heads have the
/// same pages, and a group is one page of each; otherwise a group is a single page.
class PageWrites {
 public:
  PageWrites(std::span<const PageWrite> list, int32_t heads_together)
      : list_(list), heads_(static_cast<size_t>(heads_together)) {
    assert(list.size() % heads_ == 0);
  }

  std::span<const PageWrite> list() const { return list_; }
  size_t size() const { return list_.size(); }
  bool empty() const { return list_.empty(); }

  int32_t heads_together() const { return static_cast<int32_t>(heads_); }
  size_t group_size() const { return heads_; }
  size_t groups() const { return list_.size() / heads_; }
  /// Page `member` of a group; members are in the order of heads.
  const PageWrite& of_group(size_t group, size_t member) const { return list_[member * groups() + group]; }

 private:
  std::span<const PageWrite> list_;
  size_t heads_;
};

/// Length of a layer of a sequence.
struct LayerState {
  int32_t length = 0;         // tokens
  int32_t next_position = 0;  // after the newest token's
  int32_t room = 0;           // tokens that fit in preallocated pages
};

/// Tokens to append to one layer of some sequences, sequence by sequence.
struct TokenBatch {
  const void* k = nullptr;  // [n, kv_heads] rows of the key side's channels
  const void* v = nullptr;
  HeadStrides k_strides{};
  HeadStrides v_strides{};
  kvq_dtype dtype = KVQ_F32;
  int32_t first = 0;  // index of the first token in the caller's tensors
  int32_t n = 0;
  int32_t kv_heads = 0;
  HeadShape head{};
  const Rope* rope = nullptr;
  std::span<const int32_t> positions{};  // [n]
  bool hadamard_keys = false;            // pages of the layer are sealed after a Hadamard rotation
  bool hadamard_values = false;
  const LayerContext* context = nullptr;  // the layer's; null if its formats need none
  LayerScales scales{};                   // of tokens that are recorded: PageWrite has those of others

  /// The caller's tensors, once type and strides are set. Of a latent, both sides are parts of its keys.
  void set_tensors(const void* keys, const void* values) {
    k = keys;
    v = values;
    if (!head.is_latent) return;
    v = keys;
    v_strides = k_strides;
    k = static_cast<const std::byte*>(keys) + static_cast<size_t>(head.before_keys()) * dtype_bytes(dtype);
  }

  /// Tokens [begin, begin + count).
  TokenBatch part(int32_t begin, int32_t count) const {
    const auto from = [this, begin](const void* tensor, const HeadStrides& strides) {
      return static_cast<const std::byte*>(tensor) + strides.at(static_cast<size_t>(begin), 0) * dtype_bytes(dtype);
    };
    TokenBatch tokens = *this;
    tokens.k = from(k, k_strides);
    tokens.v = from(v, v_strides);
    tokens.first = first + begin;
    tokens.n = count;
    if (!positions.empty()) {
      tokens.positions = positions.subspan(static_cast<size_t>(begin), static_cast<size_t>(count));
    }
    return tokens;
  }
};

/// Appends to come.
struct ExpectedAppend {
  const TokenBatch& layer;                     // of all tokens, without data
  std::span<const PageFormat* const> formats;  // of the layer's sealed pages
  int32_t sequences;
  int32_t heads_together;  // as in PageWrites

  /// Most pages that are written, and most of those that are sealed with new tokens.
  uint64_t pages() const { return of_heads(int64_t{layer.n} / kPageSlots + int64_t{3} * sequences); }
  uint64_t filled_pages() const { return of_heads(int64_t{layer.n} / kPageSlots + sequences); }

 private:
  uint64_t of_heads(int64_t pages) const {
    return static_cast<uint64_t>(pages) * static_cast<uint64_t>(layer.kv_heads);
  }
};

/// Pages preallocated for the lists of one layer.
struct ReservedPages {
  const Page* const* const* finals;  // [kv_heads][final_counts] by place in the list, in their final format, or null
  const int32_t* final_counts;       // [kv_heads]
  const Page* const* const* open;    // [kv_heads][ring] FP16 pages: page i is open in open[i % ring]
  int32_t ring;
  int32_t sink;
  int32_t recent;
  const PageFormat* sealed;
  int32_t window;  // of the layer, as of newest_hidden()
  int32_t step;    // most tokens of an append or a step
};

/// A backend's own record of one layer of one sequence beside the host's page lists: a GPU's page table.
class LayerMirror {
 public:
  virtual ~LayerMirror() = default;
  /// Pages of a head from `first_page` have changed or are gone.
  virtual void invalidate(int32_t head, int32_t first_page) noexcept = 0;
  /// Reserve the memory for lists of up to `pages` pages and rings of `ring`; publish() within these limits then fits.
  virtual void make_room(int32_t pages, int32_t ring) = 0;
  /// Give the backend the complete layer, so that it can append by itself. `pages`: [kv_heads] lists of `counts` pages;
  /// null `reserve`: no pages are preallocated.
  virtual void publish(const Page* const* const* pages, const int32_t* counts, const LayerState& state,
                       const ReservedPages* reserve) = 0;
  /// The host's lists have caught up with appends that the backend made by itself.
  virtual void agreed(const int32_t* counts) noexcept = 0;
  /// Throws unless the backend can append by itself.
  virtual void require_recordable() = 0;
  /// Record an append of `tokens` after the layer's newest token at the time of replay, or the sealing of pages that
  /// such an append leaves.
  virtual void record_append(const TokenBatch& tokens, AppendKind kind) = 0;
  /// Memory of this object, on the host and on the device.
  virtual uint64_t bytes() const noexcept = 0;
};

/// Slots that move to the front of a layer's FP16 pages, in order: slots[i] to slot first + i, which is not behind it.
/// Both count from the first page of each head.
struct SlotCompaction {
  const PageFormat& format;           // of FP16 pages
  std::span<std::byte* const> pages;  // [heads, pages_of_head]
  int32_t pages_of_head;
  std::span<const int32_t> slots;
  int32_t first;
};

/// A layer of a sequence being appended to.
struct AppendedLayer {
  LayerMirror* mirror;  // null if the backend keeps none
  LayerState after;
};

/// Page memory and transfers into and out of it.
class Pages {
 public:
  virtual ~Pages() = default;

  /// The backend's table of codecs has the formats of both sides.
  virtual bool knows(const PageFormat& format) const = 0;
  /// The backend computes with such heads, whose channels from `rotary_begin` on are rotated.
  virtual bool knows_heads(const HeadShape& head, int32_t rotary_begin) const = 0;
  /// Trained data of a known codec, shared by all caches on this backend.
  virtual std::shared_ptr<const Resident> make_resident(Allocator& allocator, const Codec& codec,
                                                        std::shared_ptr<const Trained> trained) = 0;
  /// Data beside the bytes of one layer's pages, made from such a resident.
  virtual Owned<LayerContext> make_context(Allocator& allocator, const Codec& codec, const Resident& resident,
                                           int32_t layer, const PageFormat& format, const OptionValues& options,
                                           const RotationTable& rotations) = 0;

  /// Allocate page memory. After an append writes the page, its unused slots read as zeros: they must not hold NaN.
  virtual std::byte* allocate(Allocator& allocator, size_t bytes) = 0;
  virtual void release(Allocator& allocator, std::byte* data, size_t bytes) noexcept = 0;
  /// Copy bytes from host memory to page memory.
  virtual void upload(const void* host, size_t bytes, std::byte* data) = 0;
  /// Bytes of a caller's tensor on the host, in place or copied to `room`; waits for the device.
  virtual const std::byte* read_tensor(const std::byte* tensor, size_t bytes, Vector<std::byte>& room) = 0;
  /// Copy a whole page in the byte order of its format, from and to host memory.
  virtual void read(const PageFormat& format, const std::byte* data, std::byte* host) = 0;
  virtual void write(const PageFormat& format, const std::byte* host, std::byte* data) = 0;

  /// Null if the backend needs nothing beside the host's lists.
  virtual Owned<LayerMirror> make_mirror(Allocator& allocator, int32_t kv_heads) = 0;
  /// LayerMirror::bytes() after make_room() and publish(); 0 if the backend has no mirrors.
  virtual uint64_t mirror_bytes(int32_t kv_heads, int32_t pages, int32_t ring) const = 0;
  /// Lengths of the layers of some mirrors, replayed appends included; waits for the device.
  virtual void read_lengths(std::span<const Owned<LayerMirror>> mirrors, std::span<int32_t> lengths) = 0;

  /// Rotate keys and write pages. `layers`: the layers of the writes' sequences whose lists will hold the pages; empty
  /// if no list will. `scratch` serves memory for the duration of the call. Throws KVQ_E_ARGUMENT if a value overflows
  /// FP16: used slots are then unchanged, others undefined. A backend that cannot check values now reports them on a
  /// later call.
  virtual void append(const TokenBatch& tokens, const PageWrites& writes, std::span<const AppendedLayer> layers,
                      Allocator& scratch) = 0;
  virtual void compact(const SlotCompaction& compaction) = 0;
  /// Most bytes of `scratch` that such an append takes, if that serves them from its block.
  virtual uint64_t append_bytes(const ExpectedAppend& expected) const = 0;
};

}  // namespace kvq
