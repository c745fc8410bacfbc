/* The caller's own parallel loop, log and allocator; attention that allocates nothing once warm. */
#include "check.h"
#include "fixture.h"
#include "suites.h"

#include <stdlib.h>
#include <string.h>

enum { kCalls = 3, kQueries = 5, kOut = 2 * kQueries * kQHeads * kHeadDim };

/* kHalf and kNone leave the rest to the library; kTwice calls the body more often than asked. */
typedef enum order { kForwards, kBackwards, kOddFirst, kHalf, kNone, kTwice } order;

typedef struct loop_log {
  order how;
  int n_loops;
  int n_iterations;
} loop_log;

static int32_t run_loop(void* user, int32_t n, kvq_parallel_body body, void* argument) {
  loop_log* log = (loop_log*)user;
  int32_t i;
  ++log->n_loops;
  log->n_iterations += n;
  CHECK(n >= 0);
  switch (log->how) {
    case kForwards:
      for (i = 0; i < n; ++i) body(argument, i);
      break;
    case kBackwards:
      for (i = n - 1; i >= 0; --i) body(argument, i);
      break;
    case kOddFirst:
      for (i = 1; i < n; i += 2) body(argument, i);
      for (i = 0; i < n; i += 2) body(argument, i);
      break;
    case kHalf:
      for (i = 0; i < n / 2; ++i) body(argument, i);
      return 7;
    case kNone:
      return -1;
    case kTwice:
      for (i = 0; i < 2 * n; ++i) body(argument, i % n);
      break;
  }
  return 0;
}

/* Append two long sequences and attend to both; returns results and snapshot. */
static blob run_model(kvq_context* context, float out[kOut]) {
  static float q[kOut];
  kvq_cache_options options = small_cache_options();
  kvq_policy* policy = load_policy(context, "version: 1\nkeys: int4+hadamard\nvalues: int3\n");
  kvq_cache* cache = NULL;
  kvq_sequence* sequences[2];
  const kvq_sequence* list[2];
  const int32_t counts[2] = {kQueries, kQueries};
  kvq_attend_batch batch;
  blob snapshot;
  ACCEPTED(kvq_cache_create(context, &options, policy, &cache, err));
  sequences[0] = new_sequence(cache);
  sequences[1] = new_sequence(cache);
  ACCEPTED(append_tokens(cache, sequences[0], 0, 900));
  ACCEPTED(append_tokens(cache, sequences[1], 0, 333));
  list[0] = sequences[0];
  list[1] = sequences[1];
  fill_tensor(q, kOut, 11);
  kvq_attend_batch_init(&batch, sizeof(batch));
  batch.n_sequences = 2;
  batch.sequences = list;
  batch.query_counts = counts;
  batch.q = q;
  batch.output = out;
  ACCEPTED(kvq_attend(cache, 0, &batch, err));
  snapshot = save_sequence(cache, sequences[0]);
  kvq_sequence_destroy(sequences[1]);
  kvq_sequence_destroy(sequences[0]);
  kvq_cache_destroy(cache);
  kvq_policy_destroy(policy);
  return snapshot;
}

static void parallel_loop(void) {
  static float expected[kOut];
  static float out[kOut];
  const order orders[] = {kForwards, kBackwards, kOddFirst, kHalf, kNone, kTwice};
  kvq_context* context = NULL;
  blob snapshot;
  size_t i;
  ACCEPTED(kvq_context_create(NULL, &context, err));
  snapshot = run_model(context, expected);
  kvq_context_destroy(context);
  for (i = 0; i < sizeof orders / sizeof orders[0]; ++i) {
    kvq_context_options options;
    kvq_context_info info;
    loop_log log = {kForwards, 0, 0};
    blob again;
    log.how = orders[i];
    kvq_context_options_init(&options, sizeof(options));
    options.n_threads = 0; /* ignored */
    options.parallel_for = run_loop;
    options.parallel_for_user = &log;
    ACCEPTED(kvq_context_create(&options, &context, err));
    memset(&info, 0, sizeof info);
    info.struct_size = sizeof info;
    ACCEPTED(kvq_context_describe(context, &info, err));
    CHECK(info.n_threads == 0);
    again = run_model(context, out);
    CHECK(log.n_loops > 0 && log.n_iterations > 1);
    CHECK(memcmp(out, expected, sizeof out) == 0);
    CHECK(again.size == snapshot.size && memcmp(again.data, snapshot.data, again.size) == 0);
    blob_free(&again);
    kvq_context_destroy(context);
  }
  blob_free(&snapshot);
}

static void check_message_of_log(void* user, kvq_log_level level, const char* message) {
  ++*(int*)user;
  CHECK(level == KVQ_LOG_ERROR || level == KVQ_LOG_WARNING || level == KVQ_LOG_INFO);
  CHECK(message != NULL && message[0] != '\0' && strchr(message, '\n') == NULL);
}

/* Messages are optional, have one line each, and do not change results. */
static void log_messages(void) {
  static float expected[kOut];
  static float out[kOut];
  kvq_context_options options;
  kvq_context* context = NULL;
  int n_messages = 0;
  blob snapshot;
  ACCEPTED(kvq_context_create(NULL, &context, err));
  snapshot = run_model(context, expected);
  blob_free(&snapshot);
  kvq_context_destroy(context);
  kvq_context_options_init(&options, sizeof(options));
  options.log = check_message_of_log;
  options.log_user = &n_messages;
  ACCEPTED(kvq_context_create(&options, &context, err));
  snapshot = run_model(context, out);
  blob_free(&snapshot);
  kvq_context_destroy(context);
  CHECK(memcmp(out, expected, sizeof out) == 0);
}

/* A second batch of the same size allocates nothing, not even temporarily. */
static void warm_attention_allocates_nothing(void) {
  fixture f;
  kvq_sequence* sequence;
  float first[kQHeads * kHeadDim];
  float again[kQHeads * kHeadDim];
  size_t n_allocations;
  size_t live;
  int call;
  fixture_open(&f, "int4", 0, 0);
  sequence = new_sequence(f.cache);
  grow(f.cache, sequence, 500);
  ACCEPTED(attend_last(f.cache, sequence, first));
  n_allocations = f.memory.n_allocations;
  live = f.memory.live_bytes;
  for (call = 0; call < kCalls; ++call) {
    ACCEPTED(attend_last(f.cache, sequence, again));
    CHECK(memcmp(first, again, sizeof first) == 0);
  }
  CHECK(f.memory.n_allocations == n_allocations);
  CHECK(f.memory.live_bytes == live);
  kvq_sequence_destroy(sequence);
  fixture_close(&f);
}

/* Decoding, saving and describing only read: they keep no memory. */
static void reading_keeps_no_memory(void) {
  fixture f;
  kvq_sequence* sequence;
  saved_state s;
  size_t live;
  float k[kHeadDim];
  fixture_open(&f, "int4+hadamard", 0, 0);
  sequence = new_sequence(f.cache);
  grow(f.cache, sequence, 100);
  live = f.memory.live_bytes;
  s = take_state(f.cache, sequence);
  ACCEPTED(kvq_sequence_decode(f.cache, sequence, 0, 0, 7, 1, k, NULL, NULL, err));
  CHECK(f.memory.live_bytes == live);
  CHECK(state_is(f.cache, sequence, &s));
  state_free(&s);
  kvq_sequence_destroy(sequence);
  fixture_close(&f);
}

void test_hooks(void) {
  parallel_loop();
  log_messages();
  warm_attention_allocates_nothing();
  reading_keeps_no_memory();
}
