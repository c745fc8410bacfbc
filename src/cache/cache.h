#pragma once

#include "backend/backend.h"
#include "cache/call_space.h"
#include "cache/policy.h"
#include "core/rope.h"
#include "core/rotation_table.h"
#include "formats/codec.h"
#include "formats/gain_shape/layout.h"
#include "formats/router/router.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <utility>

namespace kvq {

/// Trained data of a cache's model, each with its backend form; null if the policy needs none.
struct CacheTraining {
  std::shared_ptr<const Trained> pages;  // of the formats that need it
  std::shared_ptr<const Resident> resident_pages;
  std::shared_ptr<const ModelRouter> router;
  std::shared_ptr<const Resident> resident_router;
};

/// Everything that sequences of a cache share: shapes, page formats, memory accounts and work space.
class Cache {
 public:
  /// `object_bytes`: bytes of this object, or of the object that contains it.
  Cache(Allocator& context, Backend& backend, const kvq_cache_options& options, const Policy* policy,
        CacheTraining training, size_t object_bytes = sizeof(Cache));

  struct Layer {
    std::span<const PageFormat* const> formats;  // of sealed pages: one, or the router's experts
    bool hadamard_keys;
    bool hadamard_values;

    bool is_routed() const { return formats.size() > 1; }
    /// Whether sealing changes nothing.
    bool stays_float16() const { return !is_routed() && formats.front()->is_float16(); }
    bool has_gain_shape_keys() const {
      return std::ranges::any_of(formats, [](const PageFormat* each) { return each->keys.code.has_gains(); });
    }
    bool spans_heads() const { return std::ranges::any_of(formats, &PageFormat::spans_heads); }
  };
  const Layer& layer_at(int32_t index) const { return layers[static_cast<size_t>(index)]; }
  /// Backend context of a layer's formats; null if they need none.
  const LayerContext* context(int32_t layer) const {
    return contexts.empty() ? nullptr : contexts[static_cast<size_t>(layer)].get();
  }
  /// Page writes of a layer as a backend takes them.
  PageWrites page_writes(int32_t layer, std::span<const PageWrite> list) const {
    return {list, layer_at(layer).spans_heads() ? kv_heads : 1};
  }
  /// Runs of a list, one for each format of sealed pages.
  size_t runs_of_list() const { return layers.front().formats.size(); }
  /// Number of the run for a format of a layer.
  size_t run_number(int32_t layer, const PageFormat* format) const;

  /// Batch without tokens, for writing pages of a layer.
  TokenBatch no_tokens(int32_t layer) const;
  /// Batch without sequences and queries, for a layer.
  AttendBatch attend_batch(int32_t layer) const;
  /// The same for every layer.
  Vector<AttendBatch> attend_batches(Allocator& memory) const;

  /// Make a page with one reference and zeroed data, from `*run` while that has room, else from a new run of `capacity`
  /// pages, which replaces `*run`. Null `run`: a separate page.
  Page* make_page(const PageFormat* format, bool with_positions, PageRun** run = nullptr, int32_t capacity = 1);
  void retain(Page* page) noexcept;
  void release(Page* page) noexcept;
  void release(PageRun* run) noexcept;
  /// Positions of a page's slots.
  int32_t* allocate_positions();
  void release_positions(int32_t* positions) noexcept;
  /// Drop positions: the slots are consecutive from now on.
  void release_positions(Page* page) noexcept { release_positions(std::exchange(page->positions, nullptr)); }
  /// Change a page's slot count, and the account with it.
  void set_count(Page* page, int32_t count) noexcept;

  /// Bytes independent of the tokens held: this object, its tables, the work space of calls.
  uint64_t fixed_bytes() const noexcept { return table_bytes_ + work_allocator.bytes(); }
  /// The same without any work space.
  uint64_t table_bytes() const noexcept { return table_bytes_; }
  /// All bytes, this object included.
  uint64_t total_bytes() const noexcept { return allocator.bytes(); }

  int32_t n_layers;
  int32_t q_heads;
  int32_t kv_heads;
  int32_t head_dim;
  float scale;
  uint64_t model_id;
  int32_t sink;
  int32_t recent;
  Eviction eviction;
  Votes votes;
  CacheTraining training;  // null router: one sealed format per layer

  Backend& backend;
  Allocator allocator;       // everything of this cache
  Allocator page_allocator;  // page data, a child of `allocator`
  Allocator work_allocator;  // work space of calls, a child of `allocator`
  Rope rope;
  std::optional<RotationTable> rotations;  // with trained data
  PageFormat float16;                      // format of open, recent and sink pages
  Vector<PageFormat> formats;              // distinct sealed formats; never reallocated
  Vector<const PageFormat*> sealed;        // [n_layers], or the router's experts
  Vector<Layer> layers;
  Vector<Owned<LayerContext>> contexts;  // [n_layers], or empty if no format needs any
  CallSpaces call_spaces;
  std::atomic<int32_t> reserved_sequences{0};  // that have preallocated pages

  struct Account {
    std::atomic<uint64_t> sealed_bytes{0};
    std::atomic<uint64_t> float16_bytes{0};
    std::atomic<uint64_t> sealed_pages{0};
    std::atomic<uint64_t> float16_pages{0};
    std::atomic<uint64_t> shared_pages{0};
    std::atomic<int64_t> slots{0};
  };
  Account account;

 private:
  uint64_t table_bytes_ = 0;  // of this object and its tables
  PageRun* make_run(const PageFormat* format, int32_t capacity);
  const PageFormat* intern(const PageFormat& format);
  void add_layers(const Policy& policy);
  void add_routed_layers(const Policy& policy);
  Owned<LayerContext> make_context(const Policy& policy, int32_t layer);
};

}  // namespace kvq
