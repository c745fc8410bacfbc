#include "api/boundary.h"
#include "api/handles.h"
#include "api/layer_shapes.h"
#include "api/rope_options.h"
#include "cache/reserve.h"
#include "core/checks.h"
#include "core/rope.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

using namespace kvq;
using namespace kvq::api;

namespace {

void check_options(const kvq_cache_options& options) {
  check_model_shape(options.n_layers, options.kv_heads, options.head_dim, KVQ_E_ARGUMENT, "options->", kMaxValueDim);
  require_query_heads(options.q_heads, options.kv_heads, "options->q_heads");
  require_range(options.reserved, 0, 0, "options->reserved");
  require_window(options.sliding_window, options.attention_chunk, 0, "options->sliding_window",
                 "options->attention_chunk");
  check_rope(options);
  if (!std::isfinite(options.scale)) {
    fail(KVQ_E_ARGUMENT, "options->scale is %g, must be finite", static_cast<double>(options.scale));
  }
}

/// Check that sections of M-RoPE add up to the pairs of every layer with RoPE.
void check_sections(const kvq_cache_options& options) {
  require_range(options.mrope_interleaved, 0, 1, "options->mrope_interleaved");
  const int32_t* sections = options.mrope_section;
  if (sections == nullptr) {
    if (options.mrope_interleaved == 0) return;
    fail(KVQ_E_ARGUMENT, "options->mrope_interleaved is 1, but options->mrope_section is NULL");
  }
  int64_t sum = 0;
  for (int32_t i = 0; i < kRopeStreams; ++i) {
    if (sections[i] < 0) fail(KVQ_E_ARGUMENT, "options->mrope_section[%d] is %d, must not be negative", i, sections[i]);
    sum += sections[i];
  }
  bool any = false;
  for (int32_t layer = 0; layer < options.n_layers; ++layer) {
    const int32_t pairs = rope_pairs_of(options, layer);
    if (pairs == 0) continue;
    any = true;
    if (pairs == sum) continue;
    fail(KVQ_E_ARGUMENT, "options->mrope_section adds up to %lld pairs, but RoPE turns %d of layer %d",
         static_cast<long long>(sum), pairs, layer);
  }
  if (!any) fail(KVQ_E_ARGUMENT, "options->mrope_section is given, but no layer has RoPE");
}

void check_policy(const kvq_policy* policy, int32_t n_layers, const char* whose = "options->") {
  if (policy == nullptr) return;
  for (const Policy::Override& each : policy->overrides) {
    if (each.last_layer < n_layers) continue;
    fail(KVQ_E_ARGUMENT, "policy has an entry for layer range [%d, %d], but %sn_layers is %d", each.first_layer,
         each.last_layer, whose, n_layers);
  }
}

std::string names_of(std::span<const FormatPair> experts) {
  std::string names;
  for (const FormatPair& expert : experts) names += (names.empty() ? "" : ", ") + format_pair_name(expert);
  return names;
}

/// Calls `use` with a layer and each pair of formats of its sealed pages; for a routed policy once for all layers.
template <typename Use>
void for_each_format(const Policy* policy, int32_t n_layers, const Use& use) {
  if (policy == nullptr) return;
  for (const FormatPair& expert : policy->experts) use(0, expert);
  for (int32_t layer = 0; policy->experts.empty() && layer < n_layers; ++layer) use(layer, policy->formats(layer));
}

/// The codec of a format that needs training, or null.
const Codec* trained_codec(const FormatPair& format) {
  for (const SideFormat& side : {format.keys, format.values}) {
    if (codec_of(side.code).needs_training(side)) return &codec_of(side.code);
  }
  return nullptr;
}

/// The same for all formats of a policy: a cache takes the trained data of one codec.
const Codec* trained_codec(const Policy* policy, int32_t n_layers) {
  const Codec* needed = nullptr;
  for_each_format(policy, n_layers, [&](int32_t /*layer*/, const FormatPair& pair) {
    for (const SideFormat& side : {pair.keys, pair.values}) {
      const Codec& codec = codec_of(side.code);
      if (!codec.needs_training(side)) continue;
      if (needed != nullptr && needed != &codec) {
        fail(KVQ_E_UNSUPPORTED,
             "policy has formats that need options->%s and others that need options->%s: a cache "
             "takes one of them",
             needed->trained_as, codec.trained_as);
      }
      needed = &codec;
    }
  });
  return needed;
}

/// Calls `use` with the cache option's handle for a codec, which may be null.
template <typename Use>
auto with_trained(const kvq_cache_options& options, const Codec& codec, const Use& use) {
  return codec.trained_as == std::string_view("centres") ? use(options.centres) : use(options.codebook);
}

/// Trained data among the cache options that a policy needs, or null.
const Trained* trained_of(const kvq_cache_options& options, const kvq_policy* policy) {
  const Codec* codec = trained_codec(policy, options.n_layers);
  if (codec == nullptr) return nullptr;
  return with_trained(options, *codec, [](const auto* handle) -> const Trained* {
    return handle != nullptr ? handle->shared.get() : nullptr;
  });
}

/// Check that tokens can be evicted from pages of a policy.
void check_evicted_formats(const Eviction& eviction, const Policy& policy, int32_t n_layers, const Trained* trained,
                           const std::function<HeadShape(int32_t)>& head) {
  if (eviction.budget == 0 || eviction.heads == HeadSplit::kTogether) return;
  for_each_format(&policy, n_layers, [&](int32_t layer, const FormatPair& format) {
    if (!PageFormat(format.keys, format.values, head(layer), trained).spans_heads()) return;
    fail(KVQ_E_ARGUMENT,
         "policy evicts tokens of each head of layer %d, but options->%s codes all heads together: train it with scope "
         "head, or evict with heads: together",
         layer, trained_codec(format)->trained_as);
  });
}

void check_eviction(const kvq_context& context, const kvq_cache_options& options, const kvq_policy* policy) {
  if (policy == nullptr || policy->eviction.budget == 0) return;
  for (int32_t layer = 0; policy->eviction.score == TokenScore::kMass && layer < options.n_layers; ++layer) {
    const bool forgets =
        policy->window_of(layer) > 0 || sliding_window_of(options, layer) > 0 || attention_chunk_of(options, layer) > 0;
    if (!forgets) continue;
    fail(KVQ_E_UNSUPPORTED,
         "policy evicts by the attention of all queries (h2o), but layer %d has a window: evict by the newest queries",
         layer);
  }
  if (const auto weighing = context.backend->weighing(); !weighing) {
    fail(KVQ_E_UNSUPPORTED, "policy evicts tokens, but %s", weighing.reason());
  }
  if (const int32_t layer = layer_with_other_heads(options); layer >= 0) {
    fail(KVQ_E_UNSUPPORTED,
         "policy evicts tokens, but options->shapes make the heads of layer %d unlike those of others", layer);
  }
  // Results have as many entries a layer as the cache tells KV heads.
  if (options.n_shapes > 0 && options.shapes[0].kv_heads != options.kv_heads) {
    fail(KVQ_E_UNSUPPORTED, "policy evicts tokens, but options->kv_heads is %d, and that of options->shapes[0] is %d",
         options.kv_heads, options.shapes[0].kv_heads);
  }
  check_evicted_formats(policy->eviction, *policy, options.n_layers, trained_of(options, policy),
                        [&](int32_t layer) { return head_of(options, layer); });
}

/// Check the windows of a policy.
void check_windows(const kvq_cache_options& options, const kvq_policy* policy) {
  for (int32_t layer = 0; policy != nullptr && layer < options.n_layers; ++layer) {
    if (policy->window_of(layer) == 0 || attention_chunk_of(options, layer) == 0) continue;
    fail(KVQ_E_UNSUPPORTED, "policy has a window of %d for layer %d, whose attention_chunk is %d",
         policy->window_of(layer), layer, attention_chunk_of(options, layer));
  }
}

/// Check that sequences can find their scales.
void check_calibration(const Policy* policy, int32_t n_layers) {
  if (policy == nullptr || !policy->calibrates()) return;
  if (!policy->experts.empty()) fail(KVQ_E_UNSUPPORTED, "policy has calibrate: first, which routers do not go with");
  if (const Codec* codec = trained_codec(policy, n_layers)) {
    fail(KVQ_E_UNSUPPORTED,
         "policy has calibrate: first and formats that need options->%s: these are trained for one scale, give "
         "options->centres with scales instead",
         codec->trained_as);
  }
}

void check_router_fits(const ModelRouter& router, const kvq_cache_options& options, const Policy& policy) {
  const RouterShape& shape = router.shape;
  check_trained_for("router", "n_layers", shape.n_layers, options.n_layers);
  check_trained_for("router", "kv_heads", shape.kv_heads, options.kv_heads);
  check_trained_for("router", "head_dim", shape.head_dim, options.head_dim);
  check_trained_for("router", "rope", shape.pairing, options.rope);
  check_trained_for_model("router", router.model_id, options.model_id);
  if (std::equal(router.experts.begin(), router.experts.end(), policy.experts.begin(), policy.experts.end())) return;
  fail(KVQ_E_MISMATCH, "options->router was trained for the experts %s, but the policy has %s",
       names_of(router.experts).c_str(), names_of(policy.experts).c_str());
}

/// Check that experts go from most bits to fewest: equal votes elect the first.
void check_experts(const kvq_cache_options& options, const kvq_policy& policy) {
  const Trained* given = trained_of(options, &policy);
  size_t previous = SIZE_MAX;
  const Codec* trained = nullptr;
  int32_t n_trained = 0;
  for (const FormatPair& expert : policy.experts) {
    const PageFormat format(expert.keys, expert.values, options.head_dim, given);
    if (format.bytes() > previous) {
      fail(KVQ_E_ARGUMENT, "policy has the expert %s after one with fewer bits: begin with the most precise",
           format_pair_name(expert).c_str());
    }
    previous = format.bytes();
    const Codec* codec = trained_codec(expert);
    if (codec == nullptr) continue;
    trained = codec;
    if (!codec->one_context) ++n_trained;
    if (format.spans_heads() && policy.votes == Votes::kHead) {
      fail(KVQ_E_ARGUMENT,
           "policy lets each head vote, but options->%s codes all heads together: train it with scope head, or use "
           "votes: layer",
           codec->trained_as);
    }
  }
  if (trained != nullptr && n_trained > 1) {
    fail(KVQ_E_ARGUMENT, "policy has %d experts with %s, at most one is possible", n_trained, trained->name);
  }
}

void add_router(kvq_context& context, const kvq_cache_options& options, const kvq_policy* policy,
                CacheTraining& training) {
  if (policy == nullptr || policy->experts.empty()) return;
  const auto voting = context.backend->voting();
  if (!voting) fail(KVQ_E_UNSUPPORTED, "policy has a router, but %s", voting.reason());
  if (options.router == nullptr) {
    fail(KVQ_E_ARGUMENT, "policy lets a router choose the formats, but options->router is NULL");
  }
  check_experts(options, *policy);
  check_router_fits(*options.router->shared, options, *policy);
  require_context(context, *options.router, "options->router");
  training.router = options.router->shared;
  training.resident_router =
      options.router->resident([&](const auto& router) { return voting->make_resident(context.allocator, router); });
}

bool has_pages_data(const kvq_codebook* codebook) { return codebook != nullptr; }
bool has_pages_data(const kvq_centres* centres) {
  return centres != nullptr && centres->shared->shape.has_centres();  // and not only scales
}

/// The codec whose trained data is among the options, for policies of sequences.
const Codec* codec_of_given(const kvq_cache_options& options) {
  for (const Codec* codec : all_codecs()) {
    if (codec->trained_as == nullptr) continue;
    if (with_trained(options, *codec, [](const auto* handle) { return has_pages_data(handle); })) return codec;
  }
  return nullptr;
}

bool has_scales(const kvq_centres* centres) { return centres != nullptr && centres->shared->shape.has_scales(); }

CacheShape shape_of(const kvq_cache_options& options) {
  return {.n_layers = options.n_layers,
          .kv_heads = options.kv_heads,
          .head_dim = options.head_dim,
          .rope = options.rope,
          .rotary_dim = options.rotary_dim,
          .model_id = options.model_id,
          .scales = has_scales(options.centres) && options.centres->shared->complete()
                        ? options.centres->shared->checksum()
                        : 0};
}

/// Check that layers fit what was trained for a model whose layers are alike: all in their heads, and in RoPE unless
/// there are only scales.
void check_trained_shapes(const kvq_cache_options& options) {
  const char* trained = options.codebook != nullptr       ? "codebook"
                        : options.router != nullptr       ? "router"
                        : has_pages_data(options.centres) ? "centres"
                                                          : nullptr;
  if (trained != nullptr && options.mrope_section != nullptr) {
    fail(KVQ_E_UNSUPPORTED, "options->%s is for keys before RoPE of one position, but options->mrope_section is given",
         trained);
  }
  if (trained != nullptr && options.n_shapes > 0) {
    fail(KVQ_E_UNSUPPORTED, "options->%s is for a model whose layers are alike, but options->n_shapes is %d", trained,
         options.n_shapes);
  }
  if (!has_scales(options.centres)) return;
  const int32_t layer = uneven_layer(options);
  if (layer < 0) return;
  fail(KVQ_E_UNSUPPORTED,
       "options->centres has scales of a model whose layers are alike, but options->shapes make layer %d otherwise",
       layer);
}

void add_scales(kvq_context& context, const kvq_cache_options& options, CacheTraining& training) {
  if (!has_scales(options.centres)) return;
  require_context(context, *options.centres, "options->centres");
  check_scales(*options.centres->shared, shape_of(options), "centres");
  Rope rope(context.allocator);
  rope.set(options.rope, options.head_dim, options.rotary_dim, options.rope_base, options.inv_freq);
  check_scaled_pairs(*options.centres->shared, rope, "centres");
  training.scales = options.centres->shared;
}

/// Check that the backend knows the formats, and add their trained data.
void add_formats(kvq_context& context, const kvq_cache_options& options, const kvq_policy* policy,
                 CacheTraining& training) {
  const CacheShape shape = shape_of(options);
  const Codec* needed = trained_codec(policy, options.n_layers);
  const Trained* trained = trained_of(options, policy);
  Pages& pages = context.backend->pages();
  for_each_format(policy, options.n_layers, [&](int32_t layer, const FormatPair& pair) {
    const PageFormat format(pair.keys, pair.values, head_of(options, layer), trained);
    if (const Codec* codec = trained_codec(pair)) {
      if (trained == nullptr) {
        fail(KVQ_E_ARGUMENT, "policy stores layer %d as %s, but options->%s is NULL", layer,
             format_pair_name(pair).c_str(), codec->trained_as);
      }
      codec->check(*trained, shape, format);
    }
    if (!pages.knows(format)) {
      fail(KVQ_E_UNSUPPORTED, "policy stores layer %d as %s, which %s does not compute with yet", layer,
           format_pair_name(pair).c_str(), context.backend->name());
    }
  });
  for (int32_t layer = 0; layer < options.n_layers; ++layer) {
    const HeadShape head = head_of(options, layer);
    const int32_t begin = rotary_begin_of(options, layer);
    if (pages.knows_heads(head, begin)) continue;
    fail(KVQ_E_UNSUPPORTED,
         "layer %d has keys of %d channels, rotated from %d on, and values of %d%s, which %s does not compute with yet",
         layer, head.whole_key(), begin, head.values, head.is_latent ? " among them" : "", context.backend->name());
  }
  if (needed == nullptr) needed = codec_of_given(options);
  if (needed == nullptr) return;
  with_trained(options, *needed, [&](const auto* handle) {
    if (&*handle->context != &context) {
      fail(KVQ_E_ARGUMENT, "options->%s belongs to another context", needed->trained_as);
    }
    training.codec = needed;
    training.pages = handle->shared;
    training.resident_pages =
        handle->resident([&](const auto& shared) { return pages.make_resident(context.allocator, *needed, shared); });
  });
}

}  // namespace

const Storage& kvq::api::storage_for(kvq_cache& cache, const kvq_policy* policy) {
  if (policy == nullptr) return *cache.storage;
  const auto n_layers = static_cast<int32_t>(cache.model_layers().size());
  check_policy(policy, n_layers, "the cache's ");
  if (!policy->experts.empty()) {
    fail(KVQ_E_UNSUPPORTED, "policy lets a router choose formats, which only the cache's own policy can");
  }
  if (policy->eviction.budget != 0 && policy->eviction != cache.eviction) {
    fail(KVQ_E_ARGUMENT, "policy evicts otherwise than the cache's policy, which all of its sequences share");
  }
  for (const LayerShape& shape : cache.layers()) {
    const int32_t window = policy->window_of(shape.number);
    if (window == 0 || window == shape.window) continue;
    fail(KVQ_E_ARGUMENT,
         "policy has a window of %d for layer %d, and the cache one of %d (0: none), which all of its sequences share",
         window, shape.number, std::max(shape.window, 0));
  }
  check_calibration(policy, n_layers);
  const Trained* trained = cache.training.pages.get();
  for_each_format(policy, n_layers, [&](int32_t layer, const FormatPair& pair) {
    const PageFormat format(pair.keys, pair.values, cache.model_layer(layer).head, trained);
    const Codec* codec = trained_codec(pair);
    const Codec* given = cache.training.codec;
    if (codec != nullptr && (given == nullptr || std::string_view(codec->trained_as) != given->trained_as)) {
      fail(KVQ_E_UNSUPPORTED, "policy stores layer %d as %s, but the cache was created without %s", layer,
           format_pair_name(pair).c_str(), codec->trained_as);
    }
    const auto& known = cache.storage->layer_at(layer).formats;
    if (codec != nullptr && !codec->one_context &&
        std::ranges::none_of(known, [&](const PageFormat* each) { return *each == format; })) {
      fail(KVQ_E_UNSUPPORTED, "policy stores layer %d as %s, which only the cache's own policy can", layer,
           format_pair_name(pair).c_str());
    }
    if (codec != nullptr) codec->check(*trained, cache.shape(), format);
    if (!cache.backend.pages().knows(format)) {
      fail(KVQ_E_UNSUPPORTED, "policy stores layer %d as %s, which %s does not compute with yet", layer,
           format_pair_name(pair).c_str(), cache.backend.name());
    }
  });
  check_evicted_formats(cache.eviction, *policy, n_layers, trained,
                        [&](int32_t layer) { return cache.model_layer(layer).head; });
  const auto [storage, is_new] = cache.storage_of(*policy);
  if (is_new) make_call_rooms_again(cache);  // for sequences that have preallocated pages
  return storage;
}

const LayerShape& kvq::api::any_layer_of(const Cache& cache, int32_t layer) {
  require_range(layer, 0, static_cast<int64_t>(cache.model_layers().size()) - 1, "layer");
  return cache.model_layer(layer);
}

const LayerShape& kvq::api::layer_of(const Cache& cache, int32_t layer) {
  const LayerShape& shape = any_layer_of(cache, layer);
  if (shape.is_recurrent()) fail(KVQ_E_ARGUMENT, "layer is %d, which is recurrent and holds no tokens", layer);
  return shape;
}

int32_t kvq::api::appended_layer(const Cache& cache, int32_t layer) {
  const LayerShape& shape = layer_of(cache, layer);
  if (shape.has_own_pages()) return shape.pages_index;
  fail(KVQ_E_ARGUMENT, "layer is %d, which reads the pages of layer %d: append to that, and call kvq_attend for this",
       layer, shape.pages_layer);
}

void kvq::api::write_layer(const Storage& storage, const LayerShape& shape, kvq_layer_info* info) {
  kvq_layer_info found{};
  if (shape.is_recurrent()) {
    found.recurrent = 1;
    found.pages_of_layer = shape.number;
    return write_struct(info, found, "info");
  }
  std::vector<FormatPair> pairs;
  for (const PageFormat* format : storage.layer_at(shape.pages_index).formats) {
    pairs.push_back({format->side(Side::kKeys), format->side(Side::kValues)});
  }
  found.n_formats = static_cast<int32_t>(pairs.size());
  const std::string names = names_of(pairs);
  std::copy_n(names.begin(), std::min(names.size(), sizeof(found.formats) - 1), found.formats);
  found.q_heads = shape.q_heads;
  found.kv_heads = shape.kv_heads;
  found.key_dim = shape.head.whole_key();
  found.value_dim = shape.head.values;
  found.rope = shape.rope->pairing;
  found.rotary_begin = shape.rope->begin + shape.head.before_keys();
  found.rotary_dim = shape.rope->rotary_dim;
  found.scale = shape.scale;
  found.logit_softcap = shape.softcap;
  found.values_are_key_prefix = shape.head.is_latent ? 1 : 0;
  found.pages_of_layer = shape.pages_layer;
  found.sliding_window = std::max(shape.window, 0);
  found.attention_chunk = std::max(-shape.window, 0);
  write_struct(info, found, "info");
}

kvq_cache_options kvq::api::default_cache_options() {
  kvq_cache_options options{};
  options.rope = KVQ_ROPE_HALF;
  options.rope_base = 10000.0F;
  return options;
}

void kvq::api::release(kvq_cache* cache) noexcept {
  if (cache->holders.drop()) destroy(cache);
}

void kvq_cache_options_init(kvq_cache_options* options, size_t size) {
  init_struct(options, size, default_cache_options());
}

kvq_status kvq_cache_create(kvq_context* context, const kvq_cache_options* options, const kvq_policy* policy,
                            kvq_cache** result, kvq_error* error) {
  return created(result, error, [&] {
    require(context, "context");
    kvq_cache_options chosen = read_struct(options, default_cache_options(), "options");
    require(result, "result");
    check_options(chosen);
    const std::vector<kvq_layer_shape> shapes = read_shapes(chosen);
    chosen.shapes = shapes.data();
    check_sections(chosen);
    check_trained_shapes(chosen);
    check_policy(policy, chosen.n_layers);
    check_windows(chosen, policy);
    CacheTraining training;
    check_calibration(policy, chosen.n_layers);
    add_scales(*context, chosen, training);
    add_formats(*context, chosen, policy, training);
    add_router(*context, chosen, policy, training);
    check_eviction(*context, chosen, policy);
    return make_owned<kvq_cache>(context->allocator, *context, chosen, policy, std::move(training));
  });
}

void kvq_cache_destroy(kvq_cache* cache) {
  if (cache != nullptr) release(cache);
}

kvq_status kvq_cache_describe(const kvq_cache* cache, kvq_cache_info* info, kvq_error* error) {
  return guarded(error, [&] {
    require(cache, "cache");
    kvq_cache_info found{};
    found.n_layers = static_cast<int32_t>(cache->model_layers().size());
    const LayerShape& usual = cache->usual();
    found.q_heads = usual.q_heads;
    found.kv_heads = usual.kv_heads;
    found.head_dim = usual.head.keys;
    found.rope = usual.rope->pairing;
    found.rotary_dim = usual.rope->rotary_dim;
    found.scale = usual.scale;
    found.sink = cache->storage->sink;
    found.recent = cache->storage->recent;
    found.eviction_budget = cache->eviction.budget;
    found.eviction_window = cache->eviction.budget > 0 ? cache->eviction.window : 0;
    found.max_bytes = cache->allocator.limit();
    found.model_id = cache->model_id;
    write_struct(info, found, "info");
  });
}

kvq_status kvq_cache_describe_layer(const kvq_cache* cache, int32_t layer, kvq_layer_info* info, kvq_error* error) {
  return guarded(error, [&] {
    require(cache, "cache");
    write_layer(*cache->storage, any_layer_of(*cache, layer), info);
  });
}

kvq_context* kvq_cache_context(const kvq_cache* cache) { return cache != nullptr ? &*cache->context : nullptr; }

kvq_status kvq_cache_predict_usage(const kvq_cache* cache, int32_t sequences, int32_t tokens, int32_t queries,
                                   kvq_usage* usage, kvq_error* error) {
  return guarded(error, [&] {
    require(cache, "cache");
    require_range(sequences, 1, INT32_MAX, "sequences");
    require_range(tokens, 0, INT32_MAX - kPageSlots, "tokens");
    require_range(queries, 0, INT32_MAX, "queries");
    require_struct(usage, sizeof(uint32_t), "usage");
    write_struct(usage, predict_usage(*cache, sequences, tokens, queries), "usage");
  });
}

kvq_status kvq_cache_usage(const kvq_cache* cache, const kvq_sequence* sequence, kvq_usage* usage, kvq_error* error) {
  return guarded(error, [&] {
    require(cache, "cache");
    require_struct(usage, sizeof(uint32_t), "usage");
    if (sequence != nullptr && &sequence->cache != cache) {
      fail(KVQ_E_ARGUMENT, "sequence belongs to another cache");
    }
    if (sequence != nullptr) follow_replays(*sequence);
    write_struct(usage, sequence != nullptr ? kvq::usage(*sequence) : kvq::usage(static_cast<const Cache&>(*cache)),
                 "usage");
  });
}
