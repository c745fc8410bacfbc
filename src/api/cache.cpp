#include "api/boundary.h"
#include "api/handles.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <string>

using namespace kvq;
using namespace kvq::api;

namespace {

void check_rope(const kvq_cache_options& options) {
  require_range(options.rope, KVQ_ROPE_NONE, KVQ_ROPE_INTERLEAVED, "options->rope");
  if (options.rope == KVQ_ROPE_NONE) return;
  require_range(options.rotary_dim, 0, options.head_dim, "options->rotary_dim");
  if (options.rotary_dim % 2 != 0) {
    fail(KVQ_E_ARGUMENT, "options->rotary_dim is %d, must be even", options.rotary_dim);
  }
  if (options.inv_freq == nullptr && !(options.rope_base > 0.0F && std::isfinite(options.rope_base))) {
    fail(KVQ_E_ARGUMENT, "options->rope_base is %g, must be positive and finite",
         static_cast<double>(options.rope_base));
  }
  const int32_t pairs = (options.rotary_dim != 0 ? options.rotary_dim : options.head_dim) / 2;
  for (int32_t i = 0; options.inv_freq != nullptr && i < pairs; ++i) {
    if (std::isfinite(options.inv_freq[i])) continue;
    fail(KVQ_E_ARGUMENT, "options->inv_freq[%d] is %g, must be finite", i, static_cast<double>(options.inv_freq[i]));
  }
}

void check_options(const kvq_cache_options& options) {
  require_range(options.n_layers, 1, 65536, "options->n_layers");
  require_range(options.kv_heads, 1, 4096, "options->kv_heads");
  require_range(options.q_heads, 1, 65536, "options->q_heads");
  if (options.q_heads % options.kv_heads != 0) {
    fail(KVQ_E_ARGUMENT, "options->q_heads is %d, must be a multiple of kv_heads, %d", options.q_heads,
         options.kv_heads);
  }
  require_range(options.head_dim, 8, kMaxHeadDim, "options->head_dim");
  if (options.head_dim % 8 != 0) {
    fail(KVQ_E_ARGUMENT, "options->head_dim is %d, must be a multiple of 8", options.head_dim);
  }
  require_range(options.reserved, 0, 0, "options->reserved");
  check_rope(options);
  if (!std::isfinite(options.scale)) {
    fail(KVQ_E_ARGUMENT, "options->scale is %g, must be finite", static_cast<double>(options.scale));
  }
}

void check_policy(const kvq_policy* policy, int32_t n_layers) {
  if (policy == nullptr) return;
  for (const Policy::Override& each : policy->overrides) {
    if (each.last_layer < n_layers) continue;
    fail(KVQ_E_ARGUMENT, "policy has an entry for layer range [%d, %d], but options->n_layers is %d", each.first_layer,
         each.last_layer, n_layers);
  }
}

/// `trained`: a member of the options, which was trained for some `what`.
void check_same(const char* trained, const char* what, int64_t its, int64_t options) {
  if (its == options) return;
  fail(KVQ_E_MISMATCH, "options->%s was trained for %s %lld, but options->%s is %lld", trained, what,
       static_cast<long long>(its), what, static_cast<long long>(options));
}

void check_model(const char* trained, uint64_t its, uint64_t options) {
  if (its == 0 || options == 0 || its == options) return;
  fail(KVQ_E_MISMATCH, "options->%s was trained for model_id %llu, but options->model_id is %llu", trained,
       static_cast<unsigned long long>(its), static_cast<unsigned long long>(options));
}

std::string names_of(std::span<const FormatPair> experts) {
  std::string names;
  for (const FormatPair& expert : experts) names += (names.empty() ? "" : ", ") + format_pair_name(expert);
  return names;
}

/// A page with codes takes no more than one without, for which buffers are made.
void check_side_bytes(Side side, const PageFormat& format) {
  const size_t bytes = side_bytes(side, format);
  const size_t plain = side_bytes(side, {SideFormat{}, SideFormat{}, format.head_dim});
  if (bytes <= plain) return;
  fail(KVQ_E_ARGUMENT, "options->codebook needs %zu bytes for the %s of a page, more than the %zu that FP16 needs",
       bytes, side == Side::kKeys ? "keys" : "values", plain);
}

/// Whether the codebook serves these options and has codes for what a policy stores so.
void check_codebook(const ModelCodebook& codebook, const kvq_cache_options& options, const SideFormat& keys,
                    const SideFormat& values) {
  const CodebookShape& shape = codebook.shape;
  if (!codebook.complete()) {
    fail(KVQ_E_ARGUMENT, "options->codebook has %d of %d layers: finish its training", codebook.layers_present(),
         shape.n_layers);
  }
  check_same("codebook", "n_layers", shape.n_layers, options.n_layers);
  check_same("codebook", "kv_heads", shape.kv_heads, options.kv_heads);
  check_same("codebook", "head_dim", shape.head_dim, options.head_dim);
  check_model("codebook", codebook.model_id, options.model_id);
  if (keys.is_coded()) {
    if (shape.keys.stages == 0)
      fail(KVQ_E_ARGUMENT, "policy stores keys as commvq, but options->codebook has no codes for keys");
    check_same("codebook", "rope", shape.pairing, options.rope);
    if (options.rotary_dim != 0 && options.rotary_dim != options.head_dim) {
      fail(KVQ_E_ARGUMENT, "options->rotary_dim is %d: keys as commvq need all %d channels rotated", options.rotary_dim,
           options.head_dim);
    }
  }
  if (values.is_coded() && shape.values.bits == 0) {
    fail(KVQ_E_ARGUMENT, "policy stores values as commvq, but options->codebook has no codes for values");
  }
  const PageFormat format(keys, values, options.head_dim, shape);
  for (const Side side : {Side::kKeys, Side::kValues}) {
    if (format.side(side).is_coded()) check_side_bytes(side, format);
  }
}

/// Calls `use` with a layer and one of the pairs of formats that its pages may be sealed in; for a routed policy once
/// for all layers.
template <typename Use>
void for_each_format(const kvq_policy* policy, int32_t n_layers, const Use& use) {
  if (policy == nullptr) return;
  for (const FormatPair& expert : policy->experts) use(0, expert);
  for (int32_t layer = 0; policy->experts.empty() && layer < n_layers; ++layer) use(layer, policy->formats(layer));
}

void check_eviction(const kvq_context& context, const kvq_cache_options& options, const kvq_policy* policy) {
  if (policy == nullptr || policy->eviction.budget == 0) return;
  if (!context.backend->weighs()) {
    fail(KVQ_E_UNSUPPORTED, "policy evicts tokens, which %s does not do yet", context.backend->name());
  }
  if (policy->eviction.heads == HeadSplit::kTogether || options.codebook == nullptr) return;
  const CodebookShape& shape = options.codebook->shared->shape;
  for_each_format(policy, options.n_layers, [&](int32_t layer, const FormatPair& format) {
    if (!PageFormat(format.keys, format.values, options.head_dim, shape).spans_heads()) return;
    fail(KVQ_E_ARGUMENT,
         "policy evicts tokens of each head of layer %d, but options->codebook codes all heads together: train it with "
         "scope head, or evict with heads: together",
         layer);
  });
}

void check_router_fits(const ModelRouter& router, const kvq_cache_options& options, const Policy& policy) {
  const RouterShape& shape = router.shape;
  check_same("router", "n_layers", shape.n_layers, options.n_layers);
  check_same("router", "kv_heads", shape.kv_heads, options.kv_heads);
  check_same("router", "head_dim", shape.head_dim, options.head_dim);
  check_same("router", "rope", shape.pairing, options.rope);
  check_model("router", router.model_id, options.model_id);
  if (std::equal(router.experts.begin(), router.experts.end(), policy.experts.begin(), policy.experts.end())) return;
  fail(KVQ_E_MISMATCH, "options->router was trained for the experts %s, but the policy has %s",
       names_of(router.experts).c_str(), names_of(policy.experts).c_str());
}

/// Experts go from the most bits to the fewest: where votes are equal, the first one wins.
void check_experts(const kvq_cache_options& options, const Policy& policy, const CodebookShape& shape) {
  size_t previous = SIZE_MAX;
  int32_t coded = 0;
  for (const FormatPair& expert : policy.experts) {
    const PageFormat format(expert.keys, expert.values, options.head_dim, shape);
    if (format.bytes() > previous) {
      fail(KVQ_E_ARGUMENT, "policy has the expert %s after one with fewer bits: begin with the most precise",
           format_pair_name(expert).c_str());
    }
    previous = format.bytes();
    coded += format.uses_codebook() ? 1 : 0;
    if (format.spans_heads() && policy.votes == Votes::kHead) {
      fail(KVQ_E_ARGUMENT,
           "policy lets each head vote, but options->codebook codes all heads together: train it with scope head, or "
           "use votes: layer");
    }
  }
  if (coded > 1) fail(KVQ_E_ARGUMENT, "policy has %d experts with commvq, at most one is possible", coded);
}

/// Null if the policy needs none.
std::shared_ptr<const ModelRouter> find_router(const kvq_context& context, const kvq_cache_options& options,
                                               const kvq_policy* policy) {
  if (policy == nullptr || policy->experts.empty()) return nullptr;
  if (!context.backend->votes()) {
    fail(KVQ_E_UNSUPPORTED, "policy has a router, which %s does not run yet", context.backend->name());
  }
  if (options.router == nullptr) {
    fail(KVQ_E_ARGUMENT, "policy lets a router choose the formats, but options->router is NULL");
  }
  check_experts(options, *policy, options.codebook != nullptr ? options.codebook->shared->shape : CodebookShape{});
  check_router_fits(*options.router->shared, options, *policy);
  if (&options.router->allocator != &context.allocator) {
    fail(KVQ_E_ARGUMENT, "options->router belongs to another context");
  }
  return options.router->shared;
}

/// Null if the policy needs none.
std::shared_ptr<const ModelCoder> find_coder(kvq_context& context, const kvq_cache_options& options,
                                             const kvq_policy* policy) {
  if (policy == nullptr) return nullptr;
  const CodebookShape shape = options.codebook != nullptr ? options.codebook->shared->shape : CodebookShape{};
  bool needed = false;
  for_each_format(policy, options.n_layers, [&](int32_t layer, const FormatPair& format) {
    if (format.keys.is_coded() || format.values.is_coded()) {
      needed = true;
      if (options.codebook == nullptr) {
        fail(KVQ_E_ARGUMENT, "policy stores layer %d as commvq, but options->codebook is NULL", layer);
      }
      check_codebook(*options.codebook->shared, options, format.keys, format.values);
    }
    if (!context.backend->knows({format.keys, format.values, options.head_dim, shape})) {
      fail(KVQ_E_UNSUPPORTED, "policy stores layer %d in a format that %s does not compute with yet", layer,
           context.backend->name());
    }
  });
  if (!needed) return nullptr;
  if (&options.codebook->allocator != &context.allocator) {
    fail(KVQ_E_ARGUMENT, "options->codebook belongs to another context");
  }
  return options.codebook->coder(context.parallel);
}

}  // namespace

void kvq_cache_options_init(kvq_cache_options* options) {
  if (options == nullptr) return;
  *options = kvq_cache_options{};
  options->struct_size = sizeof(kvq_cache_options);
  options->rope = KVQ_ROPE_HALF;
  options->rope_base = 10000.0F;
}

kvq_status kvq_cache_create(kvq_context* context, const kvq_cache_options* options, const kvq_policy* policy,
                            kvq_cache** out, kvq_error* error) {
  if (out != nullptr) *out = nullptr;
  return guarded(error, [&] {
    require(context, "context");
    require_struct(options, "options");
    require(out, "out");
    check_options(*options);
    check_policy(policy, options->n_layers);
    auto coder = find_coder(*context, *options, policy);
    auto router = find_router(*context, *options, policy);
    check_eviction(*context, *options, policy);
    *out = make_owned<kvq_cache>(context->allocator, *context, *options, policy, std::move(coder), std::move(router))
               .release();
  });
}

void kvq_cache_destroy(kvq_cache* cache) {
  if (cache == nullptr) return;
  Deleter<kvq_cache>(cache->allocator.parent(), sizeof(kvq_cache), alignof(kvq_cache))(cache);
}

kvq_status kvq_cache_usage(const kvq_cache* cache, const kvq_sequence* sequence, kvq_usage* usage, kvq_error* error) {
  return guarded(error, [&] {
    require(cache, "cache");
    require_struct(usage, "usage");
    if (sequence != nullptr && &sequence->cache != cache) {
      fail(KVQ_E_ARGUMENT, "sequence belongs to another cache");
    }
    if (sequence != nullptr) follow_replays(*sequence);
    *usage = sequence != nullptr ? kvq::usage(*sequence) : kvq::usage(static_cast<const Cache&>(*cache));
    usage->struct_size = sizeof(kvq_usage);
  });
}
