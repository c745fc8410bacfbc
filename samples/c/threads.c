/* Threads: call from several threads at once, and run the loops inside a call on the engine's own threads.
 *
 *   cc threads.c $(pkg-config --cflags --libs kvq) -Wl,-rpath,$(pkg-config --variable=libdir kvq) -pthread -o threads
 *   ./threads
 */
#include <pthread.h>

#include "sample.h"

enum { WORKERS = 3, SEQUENCES = 3, PROMPT = 600 };

/* A loop; threads take its indices one by one. */
typedef struct loop {
  pthread_mutex_t mutex;
  int32_t next;
  int32_t n;
  kvq_parallel_body body;
  void* argument;
} loop;

static void* run_loop(void* user) {
  loop* l = (loop*)user;
  for (;;) {
    pthread_mutex_lock(&l->mutex);
    const int32_t i = l->next++;
    pthread_mutex_unlock(&l->mutex);
    if (i >= l->n) return NULL;
    l->body(l->argument, i);
  }
}

/* The hook. It starts threads for every loop; an engine would wake the threads of its pool. */
static int32_t parallel_for(void* user, int32_t n, kvq_parallel_body body, void* argument) {
  loop l = {PTHREAD_MUTEX_INITIALIZER, 0, 0, NULL, NULL};
  pthread_t workers[WORKERS];
  int started = 0;
  l.n = n;
  l.body = body;
  l.argument = argument;
  while (started < WORKERS && pthread_create(&workers[started], NULL, run_loop, &l) == 0) ++started;
  run_loop(&l); /* this thread takes part, so the loop completes without any worker */
  for (int i = 0; i < started; ++i) pthread_join(workers[i], NULL);
  pthread_mutex_destroy(&l.mutex);
  ++*(int*)user; /* counts loops; only one thread makes calls here */
  return 0;
}

/* One conversation on its own thread. Many threads may use a context or a cache, one at a time a sequence; each thread
 * has its own error. */
typedef struct conversation {
  kvq_cache* cache;
  int text;
  kvq_status status;
  kvq_error error;
  float output[Q_ROW];
} conversation;

static kvq_status converse(conversation* c, kvq_sequence* sequence, float* q, float* k, float* v) {
  const int32_t n = PROMPT;
  const kvq_sequence* sequences[1] = {sequence};
  for (int layer = 0; layer < LAYERS; ++layer) {
    project(c->text, layer, 0, PROMPT, q, k, v);
    kvq_status status = kvq_append(c->cache, sequence, layer, n, k, v, KVQ_F32, NULL, &c->error);
    if (status != KVQ_OK) return status;

    kvq_attend_batch batch;
    kvq_attend_batch_init(&batch, sizeof batch);
    batch.n_sequences = 1;
    batch.sequences = sequences;
    batch.q = q + (PROMPT - 1) * Q_ROW; /* the last token's only */
    batch.output = c->output;
    status = kvq_attend(c->cache, layer, &batch, &c->error);
    if (status != KVQ_OK) return status;
  }
  return KVQ_OK;
}

static void* run_conversation(void* user) {
  conversation* c = (conversation*)user;
  kvq_sequence* sequence = NULL;
  float* q = tensor(PROMPT, Q_ROW);
  float* k = tensor(PROMPT, KV_ROW);
  float* v = tensor(PROMPT, KV_ROW);
  kvq_error_init(&c->error, sizeof c->error);
  c->status = kvq_sequence_create(c->cache, &sequence, &c->error);
  if (c->status == KVQ_OK) c->status = converse(c, sequence, q, k, v);
  kvq_sequence_destroy(sequence);
  free(q);
  free(k);
  free(v);
  return NULL;
}

static void print(const char* how, const conversation* c) {
  if (c->status == KVQ_OK) {
    printf("%s, text %d: output %08" PRIx32 "\n", how, c->text, fingerprint(c->output, sizeof c->output));
  } else {
    printf("%s, text %d: %s: %s\n", how, c->text, kvq_status_name(c->status), c->error.message);
  }
}

int main(void) {
  static conversation conversations[SEQUENCES];
  kvq_context* context = NULL;
  kvq_context_options options;
  int loops = 0;
  kvq_error_init(&error, sizeof error);

  /* Default: one call after the other on one thread. */
  require(kvq_context_create(NULL, &context, &error));
  kvq_cache* cache = create_cache(context, "int4+hadamard");
  for (int i = 0; i < SEQUENCES; ++i) {
    conversations[i].cache = cache;
    conversations[i].text = i;
    run_conversation(&conversations[i]);
    print("one thread", &conversations[i]);
  }

  /* Use one cache from several threads at once. */
  pthread_t threads[SEQUENCES];
  for (int i = 0; i < SEQUENCES; ++i) {
    if (pthread_create(&threads[i], NULL, run_conversation, &conversations[i]) != 0) return 1;
  }
  for (int i = 0; i < SEQUENCES; ++i) pthread_join(threads[i], NULL);
  for (int i = 0; i < SEQUENCES; ++i) print("threads of calls", &conversations[i]);
  kvq_cache_destroy(cache);
  kvq_context_destroy(context);

  /* Run the loops inside a call on the engine's threads. */
  kvq_context_options_init(&options, sizeof options);
  options.parallel_for = parallel_for;
  options.parallel_for_user = &loops;
  require(kvq_context_create(&options, &context, &error));
  cache = create_cache(context, "int4+hadamard");
  for (int i = 0; i < SEQUENCES; ++i) {
    conversations[i].cache = cache;
    run_conversation(&conversations[i]);
    print("threads in a call", &conversations[i]);
  }
  printf("%s\n", loops > 0 ? "loops were shared" : "no loop was long enough to be shared");
  kvq_cache_destroy(cache);
  kvq_context_destroy(context);
  return 0;
}
