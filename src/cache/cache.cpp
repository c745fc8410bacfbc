#include "cache/cache.h"

#include "formats/channel_scales.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace kvq {
namespace {

constexpr size_t kPositionBytes = sizeof(int32_t) * kPageSlots;

int32_t layers_with_pages(const kvq_cache_options& options) {
  int32_t n = options.n_layers;
  for (int32_t i = 0; i < options.n_shapes; ++i) {
    if (options.shapes[i].pages_of_layer >= 0 || options.shapes[i].recurrent != 0) n -= options.shapes[i].n_layers;
  }
  return n;
}

/// As of newest_hidden().
int32_t window_of(int32_t sliding_window, int32_t attention_chunk) {
  return attention_chunk > 0 ? -attention_chunk : std::max(sliding_window, 0);
}

}  // namespace

Cache::Cache(Allocator& context, Backend& backend_, const kvq_cache_options& options, const Policy* policy,
             CacheTraining training_, size_t object_bytes)
    : n_layers(layers_with_pages(options)),
      model_id(options.model_id),
      eviction(policy != nullptr ? policy->eviction : Eviction{}),
      votes(policy != nullptr ? policy->votes : Votes::kLayer),
      training(std::move(training_)),
      has_streams(options.mrope_section != nullptr),
      backend(backend_),
      allocator(context, options.max_bytes, "cache", object_bytes),
      page_allocator(allocator, 0, "cache"),
      state_allocator(allocator, 0, "cache"),
      work_allocator(allocator, 0, "cache"),
      contexts(allocator),
      call_spaces(work_allocator, backend.attention()),
      ropes_(allocator),
      model_layers_(allocator),
      layers_(allocator),
      host_scales_(allocator),
      scales_(backend, allocator),
      formats_(allocator),
      storages_(allocator),
      needs_(static_cast<size_t>(n_layers), allocator) {
  make_layers(options, policy);
  if (training.pages != nullptr || training.router != nullptr) rotations.emplace(allocator, *layer(0).rope);
  if (policy != nullptr) codec_options = policy->options;
  if (training.pages != nullptr) {
    contexts.reserve(needs_.size());
    for (int32_t layer = 0; layer < n_layers; ++layer) {
      contexts.push_back({nullptr, Deleter<LayerContext>(allocator, 0, 0)});
    }
  }
  if (training.scales != nullptr) upload_scales();
  storage = &add(make_storage(policy != nullptr ? *policy : Policy(allocator)));
  table_bytes_ = allocator.bytes() - work_allocator.bytes();
}

void Cache::make_layers(const kvq_cache_options& options, const Policy* policy) {
  const auto scale_of = [&](float given, int32_t key_dim) {
    if (given == 0.0F) given = options.scale;
    return given != 0.0F ? given : 1.0F / std::sqrt(static_cast<float>(key_dim));
  };
  const LayerShape plain{.number = 0,
                         .pages_layer = 0,
                         .pages_index = 0,
                         .q_heads = options.q_heads,
                         .kv_heads = options.kv_heads,
                         .head = options.head_dim,
                         .scale = scale_of(0.0F, options.head_dim),
                         .softcap = 0.0F,
                         .window = window_of(options.sliding_window, options.attention_chunk),
                         .rope = make_rope(options, nullptr, options.head_dim),
                         .float16 = intern({SideFormat{}, SideFormat{}, options.head_dim}),
                         .first_list = 0};
  usual_ = plain;
  Vector<LayerShape>& all = model_layers_;
  all.assign(static_cast<size_t>(options.n_layers), plain);
  for (size_t i = 0; i < all.size(); ++i) all[i].pages_layer = static_cast<int32_t>(i);
  const std::span shapes(options.shapes, static_cast<size_t>(options.n_shapes));
  for (const kvq_layer_shape& shape : shapes) {
    LayerShape layer = plain;
    if (shape.recurrent != 0) {
      layer.q_heads = layer.kv_heads = 0;
      layer.pages_layer = layer.pages_index = -1;
      std::fill_n(all.begin() + shape.first_layer, shape.n_layers, layer);
      continue;
    }
    layer.q_heads = shape.q_heads;
    layer.kv_heads = shape.kv_heads;
    layer.head = shape.values_are_key_prefix != 0 ? HeadShape::latent(shape.key_dim, shape.value_dim)
                                                  : HeadShape(shape.key_dim, shape.value_dim);
    layer.scale = scale_of(shape.scale, shape.key_dim);
    layer.softcap = shape.logit_softcap;
    layer.window = window_of(shape.sliding_window, shape.attention_chunk);
    layer.rope = make_rope(options, &shape, layer.head);
    layer.float16 = intern({SideFormat{}, SideFormat{}, layer.head});
    for (int32_t number = shape.first_layer; number < shape.first_layer + shape.n_layers; ++number) {
      layer.pages_layer = shape.pages_of_layer >= 0 ? shape.pages_of_layer : number;
      all[static_cast<size_t>(number)] = layer;
    }
  }
  layers_.reserve(needs_.size());
  size_t lists = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    LayerShape& layer = all[i];
    layer.number = static_cast<int32_t>(i);
    if (layer.is_recurrent()) continue;
    const LayerShape& pages = all[static_cast<size_t>(layer.pages_layer)];  // itself, or an earlier one
    if (const int32_t window = policy != nullptr ? policy->window_of(pages.number) : 0; window > 0) {
      layer.window = layer.window > 0 ? std::min(layer.window, window) : window;
    }
    layer.pages_index = layer.has_own_pages() ? static_cast<int32_t>(layers_.size()) : pages.pages_index;
    layer.first_list = layer.has_own_pages() ? lists : pages.first_list;
    if (!layer.has_own_pages()) continue;
    lists += static_cast<size_t>(layer.kv_heads);
    layers_.push_back(layer);
  }
}

/// Of the channels of the key side. `shape`: whose fields may differ from the options; null: none.
const Rope* Cache::make_rope(const kvq_cache_options& options, const kvq_layer_shape* shape, const HeadShape& head) {
  auto rope = make_owned<Rope>(allocator, allocator);
  if (shape == nullptr) {
    rope->set(options.rope, head.keys, options.rotary_dim, options.rope_base, options.inv_freq);
  } else {
    rope->begin = shape->rotary_begin - head.before_keys();
    const int32_t given = shape->rotary_dim != 0 ? shape->rotary_dim : options.rotary_dim;
    const bool own = shape->inv_freq != nullptr || shape->rope_base != 0.0F;
    rope->set(shape->rope >= 0 ? shape->rope : options.rope, head.keys - rope->begin, given,
              own ? shape->rope_base : options.rope_base, own ? shape->inv_freq : options.inv_freq);
  }
  if (options.mrope_section != nullptr && rope->rotary_dim > 0) {
    std::copy_n(options.mrope_section, kRopeStreams, rope->sections.pairs);
    rope->sections.interleaved = options.mrope_interleaved != 0;
  }
  ropes_.push_back(std::move(rope));
  return ropes_.back().get();
}

void Cache::upload_scales() {
  const LayerShape& shape = layer(0);  // all are alike
  const auto dim = static_cast<size_t>(shape.head.keys);
  Vector<float>& numbers = host_scales_;
  numbers.reserve(size(needs_.size(), LayerScales::floats(shape.kv_heads, shape.head)));
  const auto of_head = [dim](const Vector<float>& all, size_t head) {
    return all.empty() ? std::span<const float>() : std::span<const float>(all).subspan(head * dim, dim);
  };
  for (const ModelCentres::Layer& layer : training.scales->layers) {
    append_scales_header(numbers, false);
    for (size_t i = 0; i < static_cast<size_t>(shape.kv_heads); ++i) {
      append_head_scales(numbers, of_head(layer.numbers->key_scales, i), of_head(layer.numbers->value_scales, i),
                         of_head(layer.numbers->value_offsets, i), shape.head);
    }
  }
  scales_.make(numbers.size() * sizeof(float));
  backend.pages().upload(numbers.data(), scales_.bytes(), scales_.data());
}

Owned<Storage> Cache::make_storage(const Policy& policy) {
  auto made = make_owned<Storage>(allocator, allocator, policy);
  made->layers.reserve(static_cast<size_t>(n_layers));
  if (!policy.experts.empty()) {
    bool hadamard_keys = false;
    bool hadamard_values = false;
    made->sealed.reserve(policy.experts.size());
    for (const FormatPair& expert : policy.experts) {
      made->sealed.push_back(intern({expert.keys, expert.values, layer(0).head, training.pages.get()}));
      hadamard_keys = hadamard_keys || expert.keys.is_rotated();
      hadamard_values = hadamard_values || expert.values.is_rotated();
    }
    made->layers.assign(static_cast<size_t>(n_layers), {made->sealed, hadamard_keys, hadamard_values});
    return made;
  }
  made->sealed.reserve(static_cast<size_t>(n_layers));  // layers point into it
  for (int32_t layer = 0; layer < n_layers; ++layer) {
    const auto [keys, values] = policy.formats(number(layer));
    made->sealed.push_back(intern({keys, values, this->layer(layer).head, training.pages.get()}));
    const PageFormat& format = *made->sealed.back();
    made->layers.push_back({{&made->sealed.back(), 1}, format.keys.is_rotated(), format.values.is_rotated()});
  }
  return made;
}

Cache::FoundStorage Cache::storage_of(const Policy& policy) {
  const std::lock_guard lock(storages_mutex_);
  Owned<Storage> made = make_storage(policy);
  const auto same = std::ranges::find_if(storages_, [&](const auto& each) { return each->equals(*made); });
  if (same != storages_.end()) return {**same, false};
  return {add(std::move(made)), true};
}

/// Everything that can fail comes before calls see the storage's needs.
const Storage& Cache::add(Owned<Storage> made) {
  storages_.reserve(storages_.size() + 1);
  for (int32_t layer = 0; layer < n_layers && !contexts.empty(); ++layer) {
    Owned<LayerContext>& context = contexts[static_cast<size_t>(layer)];
    if (context == nullptr) context = make_context(*made, layer);
  }
  for (int32_t layer = 0; layer < n_layers; ++layer) {
    const Storage::Layer& of_layer = made->layer_at(layer);
    LayerNeeds& needs = needs_[static_cast<size_t>(layer)];
    if (!contexts.empty()) needs.context.store(contexts[static_cast<size_t>(layer)].get(), std::memory_order_release);
    needs.bits |= static_cast<uint8_t>(
        (of_layer.hadamard_keys ? kHadamardKeys : 0) | (of_layer.hadamard_values ? kHadamardValues : 0) |
        (of_layer.has_gain_shape(Side::kKeys) ? kGainShapeKeys : 0) |
        (of_layer.has_gain_shape(Side::kValues) ? kGainShapeValues : 0) | (of_layer.is_routed() ? kRouted : 0) |
        (of_layer.spans_heads() ? kSpansHeads : 0));
  }
  storages_.push_back(std::move(made));
  return *storages_.back();
}

Owned<LayerContext> Cache::make_context(const Storage& of, int32_t layer) {
  // At most one format needs training, or one context serves all.
  for (const PageFormat* format : of.layer_at(layer).formats) {
    for (const Side side : {Side::kKeys, Side::kValues}) {
      const Codec& codec = codec_of(format->side(side).code);
      if (!codec.needs_training(format->side(side))) continue;
      return backend.pages().make_context(allocator, codec, *training.resident_pages, layer, *format,
                                          codec_options.of(codec), *rotations);
    }
  }
  return {nullptr, Deleter<LayerContext>(allocator, 0, 0)};
}

const PageFormat* Cache::intern(const PageFormat& format) {
  const auto found = std::ranges::find_if(formats_, [&](const auto& each) { return *each == format; });
  if (found != formats_.end()) return found->get();
  formats_.push_back(make_owned<PageFormat>(allocator, format));
  return formats_.back().get();
}

size_t Cache::most_float16_bytes() const {
  size_t most = 0;
  for (const LayerShape& layer : layers_) most = std::max(most, layer.float16->bytes());
  return most;
}

TokenBatch Cache::no_tokens(int32_t layer) const {
  const LayerShape& shape = this->layer(layer);
  return {.k_strides = HeadStrides::dense(shape.kv_heads, shape.head.whole_key()),
          .v_strides = HeadStrides::dense(shape.kv_heads, shape.head.values),
          .kv_heads = shape.kv_heads,
          .head = shape.head,
          .rope = shape.rope,
          .hadamard_keys = needs(layer, kHadamardKeys),
          .hadamard_values = needs(layer, kHadamardValues),
          .context = context(layer)};
}

AttendBatch Cache::attend_batch(const LayerShape& shape) const {
  const int32_t layer = shape.pages_index;
  return {.q_strides = HeadStrides::dense(shape.q_heads, shape.head.whole_key()),
          .out_strides = HeadStrides::dense(shape.q_heads, shape.head.values),
          .q_heads = shape.q_heads,
          .kv_heads = shape.kv_heads,
          .head = shape.head,
          .rope = shape.rope,
          .scale = shape.scale,
          .softcap = shape.softcap,
          .window = shape.window,
          .any_hadamard_keys = needs(layer, kHadamardKeys),
          .any_hadamard_values = needs(layer, kHadamardValues),
          .any_gain_shape_keys = needs(layer, kGainShapeKeys),
          .any_gain_shape_values = needs(layer, kGainShapeValues),
          .routed = needs(layer, kRouted),
          .context = context(layer)};
}

Vector<AttendBatch> Cache::attend_batches(Allocator& memory) const {
  Vector<AttendBatch> batches(memory);
  batches.reserve(model_layers_.size());
  for (const LayerShape& layer : model_layers_) {
    if (!layer.is_recurrent()) batches.push_back(attend_batch(layer));
  }
  return batches;
}

PageRun* Cache::make_run(const PageFormat* format, int32_t capacity) {
  const size_t record_bytes = PageRun::bytes_for(capacity);
  void* memory = allocator.allocate(record_bytes, alignof(PageRun));
  auto* run = new (memory) PageRun{.format = format, .capacity = capacity};
  try {
    run->data = backend.pages().allocate(page_allocator, run->data_bytes());
  } catch (...) {
    allocator.release(memory, record_bytes, alignof(PageRun));
    throw;
  }
  (format->is_float16() ? account.float16_bytes : account.sealed_bytes) += run->data_bytes();
  return run;
}

void Cache::release(PageRun* run) noexcept {
  if (run == nullptr || run->references.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  (run->format->is_float16() ? account.float16_bytes : account.sealed_bytes) -= run->data_bytes();
  backend.pages().release(page_allocator, run->data, run->data_bytes());
  allocator.release(run, run->record_bytes(), alignof(PageRun));
}

Page* Cache::make_page(const PageFormat* format, bool with_positions, PageRun** run, int32_t capacity) {
  PageRun* single = nullptr;
  if (run == nullptr) {
    run = &single;
    capacity = 1;
  }
  if (*run == nullptr || (*run)->format != format || (*run)->used == (*run)->capacity) {
    PageRun* next = make_run(format, capacity);
    release(*run);
    *run = next;
  }
  int32_t* positions = nullptr;
  if (with_positions) {
    try {
      positions = allocate_positions();
    } catch (...) {
      release(single);
      throw;
    }
  }
  PageRun& chosen = **run;
  const int32_t index = chosen.used++;
  Page* page = new (chosen.pages() + index) Page();
  page->positions = positions;
  page->run = &chosen;
  page->data = chosen.data + static_cast<size_t>(index) * format->bytes();
  if (single == nullptr) chosen.references.fetch_add(1, std::memory_order_relaxed);
  (page->is_float16() ? account.float16_pages : account.sealed_pages) += 1;
  return page;
}

void Cache::retain(Page* page) noexcept {
  if (page->references.fetch_add(1, std::memory_order_relaxed) == 1) account.shared_pages += 1;
}

void Cache::release(Page* page) noexcept {
  const int32_t before = page->references.fetch_sub(1, std::memory_order_acq_rel);
  if (before == 2) account.shared_pages -= 1;
  if (before != 1) return;
  (page->is_float16() ? account.float16_pages : account.sealed_pages) -= 1;
  account.scalars -= int64_t{page->count} * page->format()->head.sum();
  release_positions(page);
  release(page->run);
}

int32_t* Cache::allocate_positions() {
  return static_cast<int32_t*>(allocator.allocate(kPositionBytes, alignof(int32_t)));
}

void Cache::release_positions(int32_t* positions) noexcept {
  allocator.release(positions, kPositionBytes, alignof(int32_t));
}

void Cache::set_count(Page* page, int32_t count) noexcept {
  account.scalars += int64_t{count - page->count} * page->format()->head.sum();
  page->count = count;
}

}  // namespace kvq
