/* Verify a tree of draft tokens: attend to the sequence, attend to the tree itself with the engine's own mask, and
 * merge both by their sums of exponentials. Only the accepted path is appended.
 *
 *   cc draft_tree.c $(pkg-config --cflags --libs kvq) -lm -Wl,-rpath,$(pkg-config --variable=libdir kvq) -o draft_tree
 *   ./draft_tree
 */
#include <math.h>

#include "sample.h"

enum { TEXT = 0, PROMPT = 300, NODES = 7, ACCEPTED = 3 };

/* Two drafts for the next token, and so on: nodes come after their parents. */
static const int parent[NODES] = {-1, -1, 0, 0, 1, 3, 3};
static const int accepted[ACCEPTED] = {0, 3, 5}; /* a path from a root, which the engine's sampler finds */

static int depth(int node) { return parent[node] < 0 ? 0 : 1 + depth(parent[node]); }

/* What a node sees of the tree: itself and the nodes before it on its path. */
static int sees(int node, int other) {
  while (node > other) node = parent[node];
  return node == other;
}

/* RoPE of pairs (c, c + HEAD_DIM / 2), as the cache applies it. */
static void rotate(const float* x, int position, float* turned) {
  for (int c = 0; c < HEAD_DIM / 2; ++c) {
    const double angle = position * pow(500000.0, -2.0 * c / HEAD_DIM);
    const float even = x[c], odd = x[c + HEAD_DIM / 2];
    turned[c] = (float)(even * cos(angle) - odd * sin(angle));
    turned[c + HEAD_DIM / 2] = (float)(odd * cos(angle) + even * sin(angle));
  }
}

/* Queries of the nodes over all tokens of the sequence, with the logarithms of their sums of exponentials. */
static void attend_to_sequence(kvq_cache* cache, const kvq_sequence* sequence, int layer, const float* q, float* output,
                               float* lse) {
  const int32_t n = NODES;
  int32_t positions[NODES];
  for (int i = 0; i < NODES; ++i) positions[i] = length_of(sequence) + depth(i); /* siblings have the same one */
  kvq_attend_batch batch;
  kvq_attend_batch_init(&batch, sizeof batch);
  batch.n_sequences = 1;
  batch.sequences = &sequence;
  batch.query_counts = &n;
  batch.query_positions = positions;
  batch.q = q;
  batch.output = output;
  batch.lse = lse;
  require(kvq_attend(cache, layer, &batch, &error));
}

/* Add what a query head of a node sees of the tree to its output over the sequence. An engine has a kernel for this. */
static void merge_tree(int node, int head, int length, const float* q, const float* k, const float* v, float* output,
                       const float* lse) {
  const int kv_head = head / (Q_HEADS / KV_HEADS);
  float turned_q[HEAD_DIM], turned_k[HEAD_DIM], logits[NODES];
  const float of_sequence = lse[node * Q_HEADS + head];
  float highest = of_sequence;
  rotate(q + node * Q_ROW + head * HEAD_DIM, length + depth(node), turned_q);
  for (int i = 0; i <= node; ++i) {
    if (!sees(node, i)) continue;
    rotate(k + i * KV_ROW + kv_head * HEAD_DIM, length + depth(i), turned_k);
    logits[i] = 0.0f;
    for (int c = 0; c < HEAD_DIM; ++c) logits[i] += turned_q[c] * turned_k[c] / sqrtf((float)HEAD_DIM);
    highest = fmaxf(highest, logits[i]);
  }
  float sum = expf(of_sequence - highest);
  float* out = output + node * Q_ROW + head * HEAD_DIM;
  for (int c = 0; c < HEAD_DIM; ++c) out[c] *= sum;
  for (int i = 0; i <= node; ++i) {
    if (!sees(node, i)) continue;
    const float weight = expf(logits[i] - highest);
    sum += weight;
    for (int c = 0; c < HEAD_DIM; ++c) out[c] += weight * v[i * KV_ROW + kv_head * HEAD_DIM + c];
  }
  for (int c = 0; c < HEAD_DIM; ++c) out[c] /= sum;
}

/* Queries, keys and values of the nodes: each is a token of a text of its own, at its position. */
static void project_tree(int layer, int length, float* q, float* k, float* v) {
  for (int i = 0; i < NODES; ++i) {
    project(1 + i, layer, length + depth(i), 1, q + i * Q_ROW, k + i * KV_ROW, v + i * KV_ROW);
  }
}

int main(void) {
  kvq_context* context = NULL;
  kvq_sequence* sequence = NULL;
  kvq_sequence* alone = NULL;
  static float q[NODES * Q_ROW], output[NODES * Q_ROW];
  static float k[LAYERS][NODES * KV_ROW], v[LAYERS][NODES * KV_ROW]; /* kept until a path is accepted */
  float lse[NODES * Q_HEADS];
  float expected[Q_ROW];
  kvq_error_init(&error, sizeof error);
  require(kvq_context_create(NULL, &context, &error));
  kvq_cache* cache = create_cache(context, "int4+hadamard");
  require(kvq_sequence_create(cache, &sequence, &error));
  float* prompt = tensor(PROMPT, Q_ROW);
  step(cache, sequence, TEXT, 0, PROMPT, prompt);
  free(prompt);
  require(kvq_sequence_fork(cache, sequence, &alone, &error));

  for (int layer = 0; layer < LAYERS; ++layer) {
    project_tree(layer, PROMPT, q, k[layer], v[layer]);
    attend_to_sequence(cache, sequence, layer, q, output, lse);
    for (int node = 0; node < NODES; ++node) {
      for (int head = 0; head < Q_HEADS; ++head) merge_tree(node, head, PROMPT, q, k[layer], v[layer], output, lse);
    }
    /* … the engine's output projection and feed-forward network */
  }
  /* The sampler has compared the outputs with the drafts: append what it accepts. */
  for (int i = 0; i < ACCEPTED; ++i) {
    for (int layer = 0; layer < LAYERS; ++layer) {
      const int node = accepted[i];
      require(kvq_append(cache, sequence, layer, 1, k[layer] + node * KV_ROW, v[layer] + node * KV_ROW, KVQ_F32, NULL,
                         &error));
    }
  }

  /* The same path token by token. */
  float difference = 0.0f;
  for (int i = 0; i < ACCEPTED; ++i) {
    step(cache, alone, 1 + accepted[i], PROMPT + i, 1, expected);
    for (int c = 0; c < Q_ROW; ++c) {
      difference = fmaxf(difference, fabsf(output[accepted[i] * Q_ROW + c] - expected[c]));
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
