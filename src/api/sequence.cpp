#include "cache/sequence.h"
#include "api/boundary.h"
#include "api/handles.h"
#include "cache/invariants.h"
#include "cache/reserve.h"
#include "cache/step.h"
#include "io/snapshot.h"

using namespace kvq;
using namespace kvq::api;

void kvq::api::require_current(const kvq_cache* cache, const kvq_sequence* sequence, const char* argument) {
  require(cache, "cache");
  require(sequence, argument);
  if (&sequence->cache != cache) fail(KVQ_E_ARGUMENT, "%s belongs to another cache", argument);
  follow_replays(*sequence);
}

void kvq::api::require_owner_of_entry(const kvq_cache& cache, const kvq_sequence* sequence, int32_t index) {
  require_entry(sequence, "batch->sequences", index);
  if (&sequence->cache != &cache) fail(KVQ_E_ARGUMENT, "batch->sequences[%d] belongs to another cache", index);
}

kvq_status kvq_sequence_create(kvq_cache* cache, kvq_sequence** result, kvq_error* error) {
  return created(result, error, [&] {
    require(cache, "cache");
    require(result, "result");
    return checked_new(*cache, nullptr, [&] { return make_owned<kvq_sequence>(cache->allocator, *cache); });
  });
}

kvq_status kvq_sequence_fork(kvq_cache* cache, const kvq_sequence* parent, kvq_sequence** result, kvq_error* error) {
  return created(result, error, [&] {
    require_current(cache, parent, "parent");
    require(result, "result");
    require_no_step(*parent);
    const auto fork = [&] { return make_owned<kvq_sequence>(cache->allocator, *cache, *parent); };
    return checked_new(*cache, parent, fork);
  });
}

kvq_status kvq_sequence_truncate(kvq_cache* cache, kvq_sequence* sequence, int32_t length, kvq_error* error) {
  return guarded(error, [&] {
    require_current(cache, sequence);
    if (length < 0) fail(KVQ_E_ARGUMENT, "length is %d, must not be negative", length);
    checked(*sequence, [&] { truncate(*sequence, length); });
  });
}

void kvq_sequence_destroy(kvq_sequence* sequence) {
  if (sequence == nullptr) return;
  const Kept<kvq_cache> cache(sequence->owner());
  Deleter<kvq_sequence>(cache->allocator, sizeof(kvq_sequence), alignof(kvq_sequence))(sequence);
}

kvq_cache* kvq_sequence_cache(const kvq_sequence* sequence) {
  return sequence != nullptr ? &sequence->owner() : nullptr;
}

kvq_status kvq_sequence_length(const kvq_sequence* sequence, int32_t layer, int32_t* length, kvq_error* error) {
  return guarded(error, [&] {
    require(sequence, "sequence");
    require(length, "length");
    require_range(layer, 0, sequence->cache.n_layers - 1, "layer");
    follow_replays(*sequence);
    *length = sequence->length(layer);
  });
}

kvq_status kvq_sequence_reserve(kvq_cache* cache, kvq_sequence* sequence, int32_t tokens, kvq_error* error) {
  return guarded(error, [&] {
    require_current(cache, sequence);
    if (tokens < 0) fail(KVQ_E_ARGUMENT, "tokens is %d, must not be negative", tokens);
    checked(*sequence, [&] { reserve(*sequence, tokens); });
  });
}

kvq_status kvq_sequence_room(const kvq_sequence* sequence, int32_t layer, int32_t* room, kvq_error* error) {
  return guarded(error, [&] {
    require(sequence, "sequence");
    require(room, "room");
    require_range(layer, 0, sequence->cache.n_layers - 1, "layer");
    follow_replays(*sequence);
    *room = sequence->state(layer, 0, 0).room;
  });
}

kvq_status kvq_sequence_slots(const kvq_sequence* sequence, int32_t layer, int32_t kv_head, int32_t* slots,
                              kvq_error* error) {
  return guarded(error, [&] {
    require(sequence, "sequence");
    require_range(layer, 0, sequence->cache.n_layers - 1, "layer");
    require_range(kv_head, 0, sequence->cache.kv_heads - 1, "kv_head");
    require(slots, "slots");
    follow_replays(*sequence);
    *slots = sequence->slots(layer, kv_head);
  });
}

kvq_status kvq_sequence_save(kvq_cache* cache, const kvq_sequence* sequence, void* buffer, size_t capacity,
                             size_t* size, kvq_error* error) {
  return guarded(error, [&] {
    require_current(cache, sequence);
    require(size, "size");
    require_no_step(*sequence);
    hand_over(io::snapshot_size(*sequence), buffer, capacity, *size,
              [&](std::span<std::byte> bytes) { io::write_snapshot(*sequence, bytes); });
  });
}

kvq_status kvq_sequence_load(kvq_cache* cache, const void* buffer, size_t size, kvq_sequence** result,
                             kvq_error* error) {
  return created(result, error, [&] {
    require(cache, "cache");
    require(buffer, "buffer");
    require(result, "result");
    const auto load = [&] {
      auto sequence = make_owned<kvq_sequence>(cache->allocator, *cache);
      io::read_snapshot({static_cast<const std::byte*>(buffer), size}, *sequence);
      return sequence;
    };
    return checked_new(*cache, nullptr, load);
  });
}

void kvq_compress_options_init(kvq_compress_options* options, size_t size) {
  init_struct(options, size, kvq_compress_options{});
}

kvq_status kvq_compress(kvq_cache* cache, kvq_sequence* sequence, const kvq_compress_options* options,
                        kvq_error* error) {
  return guarded(error, [&] {
    require_current(cache, sequence);
    const kvq_compress_options chosen = read_optional_struct(options, kvq_compress_options{}, "options");
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
    require_current(cache, sequence);
    require_range(layer, 0, cache->n_layers - 1, "layer");
    require_range(kv_head, 0, cache->kv_heads - 1, "kv_head");
    decode(*sequence, {layer, kv_head, begin, n}, {k, v, positions});
  });
}
