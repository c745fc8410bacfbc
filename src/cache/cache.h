#pragma once

#include "backend/backend.h"
#include "cache/attend_space.h"
#include "cache/policy.h"
#include "core/position_turns.h"
#include "core/rope.h"
#include "formats/codec.h"
#include "formats/gain_shape/layout.h"
#include "formats/router/router.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <span>

namespace kvq {

/// What training made for a cache's model, each with what the backend made of it; null where the policy needs none.
struct CacheTraining {
  std::shared_ptr<const Trained> pages;  // for the formats that mean nothing without it
  std::shared_ptr<const Resident> resident_pages;
  std::shared_ptr<const ModelRouter> router;
  std::shared_ptr<const Resident> resident_router;
};

/// What every sequence of a cache shares: shapes, page formats, memory accounts and work space.
class Cache {
 public:
  /// `object_bytes`: of this, or of the object that it is a part of.
  Cache(Allocator& context, Backend& backend, const kvq_cache_options& options, const Policy* policy,
        CacheTraining training, size_t object_bytes = sizeof(Cache));

  struct Layer {
    std::span<const PageFormat* const> formats;  // of sealed pages: one, or those that a router chooses among
    bool hadamard_keys;
    bool hadamard_values;

    bool is_routed() const { return formats.size() > 1; }
    /// Whether sealing changes nothing.
    bool stays_float16() const { return !is_routed() && formats.front()->is_float16(); }
    bool has_gain_shape_keys() const {
      return std::any_of(formats.begin(), formats.end(),
                         [](const PageFormat* each) { return each->keys.code.has_gains(); });
    }
    bool spans_heads() const {
      return std::any_of(formats.begin(), formats.end(), [](const PageFormat* each) { return each->spans_heads(); });
    }
  };
  /// What a backend needs beside pages in the formats of a layer; null if it needs nothing.
  const LayerContext* context(int32_t layer) const {
    return contexts.empty() ? nullptr : contexts[static_cast<size_t>(layer)].get();
  }
  /// Pages of a layer as units of writing.
  PageWrites page_writes(int32_t layer, std::span<const PageWrite> list) const {
    return {list, layers[static_cast<size_t>(layer)].spans_heads() ? kv_heads : 1};
  }
  /// Runs that a list takes its pages from, one for each format of sealed pages.
  size_t runs_of_list() const { return layers.front().formats.size(); }
  /// Which of them a format of a layer has.
  size_t run_number(int32_t layer, const PageFormat* format) const;

  /// What append needs to know of a layer when there is nothing to append, only pages to write.
  TokenBatch no_tokens(int32_t layer) const;
  /// What attend needs to know of a layer; no sequences, no queries.
  AttendBatch attend_batch(int32_t layer) const;

  /// A page with one reference and zeroed data, from `*run` while that has room, else from a new run of `capacity`
  /// pages, which takes the place of `*run`. Null `run`: a page by itself.
  Page* make_page(const PageFormat* format, bool with_positions, PageRun** run = nullptr, int32_t capacity = 1);
  void retain(Page* page) noexcept;
  void release(Page* page) noexcept;
  void release(PageRun* run) noexcept;
  /// Its slots are consecutive from now on.
  void release_positions(Page* page) noexcept;
  /// All changes of a page's slot count go through here, for the account.
  void set_count(Page* page, int32_t count) noexcept;

  /// Bytes that do not grow with the tokens held: this object, its tables, the work space of attend.
  uint64_t fixed_bytes() const noexcept { return table_bytes_ + work_allocator.bytes(); }
  /// The same without any work space.
  uint64_t table_bytes() const noexcept { return table_bytes_; }
  /// Everything, this object included.
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
  CacheTraining training;  // its router is null: each layer seals its pages in one format

  Backend& backend;
  Allocator allocator;       // everything of this cache
  Allocator page_allocator;  // page data, a child of `allocator`
  Allocator work_allocator;  // work space of attend, a child of `allocator`
  Rope rope;
  std::optional<PositionTurns> turns;  // with anything trained
  PageFormat float16;                  // format of open, recent and sink pages
  Vector<PageFormat> formats;          // distinct sealed formats; never reallocated
  Vector<const PageFormat*> sealed;    // [n_layers], or the formats that a router chooses among
  Vector<Layer> layers;
  Vector<Owned<LayerContext>> contexts;  // [n_layers], or empty if no format needs any
  AttendSpaces attend_spaces;

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
