/* Several answers to one prompt: cache the prompt once and fork it for each answer.
 *
 *   cc share_prefix.c $(pkg-config --cflags --libs kvq) -Wl,-rpath,$(pkg-config --variable=libdir kvq) -o share_prefix
 *   ./share_prefix
 */
#include "sample.h"

enum { PROMPT_TEXT = 0, PROMPT = 1000, ANSWERS = 4, ANSWER = 50 };

/* Append an answer after the prompt; positions continue automatically. Writes the last token's attention output. */
static void answer(kvq_cache* cache, kvq_sequence* sequence, int text, float* output) {
  for (int i = 0; i < ANSWER; ++i) step(cache, sequence, text, PROMPT + i, 1, output);
}

int main(void) {
  kvq_context* context = NULL;
  kvq_sequence* prompt = NULL;
  kvq_sequence* answers[ANSWERS];
  kvq_sequence* alone = NULL;
  float output[Q_ROW];
  kvq_error_init(&error, sizeof error);
  require(kvq_context_create(NULL, &context, &error));
  kvq_cache* cache = create_cache(context, "int4+hadamard");
  float* prompt_output = tensor(PROMPT, Q_ROW);
  require(kvq_sequence_create(cache, &prompt, &error));
  step(cache, prompt, PROMPT_TEXT, 0, PROMPT, prompt_output);

  for (int i = 0; i < ANSWERS; ++i) {
    require(kvq_sequence_fork(cache, prompt, &answers[i], &error)); /* copies page lists, not pages */
    answer(cache, answers[i], 1 + i, output);
  }
  kvq_sequence_destroy(prompt); /* the answers keep its pages alive */

  const kvq_usage all = usage_of(cache, NULL);
  printf("%d answers: %" PRIu64 " bytes together, %" PRIu64 " pages shared\n", ANSWERS,
         all.total_bytes - all.workspace_bytes, all.shared_pages);
  printf("one answer by itself: %" PRIu64 " bytes\n", usage_of(cache, answers[0]).total_bytes);
  printf("the last answer: %d tokens, output %08" PRIx32 "\n", (int)length_of(answers[ANSWERS - 1]),
         fingerprint(output, sizeof output));

  /* Compare with a sequence that caches the prompt itself. */
  require(kvq_sequence_create(cache, &alone, &error));
  step(cache, alone, PROMPT_TEXT, 0, PROMPT, prompt_output);
  answer(cache, alone, ANSWERS, output);
  printf("without a fork: %d tokens, output %08" PRIx32 "\n", (int)length_of(alone),
         fingerprint(output, sizeof output));

  for (int i = 0; i < ANSWERS; ++i) kvq_sequence_destroy(answers[i]);
  kvq_sequence_destroy(alone);
  free(prompt_output);
  kvq_cache_destroy(cache);
  kvq_context_destroy(context);
  return 0;
}
