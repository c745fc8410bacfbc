/* Sequences of several policies in a cache: kvq_sequence_recode, and loading with another policy. */
#include "check.h"
#include "fixture.h"
#include "suites.h"

#include <math.h>
#include <string.h>

enum { kTokens = 400, kMostAllocations = 100000 };

static const char* const kPolicies[] = {
    "fp16",          "int8", "gs4", "gs2",
    "int4+hadamard", "int2", "gt2", "version: 1\nkeys: gs4\nvalues: gs2\nsink: 2\nrecent: 3\n"};
enum { kNPolicies = sizeof kPolicies / sizeof kPolicies[0] };

/* The decoded slots of one head. */
static void decode_all(kvq_cache* cache, const kvq_sequence* sequence, int32_t n, float* k, float* v) {
  int32_t layer;
  int32_t head;
  for (layer = 0; layer < kLayers; ++layer) {
    for (head = 0; head < kKvHeads; ++head) {
      const size_t at = (size_t)(layer * kKvHeads + head) * (size_t)n * kHeadDim;
      ACCEPTED(kvq_sequence_decode(cache, sequence, layer, head, 0, n, k + at, v + at, NULL, err));
    }
  }
}

static double distance(const float* a, const float* b, size_t n) {
  double sum = 0.0;
  double size = 0.0;
  size_t i;
  for (i = 0; i < n; ++i) {
    sum += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
    size += (double)b[i] * b[i];
  }
  return sqrt(sum / size);
}

static kvq_recode_info predicted(kvq_cache* cache, kvq_sequence* sequence, const kvq_policy* policy) {
  kvq_recode_info info;
  memset(&info, 0, sizeof info);
  info.struct_size = sizeof info;
  ACCEPTED(kvq_sequence_predict_recode(cache, sequence, policy, &info, err));
  return info;
}

/* Recode between all pairs of policies: the prediction holds, usage is that of a sequence that always had the policy,
 * numbers are as near as both formats allow, and what follows is stored alike. */
static void from_each_to_each(void) {
  enum { kScalars = kLayers * kKvHeads * kTokens * kHeadDim };
  static float k[2][kScalars];
  static float v[2][kScalars];
  size_t from;
  size_t to;
  for (from = 0; from < kNPolicies; ++from) {
    for (to = 0; to < kNPolicies; ++to) {
      fixture f;
      kvq_policy* policy;
      kvq_sequence* sequence;
      kvq_sequence* twin;
      kvq_recode_info info;
      kvq_layer_info layer;
      kvq_layer_info layer_of_twin;
      float out[2][kQHeads * kHeadDim];
      fixture_open(&f, kPolicies[from], 0, 0);
      policy = load_policy(f.context, kPolicies[to]);
      sequence = new_sequence(f.cache);
      grow(f.cache, sequence, kTokens - 100);
      info = predicted(f.cache, sequence, policy);
      CHECK(info.bytes_before == usage_of(f.cache, sequence).total_bytes);
      ACCEPTED(kvq_sequence_recode(f.cache, sequence, policy, err));
      CHECK(usage_of(f.cache, sequence).total_bytes == info.bytes_after);
      CHECK((info.pages > 0) == (from != to));
      grow(f.cache, sequence, 100);

      twin = new_sequence(f.cache);
      ACCEPTED(kvq_sequence_recode(f.cache, twin, policy, err));
      grow(f.cache, twin, kTokens);
      CHECK(usage_of(f.cache, sequence).sealed_pages == usage_of(f.cache, twin).sealed_pages);
      CHECK(usage_of(f.cache, sequence).fp16_pages == usage_of(f.cache, twin).fp16_pages);
      memset(&layer, 0, sizeof layer);
      memset(&layer_of_twin, 0, sizeof layer_of_twin);
      layer.struct_size = layer_of_twin.struct_size = sizeof layer;
      ACCEPTED(kvq_sequence_describe_layer(sequence, 1, &layer, err));
      ACCEPTED(kvq_sequence_describe_layer(twin, 1, &layer_of_twin, err));
      CHECK(strcmp(layer.formats, layer_of_twin.formats) == 0);
      decode_all(f.cache, sequence, kTokens, k[0], v[0]);
      decode_all(f.cache, twin, kTokens, k[1], v[1]);
      if (from == 0) { /* sealing late is sealing all the same */
        CHECK(memcmp(k[0], k[1], sizeof k[0]) == 0 && memcmp(v[0], v[1], sizeof v[0]) == 0);
      }
      CHECK(distance(k[0], k[1], kScalars) < 0.7 && distance(v[0], v[1], kScalars) < 0.7);
      ACCEPTED(attend_last(f.cache, sequence, out[0]));
      ACCEPTED(attend_last(f.cache, twin, out[1]));
      CHECK(distance(out[0], out[1], kQHeads * kHeadDim) < 1.0);
      kvq_policy_destroy(policy);
      kvq_sequence_destroy(twin);
      kvq_sequence_destroy(sequence);
      fixture_close(&f);
    }
  }
}

/* Pages that a policy newly seals lie in a run of their own, before and behind those that stay with a fork. */
static void runs_beside_those_of_a_fork_count_once(void) {
  fixture f;
  kvq_policy* policy;
  kvq_sequence* sequence;
  kvq_sequence* fork = NULL;
  kvq_recode_info info;
  fixture_open(&f, "version: 1\nkeys: gs4\nvalues: gs4\nsink: 2\nrecent: 3\ncalibrate: none\n", 0, 0);
  policy = load_policy(f.context, "version: 1\nkeys: gs4\nvalues: gs4\nsink: 0\ncalibrate: none\n");
  sequence = new_sequence(f.cache);
  grow(f.cache, sequence, 500);
  ACCEPTED(kvq_sequence_fork(f.cache, sequence, &fork, err));
  info = predicted(f.cache, sequence, policy);
  ACCEPTED(kvq_sequence_recode(f.cache, sequence, policy, err));
  CHECK(usage_of(f.cache, sequence).total_bytes == info.bytes_after);
  kvq_policy_destroy(policy);
  kvq_sequence_destroy(fork);
  kvq_sequence_destroy(sequence);
  fixture_close(&f);
}

/* A fork keeps its pages, whichever of the two is recoded. */
static void forks_keep_theirs(void) {
  fixture f;
  kvq_policy* policy;
  kvq_sequence* sequence;
  kvq_sequence* fork = NULL;
  kvq_sequence* second = NULL;
  kvq_recode_info shared;
  kvq_recode_info own;
  saved_state before;
  fixture_open(&f, "gs4", 0, 0);
  policy = load_policy(f.context, "gs2");
  sequence = new_sequence(f.cache);
  grow(f.cache, sequence, 300);
  own = predicted(f.cache, sequence, policy);
  ACCEPTED(kvq_sequence_fork(f.cache, sequence, &fork, err));
  grow(f.cache, fork, 70);
  before = take_state(f.cache, fork);
  shared = predicted(f.cache, sequence, policy);
  CHECK(shared.needed_bytes > own.needed_bytes && shared.pages == own.pages && shared.layers == kLayers);
  ACCEPTED(kvq_sequence_recode(f.cache, sequence, policy, err));
  CHECK(usage_of(f.cache, sequence).total_bytes == shared.bytes_after);
  CHECK(memcmp(before.lengths, (int32_t[]){370, 370}, sizeof before.lengths) == 0);
  {
    blob after = save_sequence(f.cache, fork);
    CHECK(same_blobs(&after, &before.snapshot));
    blob_free(&after);
  }
  state_free(&before);
  /* Forks have their parent's policy. */
  ACCEPTED(kvq_sequence_fork(f.cache, sequence, &second, err));
  grow(f.cache, second, 64);
  CHECK(predicted(f.cache, second, policy).pages == 0);
  CHECK(predicted(f.cache, second, NULL).pages > 0);
  kvq_policy_destroy(policy);
  kvq_sequence_destroy(second);
  kvq_sequence_destroy(fork);
  kvq_sequence_destroy(sequence);
  fixture_close(&f);
}

/* Every allocation fails once: then nothing has changed, or, if a smaller block for pages that were written anew was
 * refused, all pages have. */
static void failing_allocations(const char* from, const char* to) {
  kvq_status status = KVQ_E_MEMORY;
  fixture f;
  kvq_policy* policy;
  kvq_sequence* parent;
  blob expected;
  long n;
  int refused = 0;
  int in_place = 0;
  uint64_t exact;
  fixture_open(&f, from, 0, 0);
  policy = load_policy(f.context, to);
  parent = new_sequence(f.cache);
  grow(f.cache, parent, 300);
  {
    kvq_sequence* fork = NULL;
    ACCEPTED(kvq_sequence_fork(f.cache, parent, &fork, err));
    ACCEPTED(kvq_sequence_recode(f.cache, fork, policy, err));
    expected = save_sequence(f.cache, fork);
    kvq_sequence_destroy(fork);
  }
  exact = predicted(f.cache, parent, policy).bytes_after;
  for (n = 1; n < kMostAllocations; ++n) {
    kvq_sequence* sequence = new_sequence(f.cache);
    saved_state before;
    size_t live;
    grow(f.cache, sequence, 300);
    before = take_state(f.cache, sequence);
    live = f.memory.live_bytes;
    f.memory.fail_at = n;
    status = kvq_sequence_recode(f.cache, sequence, policy, err);
    if (f.memory.fail_at > 0) { /* it came to its end before */
      f.memory.fail_at = 0;
      CHECK(status == KVQ_OK);
      state_free(&before);
      kvq_sequence_destroy(sequence);
      break;
    }
    if (status == KVQ_OK) {
      blob after = save_sequence(f.cache, sequence);
      CHECK(same_blobs(&after, &expected));
      CHECK(usage_of(f.cache, sequence).total_bytes > exact);
      grow(f.cache, sequence, 100);
      blob_free(&after);
      ++in_place;
    } else {
      CHECK(status == KVQ_E_MEMORY);
      CHECK(f.memory.live_bytes == live);
      CHECK(state_is(f.cache, sequence, &before));
      ++refused;
    }
    state_free(&before);
    kvq_sequence_destroy(sequence);
  }
  CHECK(n < kMostAllocations && refused > 5 && in_place > 2);
  blob_free(&expected);
  kvq_policy_destroy(policy);
  kvq_sequence_destroy(parent);
  fixture_close(&f);
}

/* With the predicted bytes free, and no more, recoding succeeds and leaves no block larger than needed. */
static void at_the_limit(const char* from, const char* to) {
  kvq_recode_info info;
  uint64_t bytes;
  int pass;
  for (pass = 0; pass < 2; ++pass) {
    fixture f;
    kvq_policy* policy;
    kvq_sequence* sequence;
    fixture_open(&f, from, 0, pass == 0 ? 0 : bytes + info.needed_bytes);
    policy = load_policy(f.context, to);
    sequence = new_sequence(f.cache);
    grow(f.cache, sequence, 8000);
    info = predicted(f.cache, sequence, policy);
    bytes = usage_of(f.cache, NULL).total_bytes;
    CHECK(info.needed_bytes < info.bytes_before); /* far less with larger heads */
    if (pass == 1) {
      ACCEPTED(kvq_sequence_recode(f.cache, sequence, policy, err));
      CHECK(usage_of(f.cache, sequence).total_bytes == info.bytes_after);
    }
    kvq_policy_destroy(policy);
    kvq_sequence_destroy(sequence);
    fixture_close(&f);
  }
}

static void refused(void) {
  fixture f;
  fixture other;
  kvq_policy* policy;
  kvq_policy* evicting;
  kvq_policy* layers;
  kvq_sequence* sequence;
  kvq_recode_info info;
  saved_state before;
  fixture_open(&f, "gs4", 0, 0);
  fixture_open(&other, "gs4", 0, 0);
  policy = load_policy(f.context, "gs2");
  evicting = load_policy(f.context, "gs2+snapkv:64");
  layers = load_policy(f.context, "version: 1\nkeys: gs2\nvalues: gs2\nlayers:\n  - {range: [1, 7], keys: gs4}\n");
  sequence = new_sequence(f.cache);
  grow(f.cache, sequence, 100);
  before = take_state(f.cache, sequence);
  REFUSED(KVQ_E_ARGUMENT, "cache", kvq_sequence_recode(NULL, sequence, policy, err));
  REFUSED(KVQ_E_ARGUMENT, "sequence", kvq_sequence_recode(f.cache, NULL, policy, err));
  REFUSED(KVQ_E_ARGUMENT, "another cache", kvq_sequence_recode(other.cache, sequence, policy, err));
  REFUSED(KVQ_E_ARGUMENT, "evicts otherwise", kvq_sequence_recode(f.cache, sequence, evicting, err));
  REFUSED(KVQ_E_ARGUMENT, "[1, 7]", kvq_sequence_recode(f.cache, sequence, layers, err));
  memset(&info, 0, sizeof info);
  REFUSED(KVQ_E_ARGUMENT, "struct_size", kvq_sequence_predict_recode(f.cache, sequence, policy, &info, err));
  REFUSED(KVQ_E_ARGUMENT, "info", kvq_sequence_predict_recode(f.cache, sequence, policy, NULL, err));
  CHECK(state_is(f.cache, sequence, &before));
  ACCEPTED(kvq_sequence_reserve(f.cache, sequence, 10, err));
  REFUSED(KVQ_E_STATE, "preallocated", kvq_sequence_recode(f.cache, sequence, policy, err));
  state_free(&before);
  kvq_policy_destroy(policy);
  kvq_policy_destroy(evicting);
  kvq_policy_destroy(layers);
  kvq_sequence_destroy(sequence);
  fixture_close(&other);
  fixture_close(&f);
}

/* What a snapshot says before it is loaded. */
static kvq_snapshot_info described(kvq_cache* cache, const blob* snapshot, const kvq_load_options* options) {
  kvq_snapshot_info info;
  memset(&info, 0, sizeof info);
  info.struct_size = sizeof info;
  ACCEPTED(kvq_snapshot_describe(cache, snapshot->data, snapshot->size, options, &info, err));
  return info;
}

static blob save_all(kvq_cache* cache, const kvq_sequence* const* sequences, int32_t n) {
  blob snapshot;
  size_t size = 0;
  ACCEPTED(kvq_cache_save(cache, sequences, n, NULL, 0, &snapshot.size, err));
  snapshot.data = (unsigned char*)malloc(snapshot.size);
  ACCEPTED(kvq_cache_save(cache, sequences, n, snapshot.data, snapshot.size, &size, err));
  CHECK(size == snapshot.size);
  return snapshot;
}

/* A snapshot in one policy is loaded with another: as if it had been recoded, within what was predicted. */
static void loaded_with_another(const char* from, const char* to) {
  fixture f;
  kvq_policy* policy;
  kvq_sequence* sequence;
  kvq_sequence* loaded = NULL;
  kvq_load_options options;
  kvq_snapshot_info info;
  blob saved;
  blob expected;
  blob result;
  uint64_t needed;
  fixture_open(&f, from, 0, 0);
  policy = load_policy(f.context, to);
  sequence = new_sequence(f.cache);
  grow(f.cache, sequence, 3000);
  saved = save_sequence(f.cache, sequence);
  ACCEPTED(kvq_sequence_recode(f.cache, sequence, policy, err));
  expected = save_sequence(f.cache, sequence);
  kvq_policy_destroy(policy);
  kvq_sequence_destroy(sequence);
  fixture_close(&f);

  fixture_open(&f, to, 0, 0);
  kvq_load_options_init(&options, sizeof options);
  if (strcmp(from, "fp16") != 0) { /* FP16 pages fit any policy */
    REFUSED(KVQ_E_MISMATCH, "recode", kvq_sequence_load(f.cache, saved.data, saved.size, &loaded, err));
    ALSO_MENTIONS(from);
    REFUSED(KVQ_E_MISMATCH, "recode", kvq_cache_load(f.cache, saved.data, saved.size, &loaded, 1, &options, err));
  }
  options.recode = 2;
  REFUSED(KVQ_E_ARGUMENT, "recode", kvq_cache_load(f.cache, saved.data, saved.size, &loaded, 1, &options, err));
  options.recode = 1;
  info = described(f.cache, &saved, &options);
  CHECK(info.n_sequences == 1 && info.tokens == 3000 && info.trained == 0 && info.pages == 94 * kLayers * kKvHeads);
  CHECK(info.recoded_pages > 85 * kLayers * kKvHeads);
  needed = usage_of(f.cache, NULL).total_bytes + info.needed_bytes;
  ACCEPTED(kvq_cache_load(f.cache, saved.data, saved.size, &loaded, 1, &options, err));
  CHECK(usage_of(f.cache, loaded).total_bytes <= info.bytes);
  CHECK(usage_of(f.cache, loaded).total_bytes * 8 > info.bytes * 7);
  result = save_sequence(f.cache, loaded);
  CHECK(same_blobs(&result, &expected));
  blob_free(&result);
  grow(f.cache, loaded, 100);
  kvq_sequence_destroy(loaded);
  loaded = NULL;
  /* Failing allocations leave nothing, or cost blocks of the old size only. */
  {
    const size_t live = f.memory.live_bytes;
    kvq_status status;
    long n;
    for (n = 1; n < kMostAllocations; n += 7) {
      f.memory.fail_at = n;
      status = kvq_cache_load(f.cache, saved.data, saved.size, &loaded, 1, &options, err);
      if (f.memory.fail_at > 0) break;
      CHECK(status == KVQ_OK || (status == KVQ_E_MEMORY && f.memory.live_bytes == live));
      if (status == KVQ_OK) {
        result = save_sequence(f.cache, loaded);
        CHECK(same_blobs(&result, &expected));
        blob_free(&result);
        kvq_sequence_destroy(loaded);
      }
    }
    f.memory.fail_at = 0;
    kvq_sequence_destroy(loaded);
  }
  fixture_close(&f);

  fixture_open(&f, to, 0, needed);
  loaded = NULL;
  ACCEPTED(kvq_cache_load(f.cache, saved.data, saved.size, &loaded, 1, &options, err));
  kvq_sequence_destroy(loaded);
  fixture_close(&f);
  blob_free(&saved);
  blob_free(&expected);
}

/* A conversation and its forks in one snapshot: shared pages once, in the file and once loaded. */
static void forks_in_one_snapshot(const char* policy_text, const char* other_text) {
  fixture f;
  kvq_sequence* saved[4] = {NULL, NULL, NULL, NULL};
  kvq_sequence* loaded[4];
  blob alone[4];
  blob together;
  blob again;
  kvq_load_options options;
  kvq_usage before;
  kvq_usage after;
  size_t sum = 0;
  int i;
  fixture_open(&f, policy_text, 0, 0);
  saved[0] = new_sequence(f.cache);
  grow(f.cache, saved[0], 330);
  for (i = 1; i < 4; ++i) ACCEPTED(kvq_sequence_fork(f.cache, saved[i / 2], &saved[i], err));
  grow(f.cache, saved[0], 40);
  grow(f.cache, saved[1], 70);
  ACCEPTED(kvq_sequence_truncate(f.cache, saved[2], 320, err));
  for (i = 0; i < 4; ++i) {
    alone[i] = save_sequence(f.cache, saved[i]);
    sum += alone[i].size;
  }
  together = save_all(f.cache, (const kvq_sequence* const*)saved, 4);
  CHECK(together.size < sum / 2);
  before = usage_of(f.cache, NULL);
  REFUSED(KVQ_E_MISMATCH, "4 sequences", kvq_sequence_load(f.cache, together.data, together.size, loaded, err));
  REFUSED(KVQ_E_ARGUMENT, "n_sequences", kvq_cache_load(f.cache, together.data, together.size, loaded, 3, NULL, err));
  kvq_load_options_init(&options, sizeof options);
  CHECK(described(f.cache, &together, NULL).n_sequences == 4);
  for (i = 0; i < 4; ++i) kvq_sequence_destroy(saved[i]);
  {
    const size_t live = f.memory.live_bytes;
    kvq_status status = KVQ_E_MEMORY;
    long n;
    for (n = 1; n < kMostAllocations && status != KVQ_OK; ++n) {
      f.memory.fail_at = n;
      status = kvq_cache_load(f.cache, together.data, together.size, loaded, 4, NULL, err);
      CHECK(status == KVQ_OK || (status == KVQ_E_MEMORY && f.memory.live_bytes == live));
    }
    f.memory.fail_at = 0;
    CHECK(status == KVQ_OK);
  }
  after = usage_of(f.cache, NULL);
  CHECK(after.shared_pages == before.shared_pages);
  CHECK(after.sealed_pages == before.sealed_pages && after.fp16_pages == before.fp16_pages);
  for (i = 0; i < 4; ++i) {
    blob one = save_sequence(f.cache, loaded[i]);
    CHECK(same_blobs(&one, &alone[i]));
    blob_free(&one);
  }
  again = save_all(f.cache, (const kvq_sequence* const*)loaded, 4);
  CHECK(same_blobs(&again, &together));
  blob_free(&again);
  for (i = 0; i < 4; ++i) {
    grow(f.cache, loaded[i], 50);
    kvq_sequence_destroy(loaded[i]);
  }
  /* With another policy, what was shared is recoded once. */
  options.policy = load_policy(f.context, other_text);
  options.recode = 1;
  ACCEPTED(kvq_cache_load(f.cache, together.data, together.size, loaded, 4, &options, err));
  after = usage_of(f.cache, NULL);
  CHECK(after.shared_pages + 8 * kLayers * kKvHeads > before.shared_pages);
  CHECK(after.sealed_bytes + after.fp16_bytes <
        usage_of(f.cache, loaded[0]).sealed_bytes + usage_of(f.cache, loaded[1]).sealed_bytes +
            usage_of(f.cache, loaded[2]).sealed_bytes + usage_of(f.cache, loaded[3]).sealed_bytes);
  for (i = 0; i < 4; ++i) {
    grow(f.cache, loaded[i], 50);
    kvq_sequence_destroy(loaded[i]);
    blob_free(&alone[i]);
  }
  kvq_policy_destroy((kvq_policy*)options.policy);
  blob_free(&together);
  fixture_close(&f);
}

/* A reservation holds when another policy comes to the cache, whose formats need more memory in calls. */
static void reserved_before(void) {
  fixture f;
  kvq_policy* policy;
  kvq_sequence* reserved;
  kvq_sequence* other;
  float out[kQHeads * kHeadDim];
  int i;
  fixture_open(&f, "fp16", 0, 0);
  policy = load_policy(f.context, "gs2");
  reserved = new_sequence(f.cache);
  ACCEPTED(kvq_sequence_reserve(f.cache, reserved, 200, err));
  other = new_sequence(f.cache);
  ACCEPTED(kvq_sequence_recode(f.cache, other, policy, err));
  for (i = 0; i < 200; ++i) {
    const size_t before = f.memory.n_allocations;
    grow(f.cache, reserved, 1);
    ACCEPTED(attend_last(f.cache, reserved, out));
    CHECK(f.memory.n_allocations == before);
  }
  kvq_policy_destroy(policy);
  kvq_sequence_destroy(other);
  kvq_sequence_destroy(reserved);
  fixture_close(&f);
}

void test_recode(void) {
  reserved_before();
  from_each_to_each();
  runs_beside_those_of_a_fork_count_once();
  forks_keep_theirs();
  failing_allocations("gs4", "gs2");
  failing_allocations("fp16", "int4");
  at_the_limit("gs4", "gs2");
  at_the_limit("fp16", "gs2");
  refused();
  loaded_with_another("fp16", "gs2");
  loaded_with_another("gs4", "int2");
  loaded_with_another("gs2", "gs4");
  loaded_with_another("int8", "fp16");
  forks_in_one_snapshot("gs4", "gs2");
  forks_in_one_snapshot("fp16", "int4");
}
