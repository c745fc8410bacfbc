/* A hybrid model: a recurrent layer, which keeps no keys and values but a state, and one that attends. Its prompts are
 * saved, loaded and cut with the states.
 *
 *   cc hybrid.c $(pkg-config --cflags --libs kvq) -Wl,-rpath,$(pkg-config --variable=libdir kvq) -o hybrid
 *   ./hybrid
 */
#include "sample.h"

enum { RECURRENT = 0, ATTENDS = 1, PROMPT = 1000, KEPT_EVERY = 256, SHARED = 600 };

typedef struct model {
  kvq_cache* cache;
  kvq_sequence* sequence;
  float state[KV_ROW]; /* of the recurrent layer; an engine may have it on a GPU */
} model;

/* Run n tokens of a text through both layers. Writes the attention output, `[n, Q_HEADS, HEAD_DIM]`. */
static void forward(model* m, int text, int begin, int n, float* output) {
  const int32_t n_tokens = n;
  float* q = tensor(n, Q_ROW);
  float* k = tensor(n, KV_ROW);
  float* v = tensor(n, KV_ROW);
  project(text, RECURRENT, begin, n, q, k, v);
  float* decayed = tensor(n, KV_ROW); /* the recurrent layer's output */
  for (int i = 0; i < n; ++i) {
    for (int c = 0; c < KV_ROW; ++c) {
      m->state[c] = 0.9f * m->state[c] + k[i * KV_ROW + c];
      decayed[i * KV_ROW + c] = m->state[c];
    }
  }
  project(text, ATTENDS, begin, n, q, k, v);
  for (int i = 0; i < n * KV_ROW; ++i) v[i] += decayed[i];
  kvq_extend_batch batch;
  kvq_extend_batch_init(&batch, sizeof batch);
  batch.n_sequences = 1;
  batch.sequences = &m->sequence;
  batch.token_counts = &n_tokens;
  batch.k = k;
  batch.v = v;
  batch.q = q;
  batch.output = output;
  require(kvq_extend(m->cache, ATTENDS, &batch, &error));
  free(q);
  free(k);
  free(v);
  free(decayed);
}

static void keep_state(model* m, int tokens) {
  require(kvq_sequence_put_state(m->cache, m->sequence, RECURRENT, tokens, m->state, sizeof m->state, &error));
}

/* Copy the state after so many tokens back. */
static void restore_state(model* m, int tokens) {
  size_t size = 0;
  memset(m->state, 0, sizeof m->state);
  if (tokens == 0) return;
  require(kvq_sequence_get_state(m->sequence, RECURRENT, tokens, m->state, sizeof m->state, &size, &error));
}

/* Run a prompt in chunks, and keep the state at the end of each. Returns a hash of the last output. */
static uint32_t prefill(model* m, int text, int begin, int end) {
  float* output = tensor(KEPT_EVERY, Q_ROW);
  int n = 0;
  while (begin < end) {
    n = KEPT_EVERY - begin % KEPT_EVERY;
    if (n > end - begin) n = end - begin;
    forward(m, text, begin, n, output);
    begin += n;
    keep_state(m, begin);
  }
  const uint32_t sum = fingerprint(output + (size_t)(n - 1) * Q_ROW, Q_ROW * sizeof(float));
  free(output);
  return sum;
}

/* Cut the sequence to the newest place within `most` tokens where every recurrent layer has a state. */
static int rewind_to(model* m, int most) {
  int32_t tokens = 0;
  require(kvq_sequence_find_states(m->sequence, most, &tokens, &error));
  require(kvq_sequence_truncate(m->cache, m->sequence, tokens, &error));
  restore_state(m, tokens);
  return tokens;
}

int main(void) {
  kvq_context* context = NULL;
  kvq_policy* policy = NULL;
  kvq_cache_options options;
  model m;
  memset(&m, 0, sizeof m);
  kvq_error_init(&error, sizeof error);
  require(kvq_context_create(NULL, &context, &error));
  require(kvq_policy_load(context, "int4", 4, &policy, &error));
  kvq_cache_options_init(&options, sizeof options);
  options.n_layers = LAYERS;
  options.q_heads = Q_HEADS;
  options.kv_heads = KV_HEADS;
  options.head_dim = HEAD_DIM;

  kvq_layer_shape recurrent;
  kvq_layer_shape_init(&recurrent, sizeof recurrent);
  recurrent.first_layer = RECURRENT;
  recurrent.recurrent = 1;
  options.shapes = &recurrent;
  options.n_shapes = 1;
  require(kvq_cache_create(context, &options, policy, &m.cache, &error));

  /* A prompt is processed and saved; a later process continues it. */
  require(kvq_sequence_create(m.cache, &m.sequence, &error));
  prefill(&m, 1, 0, PROMPT);
  size_t size = 0;
  void* file = save(m.cache, m.sequence, &size);
  const kvq_usage usage = usage_of(m.cache, m.sequence);
  printf("%d tokens: %" PRIu64 " bytes, of which %" PRIu64 " are states\n", PROMPT, usage.total_bytes,
         usage.state_bytes);
  printf("goes on in memory: output %08x\n", (unsigned)prefill(&m, 1, PROMPT, PROMPT + 50));
  kvq_sequence_destroy(m.sequence);
  require(kvq_sequence_load(m.cache, file, size, &m.sequence, &error));
  restore_state(&m, PROMPT);
  printf("goes on from the file: output %08x\n", (unsigned)prefill(&m, 1, PROMPT, PROMPT + 50));

  /* Another prompt begins with the same SHARED tokens: a fork is cut to the newest place before that it can return to.
   */
  model other = m;
  require(kvq_sequence_fork(m.cache, m.sequence, &other.sequence, &error));
  const int kept = rewind_to(&other, SHARED);
  if (kept < SHARED) prefill(&other, 1, kept, SHARED);
  printf("%d of %d shared tokens kept: output %08x\n", kept, SHARED,
         (unsigned)prefill(&other, 2, SHARED, SHARED + 100));
  model fresh = m;
  require(kvq_sequence_create(m.cache, &fresh.sequence, &error));
  restore_state(&fresh, 0);
  prefill(&fresh, 1, 0, SHARED);
  printf("without a fork: output %08x\n", (unsigned)prefill(&fresh, 2, SHARED, SHARED + 100));

  kvq_sequence_destroy(fresh.sequence);
  kvq_sequence_destroy(other.sequence);
  kvq_sequence_destroy(m.sequence);
  free(file);
  kvq_cache_destroy(m.cache);
  kvq_policy_destroy(policy);
  kvq_context_destroy(context);
  return 0;
}
