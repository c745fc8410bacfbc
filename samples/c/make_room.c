/* Room when there is none: conversations that wait are stored smaller, and move to a file together.
 *
 *   cc make_room.c $(pkg-config --cflags --libs kvq) -Wl,-rpath,$(pkg-config --variable=libdir kvq) -o make_room
 *   ./make_room
 */
#include "sample.h"

enum { TOKENS = 2000, CHUNK = 25, MOST_SEQUENCES = 32, LIMIT = 4 * 1024 * 1024 };

/* Run a text through a new sequence. Returns NULL if it does not fit. */
static kvq_sequence* admit(kvq_cache* cache, int text) {
  kvq_sequence* sequence = NULL;
  if (kvq_sequence_create(cache, &sequence, &error) != KVQ_OK) return NULL;
  if (kvq_sequence_reserve(cache, sequence, TOKENS, &error) != KVQ_OK) {
    kvq_sequence_destroy(sequence);
    return NULL;
  }
  float* output = tensor(CHUNK, Q_ROW);
  for (int begin = 0; begin < TOKENS; begin += CHUNK) step(cache, sequence, text, begin, CHUNK, output);
  require(kvq_sequence_reserve(cache, sequence, 0, &error)); /* this conversation waits: give back what is left */
  free(output);
  return sequence;
}

int main(void) {
  kvq_context* context = NULL;
  kvq_sequence* sequences[MOST_SEQUENCES];
  kvq_context_options options;
  kvq_policy* smaller = NULL;
  int n = 0;
  kvq_error_init(&error, sizeof error);
  kvq_context_options_init(&options, sizeof options);
  options.max_bytes = LIMIT;
  require(kvq_context_create(&options, &context, &error));
  kvq_cache* cache = create_cache(context, "gs4");
  require(kvq_policy_load(context, "gs2", 3, &smaller, &error));

  while (n < MOST_SEQUENCES && (sequences[n] = admit(cache, n)) != NULL) ++n;
  printf("%d conversations fit into %d bytes: %s\n", n, LIMIT, error.message);

  /* Recode those that wait, page by page: nothing is computed again, and little has to be free. */
  kvq_recode_info info;
  info.struct_size = sizeof info;
  require(kvq_sequence_predict_recode(cache, sequences[0], smaller, &info, &error));
  printf("recoding one takes %" PRIu64 " free bytes and leaves %" PRIu64 " of %" PRIu64 "\n", info.needed_bytes,
         info.bytes_after, info.bytes_before);
  const int waiting = n;
  int recoded = 0;
  for (int i = 0; i < waiting; ++i) {
    if (kvq_sequence_recode(cache, sequences[i], smaller, &error) == KVQ_OK) ++recoded;
  }
  printf("%d of %d recoded\n", recoded, waiting);
  while (n < MOST_SEQUENCES && (sequences[n] = admit(cache, n)) != NULL) ++n;
  printf("now %d fit\n", n);

  /* A conversation and its fork go into one snapshot, what they share once. */
  kvq_sequence* pair[2] = {sequences[0], NULL};
  size_t size = 0, alone = 0;
  require(kvq_sequence_fork(cache, pair[0], &pair[1], &error));
  require(kvq_sequence_save(cache, pair[0], NULL, 0, &alone, &error));
  require(kvq_cache_save(cache, (const kvq_sequence* const*)pair, 2, NULL, 0, &size, &error));
  void* bytes = allocate(size);
  require(kvq_cache_save(cache, (const kvq_sequence* const*)pair, 2, bytes, size, &size, &error));
  printf("one takes %zu bytes, both %zu\n", alone, size);
  const uint32_t saved = content(cache, pair[1]);
  kvq_sequence_destroy(pair[0]);
  kvq_sequence_destroy(pair[1]);

  /* Without the policy, pages in gs2 would be refused: the cache's is gs4. */
  kvq_load_options loading;
  kvq_load_options_init(&loading, sizeof loading);
  loading.policy = smaller;
  require(kvq_cache_load(cache, bytes, size, pair, 2, &loading, &error));
  printf("content of the fork before %08" PRIx32 ", loaded %08" PRIx32 "; %" PRIu64 " pages shared\n", saved,
         content(cache, pair[1]), usage_of(cache, pair[1]).shared_pages);

  free(bytes);
  sequences[0] = pair[0];
  for (int i = 0; i < n; ++i) kvq_sequence_destroy(sequences[i]);
  kvq_sequence_destroy(pair[1]);
  kvq_policy_destroy(smaller);
  kvq_cache_destroy(cache);
  kvq_context_destroy(context);
  return 0;
}
