#include "cache/sequence.h"
#include "api/boundary.h"
#include "api/handles.h"
#include "cache/invariants.h"
#include "cache/recode.h"
#include "cache/reserve.h"
#include "cache/step.h"
#include "io/snapshot.h"

#include <algorithm>

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
    const LayerShape& shape = layer_of(sequence->cache, layer);
    follow_replays(*sequence);
    *length = sequence->length(shape.pages_index);
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
    const LayerShape& shape = layer_of(sequence->cache, layer);
    follow_replays(*sequence);
    *room = sequence->state(shape.pages_index, 0, 0).room;
  });
}

kvq_status kvq_sequence_slots(const kvq_sequence* sequence, int32_t layer, int32_t kv_head, int32_t* slots,
                              kvq_error* error) {
  return guarded(error, [&] {
    require(sequence, "sequence");
    const LayerShape& shape = layer_of(sequence->cache, layer);
    require_range(kv_head, 0, shape.kv_heads - 1, "kv_head");
    require(slots, "slots");
    follow_replays(*sequence);
    *slots = sequence->slots(shape.pages_index, kv_head);
  });
}

kvq_status kvq_sequence_save(kvq_cache* cache, const kvq_sequence* sequence, void* buffer, size_t capacity,
                             size_t* size, kvq_error* error) {
  return guarded(error, [&] {
    require_current(cache, sequence);
    require(size, "size");
    require_no_step(*sequence);
    const Sequence* only = sequence;
    hand_over(io::snapshot_size({&only, 1}), buffer, capacity, *size, [&](std::span<std::byte> bytes) {
      io::write_snapshot({&only, 1}, bytes);
    });
  });
}

kvq_status kvq_sequence_load(kvq_cache* cache, const void* buffer, size_t size, kvq_sequence** result,
                             kvq_error* error) {
  return created(result, error, [&] {
    require(cache, "cache");
    require(buffer, "buffer");
    require(result, "result");
    const std::span bytes{static_cast<const std::byte*>(buffer), size};
    const int32_t n = io::snapshot_sequences(bytes, *cache);
    if (n != 1) fail(KVQ_E_MISMATCH, "snapshot has %d sequences: load it with kvq_cache_load", n);
    const auto load = [&] {
      auto sequence = make_owned<kvq_sequence>(cache->allocator, *cache);
      Sequence* only = sequence.get();
      io::read_snapshot(bytes, {&only, 1}, false);
      keep_compress_room(*sequence, 0);
      return sequence;
    };
    return checked_new(*cache, nullptr, load);
  });
}

kvq_status kvq_cache_save(kvq_cache* cache, const kvq_sequence* const* sequences, int32_t n_sequences, void* buffer,
                          size_t capacity, size_t* size, kvq_error* error) {
  return guarded(error, [&] {
    require(cache, "cache");
    require(sequences, "sequences");
    require_range(n_sequences, 1, INT32_MAX, "n_sequences");
    require(size, "size");
    Vector<const Sequence*> all(cache->allocator);
    all.reserve(static_cast<size_t>(n_sequences));
    for (int32_t i = 0; i < n_sequences; ++i) {
      if (sequences[i] == nullptr) fail(KVQ_E_ARGUMENT, "sequences[%d] is NULL", i);
      if (&sequences[i]->cache != cache) fail(KVQ_E_ARGUMENT, "sequences[%d] belongs to another cache", i);
      follow_replays(*sequences[i]);
      require_no_step(*sequences[i]);
      all.push_back(sequences[i]);
    }
    Vector<const Sequence*> sorted(all);
    std::ranges::sort(sorted);
    if (std::ranges::adjacent_find(sorted) != sorted.end()) {
      fail(KVQ_E_ARGUMENT, "sequences has one of them twice: a snapshot has each once");
    }
    hand_over(io::snapshot_size(all), buffer, capacity, *size,
              [&](std::span<std::byte> bytes) { io::write_snapshot(all, bytes); });
  });
}

void kvq_load_options_init(kvq_load_options* options, size_t size) { init_struct(options, size, kvq_load_options{}); }

namespace {

kvq_load_options checked_options(const kvq_load_options* options) {
  const kvq_load_options chosen = read_optional_struct(options, kvq_load_options{}, "options");
  require_range(chosen.recode, 0, 1, "options->recode");
  return chosen;
}

}  // namespace

kvq_status kvq_cache_load(kvq_cache* cache, const void* buffer, size_t size, kvq_sequence** sequences,
                          int32_t n_sequences, const kvq_load_options* options, kvq_error* error) {
  return guarded(error, [&] {
    require(cache, "cache");
    require(buffer, "buffer");
    const kvq_load_options chosen = checked_options(options);
    require(sequences, "sequences");
    const std::span bytes{static_cast<const std::byte*>(buffer), size};
    const int32_t n = io::snapshot_sequences(bytes, *cache);
    if (n_sequences != n) fail(KVQ_E_ARGUMENT, "n_sequences is %d, but snapshot has %d", n_sequences, n);
    const Storage& storage = storage_for(*cache, chosen.policy);
    Vector<Owned<kvq_sequence>> made(cache->allocator);
    Vector<Sequence*> empty(cache->allocator);
    made.reserve(static_cast<size_t>(n));
    empty.reserve(static_cast<size_t>(n));
    for (int32_t i = 0; i < n; ++i) {
      made.push_back(make_owned<kvq_sequence>(cache->allocator, *cache, storage));
      empty.push_back(made.back().get());
    }
    io::read_snapshot(bytes, empty, chosen.recode != 0);
    for (Sequence* each : empty) keep_compress_room(*each, 0);
    for (size_t i = 0; i < made.size(); ++i) {
      if constexpr (kChecksInvariants) check_invariants(*made[i], Sealing::kAny);
    }
    for (size_t i = 0; i < made.size(); ++i) sequences[i] = made[i].release();
  });
}

kvq_status kvq_snapshot_describe(kvq_cache* cache, const void* buffer, size_t size, const kvq_load_options* options,
                                 kvq_snapshot_info* info, kvq_error* error) {
  return guarded(error, [&] {
    require(cache, "cache");
    require(buffer, "buffer");
    const kvq_load_options chosen = checked_options(options);
    require_struct(info, sizeof(uint32_t), "info");
    const Storage& storage = storage_for(*cache, chosen.policy);
    const io::SnapshotContents contents =
        io::describe_snapshot({static_cast<const std::byte*>(buffer), size}, *cache, storage, chosen.recode != 0);
    kvq_snapshot_info found{};
    found.n_sequences = contents.sequences;
    found.tokens = contents.tokens;
    found.trained = contents.trained ? 1 : 0;
    found.pages = contents.pages;
    found.recoded_pages = contents.recoded_pages;
    found.bytes = contents.bytes;
    found.needed_bytes = contents.needed;
    write_struct(info, found, "info");
  });
}

kvq_status kvq_sequence_recode(kvq_cache* cache, kvq_sequence* sequence, const kvq_policy* policy, kvq_error* error) {
  return guarded(error, [&] {
    require_current(cache, sequence);
    check_recode(*sequence);
    const Storage& to = storage_for(*cache, policy);
    // Pages of a format that stays are sealed where the new policy may not seal them.
    checked(
        *sequence, [&] { recode(*sequence, to); }, Sealing::kAny);
  });
}

kvq_status kvq_sequence_predict_recode(kvq_cache* cache, kvq_sequence* sequence, const kvq_policy* policy,
                                       kvq_recode_info* info, kvq_error* error) {
  return guarded(error, [&] {
    require_current(cache, sequence);
    require_struct(info, sizeof(uint32_t), "info");
    check_recode(*sequence);
    const RecodeNeeds needs = recode_needs(*sequence, storage_for(*cache, policy));
    kvq_recode_info found{};
    found.layers = needs.layers;
    found.pages = needs.pages;
    found.needed_bytes = needs.bytes;
    found.bytes_before = usage(*sequence).total_bytes;
    found.bytes_after = static_cast<uint64_t>(static_cast<int64_t>(found.bytes_before) + needs.growth);
    write_struct(info, found, "info");
  });
}

kvq_status kvq_sequence_describe_layer(const kvq_sequence* sequence, int32_t layer, kvq_layer_info* info,
                                       kvq_error* error) {
  return guarded(error, [&] {
    require(sequence, "sequence");
    write_layer(*sequence->storage, any_layer_of(sequence->cache, layer), info);
  });
}

// States of layers, which the host keeps.

kvq_status kvq_sequence_put_state(kvq_cache* cache, kvq_sequence* sequence, int32_t layer, int32_t tokens,
                                  const void* data, size_t size, kvq_error* error) {
  return guarded(error, [&] {
    require_current(cache, sequence);
    any_layer_of(*cache, layer);
    require_range(tokens, 1, INT32_MAX, "tokens");
    require(data, "data");
    if (size == 0) fail(KVQ_E_ARGUMENT, "size is 0, must be at least 1: kvq_sequence_drop_states drops a state");
    checked(*sequence, [&] { sequence->states.put(layer, tokens, {static_cast<const std::byte*>(data), size}); });
  });
}

kvq_status kvq_sequence_get_state(const kvq_sequence* sequence, int32_t layer, int32_t tokens, void* buffer,
                                  size_t capacity, size_t* size, kvq_error* error) {
  return guarded(error, [&] {
    require(sequence, "sequence");
    any_layer_of(sequence->cache, layer);
    require_range(tokens, 1, INT32_MAX, "tokens");
    require(size, "size");
    const SavedStates::Shared* found = sequence->states.find(layer, tokens);
    if (found == nullptr) {
      fail(KVQ_E_ARGUMENT, "tokens is %d, after which layer %d has no state: the newest before is after %d (0: none)",
           tokens, layer, sequence->states.newest(layer, tokens));
    }
    const Vector<std::byte>& bytes = (*found)->bytes;
    hand_over(bytes.size(), buffer, capacity, *size,
              [&](std::span<std::byte> to) { std::ranges::copy(bytes, to.begin()); });
  });
}

kvq_status kvq_sequence_find_state(const kvq_sequence* sequence, int32_t layer, int32_t most, int32_t* tokens,
                                   kvq_error* error) {
  return guarded(error, [&] {
    require(sequence, "sequence");
    any_layer_of(sequence->cache, layer);
    require_range(most, 0, INT32_MAX, "most");
    require(tokens, "tokens");
    *tokens = sequence->states.newest(layer, most);
  });
}

kvq_status kvq_sequence_find_states(const kvq_sequence* sequence, int32_t most, int32_t* tokens, kvq_error* error) {
  return guarded(error, [&] {
    require(sequence, "sequence");
    require_range(most, 0, INT32_MAX, "most");
    require(tokens, "tokens");
    *tokens = sequence->states.newest_of_all(most);
  });
}

kvq_status kvq_sequence_drop_states(kvq_cache* cache, kvq_sequence* sequence, int32_t begin, int32_t end,
                                    kvq_error* error) {
  return guarded(error, [&] {
    require_current(cache, sequence);
    require_range(begin, 0, INT32_MAX, "begin");
    require_range(end, begin, INT32_MAX, "end");
    sequence->states.drop(begin, end);
  });
}

void kvq_compress_options_init(kvq_compress_options* options, size_t size) {
  init_struct(options, size, kvq_compress_options{});
}

namespace {

/// Tokens that each KV head of each layer of the model holds.
void write_slots(const Sequence& sequence, int32_t* slots) {
  for (const LayerShape& shape : sequence.cache.model_layers()) {
    for (int32_t head = 0; head < shape.kv_heads; ++head) *slots++ = sequence.slots(shape.pages_index, head);
  }
}

}  // namespace

kvq_status kvq_compress(kvq_cache* cache, kvq_sequence* sequence, const kvq_compress_options* options,
                        kvq_error* error) {
  return guarded(error, [&] {
    require_current(cache, sequence);
    const kvq_compress_options chosen = read_optional_struct(options, kvq_compress_options{}, "options");
    if (chosen.budget < 0) fail(KVQ_E_ARGUMENT, "options->budget is %d, must not be negative", chosen.budget);
    const uint64_t before = usage(*sequence).total_bytes;
    checked(*sequence, [&] { compress(*sequence, chosen.budget); });
    if (chosen.kept != nullptr) write_slots(*sequence, chosen.kept);
    const uint64_t after = usage(*sequence).total_bytes;
    if (chosen.bytes_freed != nullptr) *chosen.bytes_freed = before > after ? before - after : 0;
  });
}

kvq_status kvq_sequence_decode(const kvq_cache* cache, const kvq_sequence* sequence, int32_t layer, int32_t kv_head,
                               int32_t begin, int32_t n, float* k, float* v, int32_t* positions, kvq_error* error) {
  return guarded(error, [&] {
    require_current(cache, sequence);
    const LayerShape& shape = layer_of(*cache, layer);
    require_range(kv_head, 0, shape.kv_heads - 1, "kv_head");
    decode(*sequence, {shape.pages_index, kv_head, begin, n}, {k, v, positions});
  });
}
