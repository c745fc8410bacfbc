/* Verify a tree of draft tokens in one step: the cache holds the whole tree, a mask says what each token sees, and the
 * step keeps the accepted path.
 *
 *   cc masked_tree.c $(pkg-config --cflags --libs kvq) -Wl,-rpath,$(pkg-config --variable=libdir kvq) -o masked_tree
 *   ./masked_tree
 */
#include "sample.h"

enum { TEXT = 0, PROMPT = 300, NODES = 7, ACCEPTED = 3 };

/* Two drafts for the next token, and so on: nodes come after their parents. */
static const int parent[NODES] = {-1, -1, 0, 0, 1, 3, 3};
static const int32_t accepted[ACCEPTED] = {0, 3, 5}; /* a path from a root, which the engine's sampler finds */

static int depth(int node) { return parent[node] < 0 ? 0 : 1 + depth(parent[node]); }

/* Queries, keys and values of the nodes: each is a token of a text of its own, at its position. */
static void project_tree(int layer, int length, float* q, float* k, float* v) {
  for (int i = 0; i < NODES; ++i) {
    project(1 + i, layer, length + depth(i), 1, q + i * Q_ROW, k + i * KV_ROW, v + i * KV_ROW);
  }
}

/* Append the tree to all layers; writes the outputs of the last. */
static void judge(kvq_cache* cache, kvq_sequence* sequence, float* output) {
  static float q[NODES * Q_ROW], k[NODES * KV_ROW], v[NODES * KV_ROW];
  const int length = length_of(sequence);
  const int32_t n = NODES;
  int32_t positions[NODES];
  uint32_t mask[NODES]; /* the newest NODES tokens of the sequence, a bit each */
  for (int i = 0; i < NODES; ++i) {
    positions[i] = length + depth(i); /* siblings have the same one */
    mask[i] = (parent[i] < 0 ? 0u : mask[parent[i]]) | 1u << i;
  }
  for (int layer = 0; layer < LAYERS; ++layer) {
    project_tree(layer, length, q, k, v);
    kvq_extend_batch batch;
    kvq_extend_batch_init(&batch, sizeof batch);
    batch.n_sequences = 1;
    batch.sequences = &sequence;
    batch.token_counts = &n;
    batch.positions = positions;
    batch.k = k;
    batch.v = v;
    batch.q = q;
    batch.output = output;
    batch.mask = mask;
    batch.mask_slots = NODES;
    require(kvq_extend(cache, layer, &batch, &error));
    /* … the engine's output projection and feed-forward network */
  }
}

int main(void) {
  kvq_context* context = NULL;
  kvq_sequence* sequence = NULL;
  kvq_sequence* alone = NULL;
  static float output[NODES * Q_ROW];
  float expected[Q_ROW];
  kvq_error_init(&error, sizeof error);
  require(kvq_context_create(NULL, &context, &error));
  kvq_cache* cache = create_cache(context, "int4+hadamard");
  require(kvq_sequence_create(cache, &sequence, &error));
  float* prompt = tensor(PROMPT, Q_ROW);
  step(cache, sequence, TEXT, 0, PROMPT, prompt);
  free(prompt);
  require(kvq_sequence_fork(cache, sequence, &alone, &error));

  const int32_t nodes = NODES;
  const int32_t path = ACCEPTED;
  kvq_step_batch draft;
  kvq_step_batch_init(&draft, sizeof draft);
  draft.n_sequences = 1;
  draft.sequences = &sequence;
  draft.token_counts = &nodes;
  require(kvq_step_begin(cache, &draft, &error));
  judge(cache, sequence, output);
  /* The sampler has compared the outputs with the drafts: keep what it accepts. */
  draft.token_counts = &path;
  draft.kept_slots = accepted;
  require(kvq_step_commit(cache, &draft, &error));

  /* The same path token by token. */
  float difference = 0.0f;
  for (int i = 0; i < ACCEPTED; ++i) {
    step(cache, alone, 1 + accepted[i], PROMPT + i, 1, expected);
    for (int c = 0; c < Q_ROW; ++c) {
      const float error_here = output[accepted[i] * Q_ROW + c] - expected[c];
      if (error_here > difference) difference = error_here;
      if (-error_here > difference) difference = -error_here;
    }
  }
  printf("%d nodes, path of %d: largest difference from running it alone %.1e\n", NODES, ACCEPTED, (double)difference);
  printf("with the tree: %d tokens, content %08x\n", length_of(sequence), (unsigned)content(cache, sequence));
  printf("without: %d tokens, content %08x\n", length_of(alone), (unsigned)content(cache, alone));
  kvq_sequence_destroy(alone);
  kvq_sequence_destroy(sequence);
  kvq_cache_destroy(cache);
  kvq_context_destroy(context);
  return 0;
}
