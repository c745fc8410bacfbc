/* A process forked from one with a context of several threads: the child computes alone, and destroys everything. */
#if !defined(_WIN32) && !defined(__EMSCRIPTEN__)
#define _POSIX_C_SOURCE 200809L
#include "check.h"
#include "fixture.h"
#include "suites.h"

#include <string.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { kTokens = 900, kOutScalars = kQHeads * kHeadDim, kSecondsOfChild = 60 };

typedef struct model {
  kvq_context* context;
  kvq_cache* cache;
  kvq_sequence* sequence;
} model;

static int model_open(model* m) {
  kvq_context_options options;
  const kvq_cache_options cache = small_cache_options();
  kvq_context_options_init(&options, sizeof(options));
  options.n_threads = 3;
  return kvq_context_create(&options, &m->context, NULL) == KVQ_OK &&
         kvq_cache_create(m->context, &cache, NULL, &m->cache, NULL) == KVQ_OK &&
         kvq_sequence_create(m->cache, &m->sequence, NULL) == KVQ_OK &&
         append_tokens(m->cache, m->sequence, 0, kTokens) == KVQ_OK;
}

static void model_close(model* m) {
  kvq_sequence_destroy(m->sequence);
  kvq_cache_destroy(m->cache);
  kvq_context_destroy(m->context);
}

static int attends_as(model* m, const float expected[kOutScalars]) {
  float out[kOutScalars];
  return attend_last(m->cache, m->sequence, out) == KVQ_OK && memcmp(out, expected, sizeof out) == 0;
}

static int threads_of(const model* m) {
  kvq_context_info info;
  memset(&info, 0, sizeof info);
  info.struct_size = sizeof info;
  return kvq_context_describe(m->context, &info, NULL) == KVQ_OK ? info.n_threads : -1;
}

/* Problems that the child finds; 0: none. */
static int child_of(model* inherited, const float expected[kOutScalars]) {
  model own;
  if (threads_of(inherited) != 1) return 1;
  if (!attends_as(inherited, expected)) return 2;
  if (append_tokens(inherited->cache, inherited->sequence, 1, kTokens) != KVQ_OK) return 3;
  model_close(inherited);
  if (!model_open(&own)) return 4;
  if (threads_of(&own) != 3) return 5;
  if (!attends_as(&own, expected)) return 6;
  model_close(&own);
  return 0;
}

void test_fork(void) {
  const struct timespec until_threads_sleep = {0, 20000000};
  float expected[kOutScalars];
  model m;
  pid_t child;
  int status = -1;
  CHECK(model_open(&m));
  CHECK(attend_last(m.cache, m.sequence, expected) == KVQ_OK);
  nanosleep(&until_threads_sleep, NULL);
  child = fork();
  if (child == 0) {
    alarm(kSecondsOfChild); /* ends a child that hangs */
    _exit(child_of(&m, expected));
  }
  CHECK(child > 0);
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHECK(threads_of(&m) == 3);
  CHECK(attends_as(&m, expected));
  model_close(&m);
}

#else
#include "suites.h"

#include <stdio.h>

void test_fork(void) { printf("fork: skipped, processes of this system do not fork\n"); }
#endif
