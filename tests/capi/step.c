/* Steps: arguments, what they refuse inside, and that nothing fails for memory once they have begun. */
#include "check.h"
#include "fixture.h"
#include "suites.h"

#include <stdio.h>
#include <string.h>

enum { kMostTokens = 300, kQueryScalars = kQHeads * kHeadDim };

static fixture f;
static kvq_sequence* sequences[2];
static float k[kMostTokens * kTokenScalars];
static float q[kMostTokens * kQueryScalars];
static float output[kMostTokens * kQueryScalars];

static kvq_step_batch batch_of(int32_t n, const int32_t* counts) {
  kvq_step_batch batch;
  kvq_step_batch_init(&batch, sizeof(batch));
  batch.n_sequences = n;
  batch.sequences = sequences;
  batch.token_counts = counts;
  return batch;
}

static kvq_status begin(int32_t n, const int32_t* counts, kvq_error* error) {
  const kvq_step_batch batch = batch_of(n, counts);
  return kvq_step_begin(f.cache, &batch, error);
}

static kvq_status commit(int32_t n, const int32_t* counts, kvq_error* error) {
  const kvq_step_batch batch = batch_of(n, counts);
  return kvq_step_commit(f.cache, &batch, error);
}

static kvq_status abort_step(int32_t n, kvq_error* error) {
  const kvq_step_batch batch = batch_of(n, NULL);
  return kvq_step_abort(f.cache, &batch, error);
}

/* n tokens for one layer of the first sequence, of numbers that depend on where they come. */
static kvq_status add(int32_t layer, int32_t n, int extends, kvq_error* error) {
  kvq_extend_batch batch;
  const size_t place = (size_t)(length_of(sequences[0], layer) % 7);
  if (!extends) return kvq_append(f.cache, sequences[0], layer, n, k + place, k + place + 1, KVQ_F32, NULL, error);
  kvq_extend_batch_init(&batch, sizeof(batch));
  batch.n_sequences = 1;
  batch.sequences = sequences;
  batch.token_counts = &n;
  batch.k = k + place;
  batch.v = k + place + 1;
  batch.q = q;
  batch.output = output;
  return kvq_extend(f.cache, layer, &batch, error);
}

static void open_all(const char* policy) {
  fill_tensor(k, sizeof k / sizeof *k, 1);
  fill_tensor(q, sizeof q / sizeof *q, 2);
  fixture_open(&f, policy, 0, 0);
  sequences[0] = new_sequence(f.cache);
  sequences[1] = new_sequence(f.cache);
  grow(f.cache, sequences[0], 70);
  grow(f.cache, sequences[1], 40);
}

static void close_all(void) {
  kvq_sequence_destroy(sequences[0]);
  kvq_sequence_destroy(sequences[1]);
  fixture_close(&f);
}

static void arguments(void) {
  const int32_t none[] = {1, 0};
  const int32_t negative[] = {-1, 1};
  const int32_t huge[] = {INT32_MAX, 1};
  kvq_sequence* twice[2];
  kvq_step_batch batch;
  saved_state before;
  memset(&batch, 0x77, sizeof batch);
  kvq_step_batch_init(&batch, sizeof(batch));
  CHECK(batch.struct_size == sizeof batch && batch.n_sequences == 0);
  CHECK(batch.sequences == NULL && batch.token_counts == NULL && batch.kept_slots == NULL);
  kvq_step_batch_init(NULL, 0);
  open_all("int4");
  before = take_state(f.cache, sequences[0]);
  batch = batch_of(2, NULL);
  REFUSED(KVQ_E_ARGUMENT, "cache", kvq_step_begin(NULL, &batch, err));
  REFUSED(KVQ_E_ARGUMENT, "batch", kvq_step_begin(f.cache, NULL, err));
  REFUSED(KVQ_E_ARGUMENT, "n_sequences", begin(0, NULL, err));
  batch.sequences = NULL;
  REFUSED(KVQ_E_ARGUMENT, "sequences", kvq_step_begin(f.cache, &batch, err));
  twice[0] = twice[1] = sequences[0];
  batch.sequences = twice;
  REFUSED(KVQ_E_ARGUMENT, "again", kvq_step_begin(f.cache, &batch, err));
  REFUSED(KVQ_E_ARGUMENT, "token_counts[1] is 0", begin(2, none, err));
  REFUSED(KVQ_E_ARGUMENT, "token_counts[0] is -1", begin(2, negative, err));
  REFUSED(KVQ_E_ARGUMENT, "2147483647", begin(2, huge, err));
  REFUSED(KVQ_E_STATE, "sequences[0]", commit(1, NULL, err));
  REFUSED(KVQ_E_STATE, "sequences[0]", abort_step(1, err));
  CHECK(state_is(f.cache, sequences[0], &before));
  state_free(&before);
  close_all();
}

/* What is refused inside leaves the step as it is. */
static void refusals(void) {
  const int32_t counts[] = {5, 3};
  const int32_t six[] = {6, 3};
  const int32_t minus[] = {2, -1};
  const int32_t kept[] = {2, 0};
  kvq_sequence* fork = NULL;
  kvq_compress_options options;
  size_t size = 0;
  int32_t layer;
  open_all("int4+streaming:64");
  kvq_compress_options_init(&options, sizeof(options));
  ACCEPTED(begin(2, counts, err));
  REFUSED(KVQ_E_STATE, "in a step", kvq_sequence_truncate(f.cache, sequences[0], 1, err));
  REFUSED(KVQ_E_STATE, "in a step", kvq_sequence_fork(f.cache, sequences[0], &fork, err));
  REFUSED(KVQ_E_STATE, "in a step", kvq_sequence_save(f.cache, sequences[0], NULL, 0, &size, err));
  REFUSED(KVQ_E_STATE, "in a step", kvq_sequence_reserve(f.cache, sequences[0], 10, err));
  REFUSED(KVQ_E_STATE, "in a step", kvq_compress(f.cache, sequences[0], &options, err));
  REFUSED(KVQ_E_STATE, "sequences[0] is in a step already", begin(1, counts, err));
  ACCEPTED(add(0, 4, 0, err));
  REFUSED(KVQ_E_ARGUMENT, "began with 5 tokens, of which layer 0 has received 4",
          kvq_append(f.cache, sequences[0], 0, 2, k, k, KVQ_F32, NULL, err));
  REFUSED(KVQ_E_STATE, "layer 1 has received 0 in the step, layer 0 4", commit(1, NULL, err));
  REFUSED(KVQ_E_ARGUMENT, "token_counts[0] is 2, but layer 1 has received 0", commit(2, kept, err));
  ACCEPTED(add(1, 3, 1, err));
  REFUSED(KVQ_E_ARGUMENT, "token_counts[0] is 6, but layer 0 has received 4", commit(1, six, err));
  REFUSED(KVQ_E_ARGUMENT, "token_counts[1] is -1", commit(2, minus, err));
  for (layer = 0; layer < kLayers; ++layer) CHECK(length_of(sequences[0], layer) == 74 - layer);
  ACCEPTED(commit(2, kept, err));
  for (layer = 0; layer < kLayers; ++layer) CHECK(length_of(sequences[0], layer) == 72);
  CHECK(length_of(sequences[1], 0) == 40);
  REFUSED(KVQ_E_STATE, "sequences[0]", commit(1, NULL, err));
  /* A reservation that only the step made is no obstacle, and a sequence may be destroyed inside. */
  ACCEPTED(kvq_compress(f.cache, sequences[0], &options, err));
  ACCEPTED(begin(1, counts, err));
  close_all();
}

static int same_snapshot(const blob* before) {
  blob now = save_sequence(f.cache, sequences[0]);
  const int same = same_blobs(before, &now);
  blob_free(&now);
  return same;
}

enum { kTreeTokens = 6, kTreeSlots = 40 };

/* Tokens 0, 1 and 4 begin behind the sequence, 2 and 3 follow 0, and 5 follows 3. */
static const int32_t kDepths[kTreeTokens] = {0, 0, 1, 1, 0, 2};
static uint32_t tree_mask[kTreeTokens][(kTreeSlots + 31) / 32];

static kvq_extend_batch tree_batch(const int32_t* n, const int32_t* positions) {
  kvq_extend_batch batch;
  kvq_extend_batch_init(&batch, sizeof(batch));
  batch.n_sequences = 1;
  batch.sequences = sequences;
  batch.token_counts = n;
  batch.positions = positions;
  batch.k = k;
  batch.v = k + 1;
  batch.q = q;
  batch.output = output;
  batch.mask = tree_mask[0];
  batch.mask_slots = kTreeSlots;
  return batch;
}

/* Tokens of the tree for all layers of the first sequence. */
static void add_tree(void) {
  const int32_t n = kTreeTokens;
  int32_t positions[kTreeTokens];
  int32_t layer;
  int i;
  for (i = 0; i < kTreeTokens; ++i) positions[i] = 70 + kDepths[i];
  memset(tree_mask, 0xff, sizeof tree_mask);
  for (layer = 0; layer < kLayers; ++layer) {
    const kvq_extend_batch batch = tree_batch(&n, positions);
    ACCEPTED(kvq_extend(f.cache, layer, &batch, err));
  }
}

static kvq_status keep(int32_t n, const int32_t* slots, kvq_error* error) {
  kvq_step_batch batch = batch_of(1, &n);
  batch.kept_slots = slots;
  return kvq_step_commit(f.cache, &batch, error);
}

/* What masks and positions that fall are refused for, which changes nothing. */
static void tree_refusals(void) {
  const int32_t n = kTreeTokens;
  const int32_t all = 2 * kTreeTokens;
  const int32_t falling[kTreeTokens] = {70, 72, 71, 73, 74, 75};
  const int32_t too_low[kTreeTokens] = {70, 72, 71, 69, 74, 75};
  const int32_t path[] = {0, 3, 5};
  const int32_t descending[] = {3, 0, 5};
  const int32_t siblings[] = {0, 1, 5};
  const int32_t beyond[] = {0, 3, 6};
  kvq_extend_batch batch = tree_batch(&n, falling);
  kvq_attend_batch attend;
  kvq_step_batch step;
  saved_state before;
  int32_t layer;
  open_all("int4");
  before = take_state(f.cache, sequences[0]);
  REFUSED(KVQ_E_ARGUMENT, "positions[2] is 71, must be greater than the one before it, 72",
          kvq_extend(f.cache, 0, &batch, err));
  batch.positions = NULL;
  batch.mask_slots = 0;
  REFUSED(KVQ_E_ARGUMENT, "mask_slots is 0", kvq_extend(f.cache, 0, &batch, err));
  batch.mask_slots = 1025;
  REFUSED(KVQ_E_ARGUMENT, "mask_slots is 1025", kvq_extend(f.cache, 0, &batch, err));
  batch.mask = NULL;
  batch.mask_slots = 1;
  REFUSED(KVQ_E_ARGUMENT, "mask_slots is 1, must be 0 without a mask", kvq_extend(f.cache, 0, &batch, err));
  batch = tree_batch(&n, falling);
  batch.mask = (const uint32_t*)(const void*)output;
  REFUSED(KVQ_E_ARGUMENT, "overlaps batch->mask", kvq_extend(f.cache, 0, &batch, err));
  CHECK(state_is(f.cache, sequences[0], &before));

  ACCEPTED(begin(1, &all, err));
  batch = tree_batch(&n, too_low);
  REFUSED(KVQ_E_ARGUMENT, "positions[3] is 69, must be greater than the last one before the step, 69",
          kvq_extend(f.cache, 0, &batch, err));
  batch = tree_batch(&n, falling);
  batch.mask_slots = 3;
  REFUSED(KVQ_E_STATE, "mask_slots is 3, must be at least 4", kvq_extend(f.cache, 0, &batch, err));
  CHECK(length_of(sequences[0], 0) == 70);
  add_tree();
  kvq_attend_batch_init(&attend, sizeof(attend));
  attend.n_sequences = 1;
  attend.sequences = (const kvq_sequence* const*)sequences;
  attend.q = q;
  attend.output = output;
  REFUSED(KVQ_E_STATE, "mask_slots is 0, must be at least 5", kvq_attend(f.cache, 0, &attend, err));
  attend.reserved = 1;
  REFUSED(KVQ_E_ARGUMENT, "reserved", kvq_attend(f.cache, 0, &attend, err));

  REFUSED(KVQ_E_ARGUMENT, "token 1 of layer 0 is not beyond", commit(1, NULL, err));
  step = batch_of(1, NULL);
  step.kept_slots = path;
  REFUSED(KVQ_E_ARGUMENT, "token_counts", kvq_step_commit(f.cache, &step, err));
  REFUSED(KVQ_E_ARGUMENT, "kept_slots[1] is 0, must be greater than the one before it, 3", keep(3, descending, err));
  REFUSED(KVQ_E_ARGUMENT, "kept_slots[1] is 1, a token at position 70", keep(3, siblings, err));
  REFUSED(KVQ_E_ARGUMENT, "kept_slots[2] is 6, but layer 0 has received 6", keep(3, beyond, err));
  for (layer = 0; layer < kLayers; ++layer) CHECK(length_of(sequences[0], layer) == 76);
  ACCEPTED(abort_step(1, err));
  CHECK(same_snapshot(&before.snapshot));
  state_free(&before);
  close_all();

  /* A policy that evicts. */
  open_all("int4+streaming:64");
  batch = tree_batch(&n, NULL);
  REFUSED(KVQ_E_UNSUPPORTED, "policy evicts", kvq_extend(f.cache, 0, &batch, err));
  ACCEPTED(begin(1, &n, err));
  batch = tree_batch(&n, falling);
  REFUSED(KVQ_E_ARGUMENT, "as the cache's policy evicts", kvq_extend(f.cache, 0, &batch, err));
  for (layer = 0; layer < kLayers; ++layer) ACCEPTED(add(layer, n, 1, err));
  REFUSED(KVQ_E_UNSUPPORTED, "kept_slots[1] is 3, must be 1", keep(3, path, err));
  ACCEPTED(keep(1, path, err));
  CHECK(length_of(sequences[0], 1) == 71);
  close_all();
}

/* A tree's path is kept as if it alone had come. */
static void tree(void) {
  const int32_t n = kTreeTokens;
  const int32_t path[] = {0, 3, 5};
  const int32_t root[] = {4};
  int32_t layer;
  int i;
  size_t calls;
  blob alone;
  open_all("gs4");
  ACCEPTED(begin(1, &n, err));
  add_tree();
  calls = f.memory.n_allocations;
  ACCEPTED(keep(3, path, err));
  CHECK(f.memory.n_allocations == calls);
  ACCEPTED(begin(1, &n, err));
  for (layer = 0; layer < kLayers; ++layer) ACCEPTED(add(layer, n, 0, err));
  ACCEPTED(keep(1, root, err));
  alone = save_sequence(f.cache, sequences[0]);
  ACCEPTED(kvq_sequence_truncate(f.cache, sequences[0], 70, err));
  for (layer = 0; layer < kLayers; ++layer) {
    const size_t place = 73 % 7 + 4 * kTokenScalars;
    const int32_t last = 77;
    for (i = 0; i < 3; ++i) {
      const float* at = k + path[i] * kTokenScalars;
      ACCEPTED(kvq_append(f.cache, sequences[0], layer, 1, at, at + 1, KVQ_F32, NULL, err));
    }
    ACCEPTED(kvq_append(f.cache, sequences[0], layer, 1, k + place, k + place + 1, KVQ_F32, &last, err));
  }
  CHECK(same_snapshot(&alone));
  blob_free(&alone);
  close_all();
}

/* Too little memory for one of two sequences: neither begins. */
static void limit(void) {
  const int32_t counts[] = {10, 100000};
  saved_state before[2];
  int i;
  fill_tensor(k, sizeof k / sizeof *k, 1);
  fixture_open(&f, "int8", 0, 1 << 20);
  for (i = 0; i < 2; ++i) sequences[i] = new_sequence(f.cache);
  grow(f.cache, sequences[0], 40);
  for (i = 0; i < 2; ++i) before[i] = take_state(f.cache, sequences[i]);
  REFUSED(KVQ_E_LIMIT, "max_bytes", begin(2, counts, err));
  for (i = 0; i < 2; ++i) {
    CHECK(state_is(f.cache, sequences[i], &before[i]));
    state_free(&before[i]);
  }
  ACCEPTED(begin(1, counts, err));
  ACCEPTED(abort_step(1, err));
  close_all();
}

static uint32_t random_number(uint32_t* state, uint32_t end) {
  *state = *state * 1664525u + 1013904223u;
  return (uint32_t)(((uint64_t)(*state >> 8) * end) >> 24);
}

/* Random steps while allocations fail. A beginning that fails changes nothing; inside, no allocation is made at all, so
 * nothing fails; what is taken back is gone without a trace. */
static void failing_allocations(const char* policy, int programs) {
  uint32_t random = 7;
  int program;
  int refused = 0;
  open_all(policy);
  for (program = 0; program < programs; ++program) {
    const int32_t sizes[] = {1, 2 + (int32_t)random_number(&random, 8), 1 + (int32_t)random_number(&random, 100)};
    const int32_t count = sizes[random_number(&random, 3)];
    const int32_t added = 1 + (int32_t)random_number(&random, (uint32_t)count);
    const int32_t kept = (int32_t)random_number(&random, (uint32_t)added + 1);
    blob before = save_sequence(f.cache, sequences[0]);
    kvq_status status;
    size_t calls;
    int32_t layer;
    f.memory.fail_at = random_number(&random, 2) == 0 ? 0 : 1 + (long)random_number(&random, 60);
    status = begin(1, &count, NULL);
    f.memory.fail_at = 0;
    CHECK(status == KVQ_OK || status == KVQ_E_MEMORY);
    if (status != KVQ_OK) {
      ++refused;
      CHECK(same_snapshot(&before));
      blob_free(&before);
      continue;
    }
    calls = f.memory.n_allocations;
    f.memory.fail_at = 1;
    for (layer = 0; layer < kLayers; ++layer) {
      const int32_t first = 1 + (int32_t)random_number(&random, (uint32_t)added);
      CHECK(add(layer, first, (int)random_number(&random, 2), NULL) == KVQ_OK);
      if (first < added) CHECK(add(layer, added - first, (int)random_number(&random, 2), NULL) == KVQ_OK);
    }
    if (kept == 0 || random_number(&random, 3) == 0) {
      CHECK(abort_step(1, NULL) == KVQ_OK);
    } else {
      blob_free(&before);
      before.data = NULL;
      CHECK(commit(1, &kept, NULL) == KVQ_OK);
    }
    CHECK(f.memory.n_allocations == calls);
    f.memory.fail_at = 0;
    if (before.data != NULL) {
      CHECK(same_snapshot(&before));
      blob_free(&before);
    }
    if (length_of(sequences[0], 0) > 400) ACCEPTED(kvq_sequence_truncate(f.cache, sequences[0], 64, err));
    if (random_number(&random, 20) == 0) ACCEPTED(kvq_sequence_reserve(f.cache, sequences[0], 0, err));
  }
  CHECK(refused > programs / 100);
  close_all();
}

/* Steps of two drafts for each token, of which the second ones are kept: committing allocates nothing, and leaves what
 * these alone would. */
static void failing_commits(const char* policy, int programs) {
  enum { kMostDrafts = 70 };
  uint32_t random = 3;
  int program;
  open_all(policy);
  for (program = 0; program < programs; ++program) {
    const int32_t n = 1 + (int32_t)random_number(&random, kMostDrafts);
    const int32_t all = 2 * n;
    const int32_t length = length_of(sequences[0], 0);
    int32_t positions[2 * kMostDrafts];
    int32_t kept[kMostDrafts];
    size_t calls;
    int32_t layer;
    int32_t i;
    blob tree;
    if (program == 0) {
      kvq_sequence_destroy(sequences[1]);
      ACCEPTED(kvq_sequence_fork(f.cache, sequences[0], &sequences[1], err));
    }
    for (i = 0; i < all; ++i) positions[i] = length + i / 2;
    for (i = 0; i < n; ++i) kept[i] = 2 * i + 1;
    ACCEPTED(begin(1, &all, err));
    for (layer = 0; layer < kLayers; ++layer) {
      ACCEPTED(kvq_append(f.cache, sequences[0], layer, all, k, k + 1, KVQ_F32, positions, err));
    }
    calls = f.memory.n_allocations;
    f.memory.fail_at = 1;
    CHECK(keep(n, kept, NULL) == KVQ_OK);
    CHECK(f.memory.n_allocations == calls);
    f.memory.fail_at = 0;
    for (layer = 0; layer < kLayers; ++layer) {
      for (i = 0; i < n; ++i) {
        const float* at = k + kept[i] * kTokenScalars;
        ACCEPTED(kvq_append(f.cache, sequences[1], layer, 1, at, at + 1, KVQ_F32, NULL, err));
      }
    }
    tree = save_sequence(f.cache, sequences[1]);
    CHECK(same_snapshot(&tree));
    blob_free(&tree);
    if (length > 400) {
      for (i = 0; i < 2; ++i) ACCEPTED(kvq_sequence_truncate(f.cache, sequences[i], 64, err));
    }
  }
  close_all();
}

void test_step(void) {
  arguments();
  refusals();
  limit();
  tree_refusals();
  tree();
  failing_commits("fp16", 100);
  failing_commits("int4", 300);
  failing_commits("gs2", 300);
  failing_commits("version: 1\nkeys: gs4\nvalues: int2+hadamard\nsink: 2\nrecent: 3\n", 300);
  failing_allocations("int4", 2000);
  failing_allocations("gs2", 2000);
  failing_allocations("fp16", 1000);
  failing_allocations("version: 1\nkeys: gs4\nvalues: int2+hadamard\nsink: 2\nrecent: 3\n", 2000);
  failing_allocations("gs2+centres/gt1+centres", 1000);
  failing_allocations("int8+streaming:64", 1000);
  failing_allocations("version: 1\nkeys: int3\nvalues: int4\nlayers: [{range: [0, 0], keys: fp16, values: fp16}]\n",
                      1000);
}
