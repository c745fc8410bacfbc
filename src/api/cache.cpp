#include "api/boundary.h"
#include "api/handles.h"

#include <cmath>

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
    *out = make_owned<kvq_cache>(context->allocator, *context, *options, policy).release();
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
