#pragma once

#include "backend/backend.h"
#include "cache/backend_memory.h"
#include "cache/call_space.h"
#include "cache/storage.h"
#include "core/rope.h"
#include "core/rotation_table.h"
#include "formats/codec.h"
#include "formats/gain_shape/layout.h"
#include "formats/gain_shape/model_centres.h"
#include "formats/router/router.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>

namespace kvq {

/// Trained data of a cache's model, each with its backend form; null if the policy needs none.
struct CacheTraining {
  std::shared_ptr<const Trained> pages;  // of the formats that need it
  std::shared_ptr<const Resident> resident_pages;
  const Codec* codec = nullptr;                // that these are for
  std::shared_ptr<const ModelCentres> scales;  // or null
  std::shared_ptr<const ModelRouter> router;
  std::shared_ptr<const Resident> resident_router;
};

/// What the heads of a layer are like.
struct LayerShape {
  int32_t number;       // of the layer in the model
  int32_t pages_layer;  // number of the layer whose pages it reads, its own or another's; −1: none, it is recurrent
  int32_t pages_index;  // of that layer among Cache::layers()
  int32_t q_heads;
  int32_t kv_heads;
  HeadShape head;
  float scale;
  float softcap;   // of calls without one; 0: none
  int32_t window;  // what queries see, as of newest_hidden(): older pages are freed
  const Rope* rope;
  const PageFormat* float16;  // of open, recent and sink pages
  size_t first_list;          // of its page lists in a sequence

  bool has_own_pages() const { return pages_layer == number; }
  bool is_recurrent() const { return pages_layer < 0; }
};

/// Everything that sequences of a cache share: shapes, page formats, memory accounts and work space.
class Cache {
 public:
  /// `object_bytes`: bytes of this object, or of the object that contains it.
  Cache(Allocator& context, Backend& backend, const kvq_cache_options& options, const Policy* policy,
        CacheTraining training, size_t object_bytes = sizeof(Cache));

  /// Layers with pages of their own. Everything that holds tokens counts these alone.
  const LayerShape& layer(int32_t index) const { return layers_[static_cast<size_t>(index)]; }
  std::span<const LayerShape> layers() const { return layers_; }
  /// All layers of the model, as callers number them.
  std::span<const LayerShape> model_layers() const { return model_layers_; }
  const LayerShape& model_layer(int32_t number) const { return model_layers_[static_cast<size_t>(number)]; }
  /// Number in the model of a layer with pages.
  int32_t number(int32_t layer) const { return this->layer(layer).number; }
  /// What the options say of layers without a shape of their own.
  const LayerShape& usual() const { return usual_; }
  /// Page lists of a sequence: of all layers and KV heads.
  size_t n_lists() const { return layers_.back().first_list + static_cast<size_t>(layers_.back().kv_heads); }
  /// Layer of a list.
  int32_t layer_of(size_t list) const {
    const auto after = std::ranges::upper_bound(layers_, list, {}, &LayerShape::first_list);
    return static_cast<int32_t>(after - layers_.begin()) - 1;
  }
  /// Of the layer with the most.
  int32_t most_kv_heads() const { return std::ranges::max(layers_, {}, &LayerShape::kv_heads).kv_heads; }
  int32_t most_q_heads() const { return std::ranges::max(model_layers_, {}, &LayerShape::q_heads).q_heads; }
  /// Bytes of an FP16 page of the layer with the largest.
  size_t most_float16_bytes() const;

  /// Of a cache with trained data.
  CacheShape shape() const {
    const LayerShape& any = layer(0);
    return {.n_layers = n_layers,
            .kv_heads = any.kv_heads,
            .head_dim = any.head.keys,
            .rope = any.rope->pairing,
            .rotary_dim = any.rope->rotary_dim,
            .model_id = model_id,
            .scales = scales_checksum()};
  }
  /// Backend context of a layer's formats; null if they need none.
  const LayerContext* context(int32_t layer) const {
    return contexts.empty() ? nullptr : needs_[static_cast<size_t>(layer)].context.load(std::memory_order_acquire);
  }
  /// Checksum of the scales; 0 without.
  uint64_t scales_checksum() const { return training.scales != nullptr ? training.scales->checksum() : 0; }
  /// Scales of a layer's keys and values, in the backend's memory; none without.
  LayerScales scales(int32_t layer) const { return {of_layer(reinterpret_cast<const float*>(scales_.data()), layer)}; }
  /// The same numbers on the host, or null.
  const float* host_scales(int32_t layer) const {
    return host_scales_.empty() ? nullptr : of_layer(host_scales_.data(), layer);
  }
  /// Page writes of a layer as a backend takes them.
  PageWrites page_writes(int32_t layer, std::span<const PageWrite> list) const {
    return {list, needs(layer, kSpansHeads) ? this->layer(layer).kv_heads : 1};
  }

  /// The storage of a policy that equals this one, made if there is none yet.
  struct FoundStorage {
    const Storage& storage;
    bool is_new;
  };
  FoundStorage storage_of(const Policy& policy);
  /// A format for pages that come from elsewhere, made if there is none yet.
  const PageFormat* format_of(const PageFormat& format) {
    const std::lock_guard lock(storages_mutex_);
    return intern(format);
  }
  /// Calls `use` with every storage so far.
  template <typename Use>
  void for_each_storage(const Use& use) const {
    const std::lock_guard lock(storages_mutex_);
    for (const Owned<Storage>& each : storages_) use(*each);
  }
  /// The same for every format of pages.
  template <typename Use>
  void for_each_format(const Use& use) const {
    const std::lock_guard lock(storages_mutex_);
    for (const Owned<PageFormat>& each : formats_) use(*each);
  }

  /// Batch without tokens, for writing pages of a layer.
  TokenBatch no_tokens(int32_t layer) const;
  /// Batch without sequences and queries, for a layer.
  AttendBatch attend_batch(const LayerShape& shape) const;
  /// The same for every layer of the model.
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

  int32_t n_layers;  // with pages of their own
  uint64_t model_id;
  Eviction eviction;
  Votes votes;
  CacheTraining training;  // null router: one sealed format per layer
  CodecOptions codec_options;
  bool has_streams;  // of positions (M-RoPE)

  Backend& backend;
  Allocator allocator;                     // everything of this cache
  Allocator page_allocator;                // page data, a child of `allocator`
  Allocator state_allocator;               // states that the host keeps, the same
  Allocator work_allocator;                // work space of calls, a child of `allocator`
  const Rope no_rope{allocator};           // of keys and queries that have been rotated
  std::optional<RotationTable> rotations;  // with trained data
  Vector<Owned<LayerContext>> contexts;    // [n_layers], or empty without training; null for a layer that needs none
  const Storage* storage = nullptr;        // of sequences without a policy of their own
  CallSpaces call_spaces;
  std::atomic<int32_t> reserved_sequences{0};  // that have preallocated pages

  struct Account {
    std::atomic<uint64_t> sealed_bytes{0};
    std::atomic<uint64_t> float16_bytes{0};
    std::atomic<uint64_t> sealed_pages{0};
    std::atomic<uint64_t> float16_pages{0};
    std::atomic<uint64_t> shared_pages{0};
    std::atomic<int64_t> scalars{0};
  };
  Account account;

 private:
  /// What a layer's pages of all storages need, one bit each.
  enum Need : uint8_t {
    kHadamardKeys = 1,
    kHadamardValues = 2,
    kGainShapeKeys = 4,
    kGainShapeValues = 8,
    kRouted = 16,
    kSpansHeads = 32
  };
  struct LayerNeeds {
    std::atomic<uint8_t> bits{0};
    std::atomic<const LayerContext*> context{nullptr};
  };
  bool needs(int32_t layer, Need need) const {
    return (needs_[static_cast<size_t>(layer)].bits.load(std::memory_order_acquire) & need) != 0;
  }

  PageRun* make_run(const PageFormat* format, int32_t capacity);
  const PageFormat* intern(const PageFormat& format);
  Owned<Storage> make_storage(const Policy& policy);
  const Storage& add(Owned<Storage> storage);
  Owned<LayerContext> make_context(const Storage& of, int32_t layer);

  void make_layers(const kvq_cache_options& options, const Policy* policy);
  const Rope* make_rope(const kvq_cache_options& options, const kvq_layer_shape* shape, const HeadShape& head);
  void upload_scales();
  /// A layer's part of the scales of all layers; null of none.
  const float* of_layer(const float* numbers, int32_t layer) const {
    const LayerShape& any = this->layer(0);  // all are alike
    return numbers != nullptr ? numbers + static_cast<size_t>(layer) * LayerScales::floats(any.kv_heads, any.head)
                              : nullptr;
  }

  Vector<Owned<Rope>> ropes_;
  LayerShape usual_{};
  Vector<LayerShape> model_layers_;
  Vector<LayerShape> layers_;  // those of model_layers_ with pages of their own
  Vector<float> host_scales_;  // [n_layers] LayerScales::numbers, or empty
  BackendMemory scales_;       // the same
  uint64_t table_bytes_ = 0;   // of this object and its first tables
  mutable std::mutex storages_mutex_;
  Vector<Owned<PageFormat>> formats_;  // distinct ones
  Vector<Owned<Storage>> storages_;    // distinct ones
  Vector<LayerNeeds> needs_;           // [n_layers]
};

}  // namespace kvq
