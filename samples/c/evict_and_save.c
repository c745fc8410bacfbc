/* Evict the tokens of a long prompt that its newest queries attend to least, then save and load the sequence.
 *
 *   cc evict_and_save.c $(pkg-config --cflags --libs kvq) -Wl,-rpath,$(pkg-config --variable=libdir kvq) -o evict
 *   ./evict FILE
 */
#include "sample.h"

enum { TEXT = 0, PROMPT = 1000 };

static void write_all(const char* path, const void* bytes, size_t size) {
  FILE* file = fopen(path, "wb");
  if (file != NULL && fwrite(bytes, 1, size, file) == size && fclose(file) == 0) return;
  perror(path);
  exit(1);
}

static void* read_all(const char* path, size_t size) {
  void* bytes = allocate(size);
  FILE* file = fopen(path, "rb");
  if (file == NULL || fread(bytes, 1, size, file) != size) {
    perror(path);
    exit(1);
  }
  fclose(file);
  return bytes;
}

int main(int argc, char** argv) {
  const char* path = argc > 1 ? argv[1] : "sequence.kvq";
  kvq_context* context = NULL;
  kvq_sequence* sequence = NULL;
  float output[Q_ROW], expected[Q_ROW];
  kvq_error_init(&error, sizeof error);
  require(kvq_context_create(NULL, &context, &error));

  /* 128 tokens per head on average; heads that need more get more (Ada-KV on SnapKV's scores). */
  kvq_cache* cache = create_cache(context, "int4+adasnap:128");
  float* prompt_output = tensor(PROMPT, Q_ROW);
  require(kvq_sequence_create(cache, &sequence, &error));
  step(cache, sequence, TEXT, 0, PROMPT, prompt_output); /* these queries' attention decides what stays */
  free(prompt_output);

  int32_t kept[LAYERS * KV_HEADS];
  uint64_t bytes_freed = 0;
  kvq_compress_options options;
  kvq_compress_options_init(&options, sizeof options);
  options.kept = kept;
  options.bytes_freed = &bytes_freed;
  require(kvq_compress(cache, sequence, &options, &error));
  printf("kept per head:");
  for (int i = 0; i < LAYERS * KV_HEADS; ++i) printf(" %d", (int)kept[i]);
  printf("; %" PRIu64 " bytes freed, %" PRIu64 " left\n", bytes_freed, usage_of(cache, sequence).total_bytes);
  printf("the next token has position %d\n", (int)length_of(sequence)); /* evicted tokens still count */

  size_t size = 0;
  void* bytes = save(cache, sequence, &size);
  write_all(path, bytes, size);
  free(bytes);
  step(cache, sequence, TEXT, PROMPT, 1, expected);
  printf("goes on in memory: output %08" PRIx32 "\n", fingerprint(expected, sizeof expected));
  kvq_sequence_destroy(sequence);
  kvq_cache_destroy(cache);
  kvq_context_destroy(context);

  /* Load it later, or on another machine: model and formats must be the same; eviction and the number of threads may
   * differ. */
  kvq_context_options two_threads;
  kvq_context_options_init(&two_threads, sizeof two_threads);
  two_threads.n_threads = 2;
  require(kvq_context_create(&two_threads, &context, &error));
  bytes = read_all(path, size);
  cache = create_cache(context, "int4+streaming:256");
  require(kvq_sequence_load(cache, bytes, size, &sequence, &error));
  step(cache, sequence, TEXT, PROMPT, 1, output);
  printf("goes on from the file: output %08" PRIx32 "\n", fingerprint(output, sizeof output));
  kvq_sequence_destroy(sequence);

  /* The library refuses a snapshot of another format and a damaged one. */
  kvq_cache* other = create_cache(context, "int8");
  printf("%s", kvq_status_name(kvq_sequence_load(other, bytes, size, &sequence, &error)));
  printf(": %s\n", error.message);
  ((unsigned char*)bytes)[size / 2] ^= 1;
  printf("%s", kvq_status_name(kvq_sequence_load(cache, bytes, size, &sequence, &error)));
  printf(": %s\n", error.message);

  free(bytes);
  kvq_cache_destroy(other);
  kvq_cache_destroy(cache);
  kvq_context_destroy(context);
  return 0;
}
