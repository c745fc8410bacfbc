/* Layers with a sliding window or attention chunks: what they refuse, what they free, and that reserve covers it. */
#include "check.h"
#include "fixture.h"
#include "suites.h"

#include <string.h>

enum { kWindow = 100 };

static kvq_cache* windowed_cache(kvq_context* context, int32_t window, int32_t chunk, const char* policy) {
  kvq_cache_options options = small_cache_options();
  kvq_policy* chosen = load_policy(context, policy);
  kvq_cache* cache = NULL;
  options.sliding_window = window;
  options.attention_chunk = chunk;
  ACCEPTED(kvq_cache_create(context, &options, chosen, &cache, err));
  kvq_policy_destroy(chosen);
  return cache;
}

static int32_t slots_of(const kvq_sequence* sequence, int32_t layer) {
  int32_t slots = -1;
  ACCEPTED(kvq_sequence_slots(sequence, layer, 0, &slots, err));
  return slots;
}

static int32_t room_of(const kvq_sequence* sequence, int32_t layer) {
  int32_t room = -1;
  ACCEPTED(kvq_sequence_room(sequence, layer, &room, err));
  return room;
}

static void windows_of_shapes_are_checked(void) {
  fixture f;
  kvq_cache_options options = small_cache_options();
  kvq_layer_shape shape;
  kvq_layer_info info;
  kvq_cache* cache = NULL;
  kvq_policy* policy;
  fixture_open(&f, NULL, 0, 0);
  options.sliding_window = -1;
  REFUSED(KVQ_E_ARGUMENT, "options->sliding_window is -1", kvq_cache_create(f.context, &options, NULL, &cache, err));
  options.sliding_window = 64;
  options.attention_chunk = 128;
  REFUSED(KVQ_E_ARGUMENT, "options->attention_chunk is 128", kvq_cache_create(f.context, &options, NULL, &cache, err));
  options.attention_chunk = 0;
  kvq_layer_shape_init(&shape, sizeof shape);
  shape.first_layer = 1;
  options.shapes = &shape;
  options.n_shapes = 1;
  shape.sliding_window = -2;
  REFUSED(KVQ_E_ARGUMENT, "shapes[0].sliding_window is -2", kvq_cache_create(f.context, &options, NULL, &cache, err));
  shape.sliding_window = 8;
  shape.attention_chunk = 8;
  REFUSED(KVQ_E_ARGUMENT, "shapes[0].attention_chunk is 8", kvq_cache_create(f.context, &options, NULL, &cache, err));

  /* Layers that read others' pages see no further than these are kept. */
  shape.pages_of_layer = 0;
  shape.attention_chunk = 0;
  shape.sliding_window = 65;
  REFUSED(KVQ_E_ARGUMENT, "shapes[0].sliding_window is 65", kvq_cache_create(f.context, &options, NULL, &cache, err));
  ALSO_MENTIONS("window of 64");
  shape.sliding_window = -1;
  REFUSED(KVQ_E_ARGUMENT, "shapes[0].sliding_window is -1", kvq_cache_create(f.context, &options, NULL, &cache, err));
  shape.sliding_window = 63;
  ACCEPTED(kvq_cache_create(f.context, &options, NULL, &cache, err));
  memset(&info, 0, sizeof info);
  info.struct_size = sizeof info;
  ACCEPTED(kvq_cache_describe_layer(cache, 1, &info, err));
  CHECK(info.sliding_window == 63 && info.attention_chunk == 0);
  kvq_cache_destroy(cache);

  shape.pages_of_layer = -1;
  shape.sliding_window = 0;
  shape.attention_chunk = 256;
  policy = load_policy(f.context, "{version: 1, keys: int4, values: int4, window: 32}");
  cache = NULL;
  REFUSED(KVQ_E_UNSUPPORTED, "layer 1, whose attention_chunk is 256",
          kvq_cache_create(f.context, &options, policy, &cache, err));
  shape.attention_chunk = 0;
  shape.sliding_window = -1;
  ACCEPTED(kvq_cache_create(f.context, &options, policy, &cache, err));
  ACCEPTED(kvq_cache_describe_layer(cache, 0, &info, err));
  CHECK(info.sliding_window == 32);
  ACCEPTED(kvq_cache_describe_layer(cache, 1, &info, err));
  CHECK(info.sliding_window == 32 && info.attention_chunk == 0);
  kvq_cache_destroy(cache);
  kvq_policy_destroy(policy);
  policy = load_policy(f.context, "{version: 1, keys: int4, values: int4, eviction: {method: h2o, budget: 64}}");
  cache = NULL;
  REFUSED(KVQ_E_UNSUPPORTED, "layer 0 has a window", kvq_cache_create(f.context, &options, policy, &cache, err));
  kvq_policy_destroy(policy);
  fixture_close(&f);
}

static void policies_name_windows(void) {
  fixture f;
  kvq_layer_info info;
  kvq_cache* cache = NULL;
  kvq_cache_options options = small_cache_options();
  kvq_policy* policy;
  kvq_policy* longer;
  kvq_sequence* sequence = NULL;
  char text[256];
  size_t size = 0;
  fixture_open(&f, NULL, 0, 0);
  policy = load_policy(f.context,
                       "version: 1\nkeys: int4\nvalues: int4\nwindow: 64\nlayers:\n  - {range: [1, 1], window: 0}\n");
  ACCEPTED(kvq_policy_save(policy, text, sizeof text, &size, err));
  CHECK(size < sizeof text);
  text[size] = '\0';
  CHECK(strstr(text, "\nwindow: 64\n") != NULL && strstr(text, "{range: [1, 1], window: 0}") != NULL);
  ACCEPTED(kvq_cache_create(f.context, &options, policy, &cache, err));
  memset(&info, 0, sizeof info);
  info.struct_size = sizeof info;
  ACCEPTED(kvq_cache_describe_layer(cache, 0, &info, err));
  CHECK(info.sliding_window == 64);
  ACCEPTED(kvq_cache_describe_layer(cache, 1, &info, err));
  CHECK(info.sliding_window == 0);
  sequence = new_sequence(cache);
  longer = load_policy(f.context, "{version: 1, keys: int8, values: int8, window: 96}");
  REFUSED(KVQ_E_ARGUMENT, "policy has a window of 96 for layer 0, and the cache one of 64",
          kvq_sequence_recode(cache, sequence, longer, err));
  kvq_sequence_destroy(sequence);
  kvq_policy_destroy(longer);
  kvq_policy_destroy(policy);
  kvq_cache_destroy(cache);
  fixture_close(&f);
}

static void queries_see_no_further(void) {
  fixture f;
  float q[kQHeads * kHeadDim];
  float out[kQHeads * kHeadDim];
  kvq_attend_batch batch;
  kvq_cache* cache;
  kvq_sequence* sequence;
  const kvq_sequence* only;
  int32_t position = 650;
  fixture_open(&f, NULL, 0, 0);
  cache = windowed_cache(f.context, kWindow, 0, "int4");
  only = sequence = new_sequence(cache);
  grow(cache, sequence, 600);
  grow(cache, sequence, 100);
  fill_tensor(q, kQHeads * kHeadDim, 3);
  kvq_attend_batch_init(&batch, sizeof batch);
  batch.n_sequences = 1;
  batch.sequences = &only;
  batch.q = q;
  batch.output = out;
  batch.sliding_window = kWindow + 1;
  REFUSED(KVQ_E_ARGUMENT, "batch->sliding_window is 101", kvq_attend(cache, 0, &batch, err));
  ALSO_MENTIONS("window of 100");
  batch.sliding_window = 50;
  ACCEPTED(kvq_attend(cache, 0, &batch, err));
  batch.sliding_window = 0;
  batch.query_positions = &position;
  ACCEPTED(kvq_attend(cache, 0, &batch, err));
  position = 500;
  REFUSED(KVQ_E_STATE, "query 0 is at position 500", kvq_attend(cache, 0, &batch, err));
  batch.sliding_window = 1;
  position = 200;
  REFUSED(KVQ_E_STATE, "query 0 is at position 200", kvq_attend(cache, 0, &batch, err));
  kvq_sequence_destroy(sequence);
  kvq_cache_destroy(cache);
  cache = windowed_cache(f.context, 0, 64, "int4");
  only = sequence = new_sequence(cache);
  grow(cache, sequence, 600);
  batch.query_positions = NULL;
  REFUSED(KVQ_E_ARGUMENT, "must be 0: layer 0 has chunks of 64", kvq_attend(cache, 0, &batch, err));
  kvq_sequence_destroy(sequence);
  kvq_cache_destroy(cache);
  fixture_close(&f);
}

static void cuts_keep_the_window_whole(void) {
  fixture f;
  kvq_cache* cache;
  kvq_sequence* sequence;
  fixture_open(&f, NULL, 0, 0);
  cache = windowed_cache(f.context, 64, 0, "{version: 1, keys: int4, values: int4, sink: 1}");
  sequence = new_sequence(cache);
  grow(cache, sequence, 500);
  CHECK(slots_of(sequence, 0) == 500);
  grow(cache, sequence, 20); /* sees from 437 on: the pages up to 415 go, but for the first */
  CHECK(slots_of(sequence, 0) == 520 - 384 && length_of(sequence, 0) == 520);
  REFUSED(KVQ_E_STATE, "length is 448", kvq_sequence_truncate(cache, sequence, 448, err));
  ALSO_MENTIONS("freed tokens up to position 415");
  REFUSED(KVQ_E_STATE, "window of 64", kvq_sequence_truncate(cache, sequence, 32, err));
  ACCEPTED(kvq_sequence_truncate(cache, sequence, 480, err));
  CHECK(slots_of(sequence, 0) == 480 - 384);
  ACCEPTED(append_tokens(cache, sequence, 0, 40));
  CHECK(length_of(sequence, 0) == 520);
  ACCEPTED(kvq_sequence_truncate(cache, sequence, 0, err));
  CHECK(slots_of(sequence, 0) == 0);
  grow(cache, sequence, 100);
  CHECK(slots_of(sequence, 1) == 100);
  kvq_sequence_destroy(sequence);
  kvq_cache_destroy(cache);
  fixture_close(&f);
}

/* A reserve of a whole window needs no more, however many tokens come. */
static void reserves_last_for_ever(const char* policy) {
  fixture f;
  kvq_cache* cache;
  kvq_sequence* sequence;
  kvq_usage before;
  size_t allocations;
  int32_t i;
  float out[kQHeads * kHeadDim];
  fixture_open(&f, NULL, 0, 0);
  cache = windowed_cache(f.context, kWindow, 0, policy);
  sequence = new_sequence(cache);
  grow(cache, sequence, 40);
  ACCEPTED(kvq_sequence_reserve(cache, sequence, 70, err));
  CHECK(room_of(sequence, 0) >= 70 && room_of(sequence, 0) < 200);
  ACCEPTED(kvq_sequence_reserve(cache, sequence, 100000, err));
  CHECK(room_of(sequence, 1) > 1000000);
  before = usage_of(cache, sequence);
  allocations = f.memory.n_allocations;
  for (i = 0; i < 500; ++i) {
    grow(cache, sequence, 1 + i % 32);
    ACCEPTED(attend_last(cache, sequence, out));
  }
  CHECK(f.memory.n_allocations == allocations);
  CHECK(usage_of(cache, sequence).total_bytes <= before.total_bytes);
  CHECK(length_of(sequence, 1) == 40 + 500 / 32 * 528 + 210);
  CHECK(slots_of(sequence, 1) <= kWindow + 256);
  kvq_sequence_destroy(sequence);
  kvq_cache_destroy(cache);
  fixture_close(&f);
}

/* Prediction equals what a sequence takes after tokens that came one by one. */
static void predictions_count_windows(const char* policy) {
  static const int32_t kTokens[] = {1, 90, 131, 700};
  fixture f;
  size_t i;
  fixture_open(&f, NULL, 0, 0);
  for (i = 0; i < sizeof kTokens / sizeof kTokens[0]; ++i) {
    kvq_cache* cache = windowed_cache(f.context, kWindow, 0, policy);
    kvq_sequence* sequence;
    kvq_usage predicted;
    kvq_usage found;
    float out[kQHeads * kHeadDim];
    int32_t n;
    memset(&predicted, 0, sizeof predicted);
    predicted.struct_size = sizeof predicted;
    ACCEPTED(kvq_cache_predict_usage(cache, 1, kTokens[i], 1, &predicted, err));
    sequence = new_sequence(cache);
    ACCEPTED(kvq_sequence_reserve(cache, sequence, kTokens[i], err));
    for (n = 0; n < kTokens[i]; ++n) grow(cache, sequence, 1);
    ACCEPTED(attend_last(cache, sequence, out));
    found = usage_of(cache, NULL);
    CHECK(found.scalars == predicted.scalars && found.total_bytes == predicted.total_bytes);
    CHECK(found.sealed_pages == predicted.sealed_pages && found.fp16_pages == predicted.fp16_pages);
    CHECK(found.metadata_bytes == predicted.metadata_bytes && found.workspace_bytes == predicted.workspace_bytes);
    kvq_sequence_destroy(sequence);
    kvq_cache_destroy(cache);
  }
  fixture_close(&f);
}

/* A cache limited to its prediction takes all chunks, far beyond the window. */
static void limited_caches_take_chunks(const char* policy, int32_t chunk) {
  enum { kTokens = 4096 };
  fixture f;
  kvq_cache_options options = small_cache_options();
  kvq_policy* chosen;
  kvq_cache* cache = NULL;
  kvq_sequence* sequence;
  kvq_usage predicted;
  int32_t at;
  fixture_open(&f, NULL, 0, 0);
  chosen = load_policy(f.context, policy);
  options.sliding_window = kWindow;
  ACCEPTED(kvq_cache_create(f.context, &options, chosen, &cache, err));
  memset(&predicted, 0, sizeof predicted);
  predicted.struct_size = sizeof predicted;
  ACCEPTED(kvq_cache_predict_usage(cache, 1, kTokens, chunk, &predicted, err));
  kvq_cache_destroy(cache);
  options.max_bytes = predicted.total_bytes;
  ACCEPTED(kvq_cache_create(f.context, &options, chosen, &cache, err));
  sequence = new_sequence(cache);
  ACCEPTED(kvq_sequence_reserve(cache, sequence, kTokens, err));
  for (at = 0; at < kTokens; at += chunk) grow(cache, sequence, chunk);
  CHECK(length_of(sequence, 1) == kTokens);
  kvq_sequence_destroy(sequence);
  kvq_cache_destroy(cache);
  kvq_policy_destroy(chosen);
  fixture_close(&f);
}

/* Five layers of six see 1024 tokens, as in Gemma 3. */
static void local_layers_take_a_fifth(void) {
  enum { kTokens = 131072, kChunk = 2048 };
  static float tokens[kChunk * kTokenScalars];
  fixture f;
  kvq_layer_shape whole;
  kvq_cache_options options = small_cache_options();
  kvq_usage found[2];
  kvq_usage predicted;
  int windowed;
  fixture_open(&f, NULL, 0, 0);
  fill_tensor(tokens, sizeof tokens / sizeof tokens[0], 9);
  kvq_layer_shape_init(&whole, sizeof whole);
  whole.first_layer = 5;
  whole.sliding_window = -1;
  options.n_layers = 6;
  options.shapes = &whole;
  options.n_shapes = 1;
  for (windowed = 0; windowed < 2; ++windowed) {
    kvq_policy* policy = load_policy(f.context, "gs4");
    kvq_cache* cache = NULL;
    kvq_sequence* sequence;
    int32_t at;
    int32_t layer;
    options.sliding_window = windowed != 0 ? 1024 : 0;
    ACCEPTED(kvq_cache_create(f.context, &options, policy, &cache, err));
    sequence = new_sequence(cache);
    for (at = 0; at < kTokens; at += kChunk) {
      for (layer = 0; layer < options.n_layers; ++layer) {
        ACCEPTED(kvq_append(cache, sequence, layer, kChunk, tokens, tokens, KVQ_F32, NULL, err));
      }
    }
    for (layer = 0; layer < options.n_layers; ++layer) {
      ACCEPTED(kvq_append(cache, sequence, layer, 1, tokens, tokens, KVQ_F32, NULL, err));
    }
    found[windowed] = usage_of(cache, sequence);
    memset(&predicted, 0, sizeof predicted);
    predicted.struct_size = sizeof predicted;
    ACCEPTED(kvq_cache_predict_usage(cache, 1, kTokens, 1, &predicted, err));
    CHECK(found[windowed].sealed_bytes < predicted.sealed_bytes * 11 / 10);
    kvq_sequence_destroy(sequence);
    kvq_cache_destroy(cache);
    kvq_policy_destroy(policy);
  }
  CHECK(found[1].total_bytes < found[0].total_bytes / 5);
  fixture_close(&f);
}

static void snapshots_know_their_windows(void) {
  fixture f;
  kvq_cache* narrow;
  kvq_cache* wide;
  kvq_cache* chunked;
  kvq_sequence* sequence;
  kvq_sequence* loaded = NULL;
  blob saved;
  blob again;
  fixture_open(&f, "int4", 0, 0);
  narrow = windowed_cache(f.context, 64, 0, "int4");
  wide = windowed_cache(f.context, 128, 0, "int4");
  chunked = windowed_cache(f.context, 0, 64, "int4");
  sequence = new_sequence(wide);
  grow(wide, sequence, 300);
  grow(wide, sequence, 10);
  saved = save_sequence(wide, sequence);
  ACCEPTED(kvq_sequence_load(wide, saved.data, saved.size, &loaded, err));
  again = save_sequence(wide, loaded);
  CHECK(same_blobs(&saved, &again));
  blob_free(&again);
  kvq_sequence_destroy(loaded);
  ACCEPTED(kvq_sequence_load(narrow, saved.data, saved.size, &loaded, err));
  CHECK(slots_of(loaded, 0) == slots_of(sequence, 0));
  grow(narrow, loaded, 1);
  CHECK(slots_of(loaded, 0) < slots_of(sequence, 0));
  kvq_sequence_destroy(loaded);
  loaded = NULL;
  REFUSED(KVQ_E_MISMATCH, "window of 128 in layer 0, this cache sees 0",
          kvq_sequence_load(f.cache, saved.data, saved.size, &loaded, err));
  REFUSED(KVQ_E_MISMATCH, "a chunk of 64", kvq_sequence_load(chunked, saved.data, saved.size, &loaded, err));
  kvq_sequence_destroy(sequence);
  blob_free(&saved);

  /* What was kept whole serves every window. */
  sequence = new_sequence(f.cache);
  grow(f.cache, sequence, 300);
  saved = save_sequence(f.cache, sequence);
  ACCEPTED(kvq_sequence_load(narrow, saved.data, saved.size, &loaded, err));
  CHECK(slots_of(loaded, 0) == 300);
  kvq_sequence_destroy(loaded);
  ACCEPTED(kvq_sequence_load(chunked, saved.data, saved.size, &loaded, err));
  kvq_sequence_destroy(loaded);
  kvq_sequence_destroy(sequence);
  blob_free(&saved);
  kvq_cache_destroy(chunked);
  kvq_cache_destroy(wide);
  kvq_cache_destroy(narrow);
  fixture_close(&f);
}

void test_windows(void) {
  windows_of_shapes_are_checked();
  policies_name_windows();
  queries_see_no_further();
  cuts_keep_the_window_whole();
  reserves_last_for_ever("int4");
  reserves_last_for_ever("fp16");
  reserves_last_for_ever("{version: 1, keys: gs2, values: int8, sink: 2, recent: 3}");
  predictions_count_windows("int4");
  predictions_count_windows("fp16");
  predictions_count_windows("{version: 1, keys: gs2, values: int8, sink: 2, recent: 3}");
  limited_caches_take_chunks("int4", 512);
  limited_caches_take_chunks("fp16", 128);
  limited_caches_take_chunks("{version: 1, keys: gs2, values: int8, sink: 2, recent: 3}", 1024);
  local_layers_take_a_fifth();
  snapshots_know_their_windows();
}
