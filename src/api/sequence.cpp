#include "api/boundary.h"
#include "api/handles.h"
#include "cache/compress.h"
#include "cache/decode.h"
#include "cache/invariants.h"
#include "cache/reserve.h"
#include "io/snapshot.h"

using namespace kvq;
using namespace kvq::api;

void kvq::api::require_owner(const kvq_cache* cache, const kvq_sequence* sequence, const char* argument) {
  require(cache, "cache");
  require(sequence, argument);
  if (&sequence->cache != cache) fail(KVQ_E_ARGUMENT, "%s belongs to another cache", argument);
}

kvq_status kvq_sequence_create(kvq_cache* cache, kvq_sequence** out, kvq_error* error) {
  if (out != nullptr) *out = nullptr;
  return guarded(error, [&] {
    require(cache, "cache");
    require(out, "out");
    *out = checked_new(*cache, nullptr, [&] { return make_owned<kvq_sequence>(cache->allocator, *cache); }).release();
  });
}

kvq_status kvq_sequence_fork(kvq_cache* cache, const kvq_sequence* parent, kvq_sequence** out, kvq_error* error) {
  if (out != nullptr) *out = nullptr;
  return guarded(error, [&] {
    require_owner(cache, parent, "parent");
    follow_replays(*parent);
    require(out, "out");
    const auto fork = [&] { return make_owned<kvq_sequence>(cache->allocator, *cache, *parent); };
    *out = checked_new(*cache, parent, fork).release();
  });
}

kvq_status kvq_sequence_truncate(kvq_cache* cache, kvq_sequence* sequence, int32_t length, kvq_error* error) {
  return guarded(error, [&] {
    require_owner(cache, sequence, "sequence");
    follow_replays(*sequence);
    if (length < 0) fail(KVQ_E_ARGUMENT, "length is %d, must not be negative", length);
    checked(*sequence, [&] { truncate(*sequence, length); });
  });
}

void kvq_sequence_destroy(kvq_sequence* sequence) {
  if (sequence != nullptr) destroy(sequence, sequence->cache.allocator);
}

kvq_status kvq_sequence_length(const kvq_sequence* sequence, int32_t layer, int32_t* out, kvq_error* error) {
  return guarded(error, [&] {
    require(sequence, "sequence");
    require(out, "out");
    require_range(layer, 0, sequence->cache.n_layers - 1, "layer");
    follow_replays(*sequence);
    *out = sequence->length(layer);
  });
}

kvq_status kvq_sequence_reserve(kvq_cache* cache, kvq_sequence* sequence, int32_t tokens, kvq_error* error) {
  return guarded(error, [&] {
    require_owner(cache, sequence, "sequence");
    follow_replays(*sequence);
    if (tokens < 0) fail(KVQ_E_ARGUMENT, "tokens is %d, must not be negative", tokens);
    checked(*sequence, [&] { reserve(*sequence, tokens); });
  });
}

kvq_status kvq_sequence_room(const kvq_sequence* sequence, int32_t layer, int32_t* out, kvq_error* error) {
  return guarded(error, [&] {
    require(sequence, "sequence");
    require(out, "out");
    require_range(layer, 0, sequence->cache.n_layers - 1, "layer");
    follow_replays(*sequence);
    *out = sequence->state(layer, 0, 0).room;
  });
}

kvq_status kvq_sequence_save(kvq_cache* cache, const kvq_sequence* sequence, void* buffer, size_t capacity,
                             size_t* size, kvq_error* error) {
  return guarded(error, [&] {
    require_owner(cache, sequence, "sequence");
    follow_replays(*sequence);
    require(size, "size");
    *size = io::snapshot_size(*sequence);
    if (buffer == nullptr) return;
    if (capacity < *size) fail(KVQ_E_ARGUMENT, "capacity is %zu, the snapshot needs %zu bytes", capacity, *size);
    io::write_snapshot(*sequence, {static_cast<std::byte*>(buffer), *size});
  });
}

kvq_status kvq_sequence_load(kvq_cache* cache, const void* buffer, size_t size, kvq_sequence** out, kvq_error* error) {
  if (out != nullptr) *out = nullptr;
  return guarded(error, [&] {
    require(cache, "cache");
    require(buffer, "buffer");
    require(out, "out");
    const auto load = [&] {
      auto sequence = make_owned<kvq_sequence>(cache->allocator, *cache);
      io::read_snapshot({static_cast<const std::byte*>(buffer), size}, *sequence);
      return sequence;
    };
    *out = checked_new(*cache, nullptr, load).release();
  });
}

void kvq_compress_options_init(kvq_compress_options* options) {
  if (options == nullptr) return;
  *options = kvq_compress_options{};
  options->struct_size = sizeof(kvq_compress_options);
}

kvq_status kvq_compress(kvq_cache* cache, kvq_sequence* sequence, const kvq_compress_options* options,
                        kvq_error* error) {
  return guarded(error, [&] {
    require_owner(cache, sequence, "sequence");
    follow_replays(*sequence);
    kvq_compress_options chosen;
    kvq_compress_options_init(&chosen);
    if (options != nullptr) {
      require_struct(options, "options");
      chosen = *options;
    }
    if (chosen.budget < 0) fail(KVQ_E_ARGUMENT, "options->budget is %d, must not be negative", chosen.budget);
    const uint64_t before = usage(*sequence).total_bytes;
    const std::span kept{chosen.kept, chosen.kept != nullptr ? sequence->lists.size() : size_t{0}};
    checked(*sequence, [&] { compress(*sequence, chosen.budget, kept); });
    const uint64_t after = usage(*sequence).total_bytes;
    if (chosen.bytes_freed != nullptr) *chosen.bytes_freed = before > after ? before - after : 0;
  });
}

kvq_status kvq_sequence_decode(const kvq_cache* cache, const kvq_sequence* sequence, int32_t layer, int32_t kv_head,
                               int32_t begin, int32_t n, float* k, float* v, int32_t* positions, kvq_error* error) {
  return guarded(error, [&] {
    require_owner(cache, sequence, "sequence");
    follow_replays(*sequence);
    require_range(layer, 0, cache->n_layers - 1, "layer");
    require_range(kv_head, 0, cache->kv_heads - 1, "kv_head");
    decode(*sequence, {layer, kv_head, begin, n}, {k, v, positions});
  });
}
