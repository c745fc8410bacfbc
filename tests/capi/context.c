/* kvq_context_*, kvq_cpu_isa_*. */
#include "check.h"
#include "fixture.h"
#include "suites.h"

#include <string.h>

/* The one that every processor has. */
#if defined(__aarch64__)
#define WORST_ISA "neon"
#else
#define WORST_ISA "baseline"
#endif

static void instruction_sets(void) {
  const int32_t n = kvq_cpu_isa_count();
  int32_t i;
  int32_t j;
  CHECK(n >= 1);
  for (i = 0; i < n; ++i) {
    kvq_context_options options;
    kvq_context* context = NULL;
    kvq_context_info info;
    CHECK(kvq_cpu_isa_name(i) != NULL && kvq_cpu_isa_name(i)[0] != '\0');
    for (j = 0; j < i; ++j) CHECK(strcmp(kvq_cpu_isa_name(i), kvq_cpu_isa_name(j)) != 0);
    kvq_context_options_init(&options, sizeof(options));
    options.cpu_isa = kvq_cpu_isa_name(i);
    ACCEPTED(kvq_context_create(&options, &context, err));
    memset(&info, 0, sizeof info);
    info.struct_size = sizeof info;
    ACCEPTED(kvq_context_describe(context, &info, err));
    CHECK(strcmp(info.isa, kvq_cpu_isa_name(i)) == 0);
    kvq_context_destroy(context);
  }
  CHECK(strcmp(kvq_cpu_isa_name(n - 1), WORST_ISA) == 0);
  CHECK(kvq_cpu_isa_name(-1) == NULL);
  CHECK(kvq_cpu_isa_name(n) == NULL);
  CHECK(kvq_cpu_isa_name(INT32_MIN) == NULL);
  CHECK(kvq_cpu_isa_name(INT32_MAX) == NULL);
}

static void defaults(void) {
  kvq_context_options options;
  kvq_context* context = NULL;
  kvq_context_info info;
  memset(&options, 0x77, sizeof options);
  kvq_context_options_init(&options, sizeof(options));
  CHECK(options.struct_size == sizeof options);
  CHECK(options.device == KVQ_DEVICE_CPU);
  CHECK(options.n_threads == 1);
  CHECK(options.reserved == 0);
  CHECK(options.max_bytes == 0);
  CHECK(options.cpu_isa == NULL);
  CHECK(options.allocate == NULL && options.free == NULL && options.allocator_user == NULL);
  CHECK(options.log == NULL && options.log_user == NULL);
  CHECK(options.parallel_for == NULL && options.parallel_for_user == NULL);
  CHECK(options.device_index == 0 && options.reserved2 == 0);
  CHECK(options.plugin == NULL && options.stream == NULL);
  CHECK(options.device_allocate == NULL && options.device_free == NULL && options.device_allocator_user == NULL);
  kvq_context_options_init(NULL, 0);

  ACCEPTED(kvq_context_create(NULL, &context, err));
  memset(&info, 0x77, sizeof info);
  info.struct_size = sizeof info;
  ACCEPTED(kvq_context_describe(context, &info, err));
  CHECK(info.struct_size == sizeof info);
  CHECK(info.device == KVQ_DEVICE_CPU);
  CHECK(info.n_threads == 1);
  CHECK(strcmp(info.backend, "cpu") == 0);
  CHECK(strcmp(info.isa, kvq_cpu_isa_name(0)) == 0);
  CHECK(info.max_bytes == 0);
  CHECK(info.peak_bytes >= info.bytes);

  REFUSED(KVQ_E_ARGUMENT, "context", kvq_context_describe(NULL, &info, err));
  REFUSED(KVQ_E_ARGUMENT, "info", kvq_context_describe(context, NULL, err));
  info.struct_size = 0;
  REFUSED(KVQ_E_ARGUMENT, "struct_size", kvq_context_describe(context, &info, err));
  info.struct_size = 3;
  REFUSED(KVQ_E_ARGUMENT, "struct_size", kvq_context_describe(context, &info, err));
  info.struct_size = UINT32_MAX;
  REFUSED(KVQ_E_ARGUMENT, "struct_size", kvq_context_describe(context, &info, err));
  ALSO_MENTIONS("4294967295");
  kvq_context_destroy(context);
  kvq_context_destroy(NULL);
}

static int unused_place;

/* Expect a refusal with `mention` in the message, and the handle set to NULL. */
static void refuse(const kvq_context_options* options, kvq_status status, const char* mention) {
  kvq_context* context = (kvq_context*)&unused_place;
  REFUSED(status, mention, kvq_context_create(options, &context, err));
  CHECK(context == NULL);
}

static kvq_context_options good_options(void) {
  kvq_context_options options;
  kvq_context_options_init(&options, sizeof(options));
  return options;
}

static void bad_options(void) {
  kvq_context_options options;
  tracker memory;
  memset(&memory, 0, sizeof memory);
  REFUSED(KVQ_E_ARGUMENT, "result", kvq_context_create(NULL, NULL, err));

  options = good_options(), options.struct_size = 0;
  refuse(&options, KVQ_E_ARGUMENT, "struct_size");
  options = good_options(), options.struct_size = sizeof options - 4;
  refuse(&options, KVQ_E_ARGUMENT, "struct_size");
  options = good_options(), options.struct_size = UINT32_MAX;
  refuse(&options, KVQ_E_ARGUMENT, "struct_size");
  ALSO_MENTIONS("4294967295");

  options = good_options(), options.device = 7;
  refuse(&options, KVQ_E_ARGUMENT, "device");
  ALSO_MENTIONS("7");
  options = good_options(), options.device = -1;
  refuse(&options, KVQ_E_ARGUMENT, "device");
  ALSO_MENTIONS("-1");

  options = good_options(), options.n_threads = 0;
  refuse(&options, KVQ_E_ARGUMENT, "n_threads");
  options = good_options(), options.n_threads = -3;
  refuse(&options, KVQ_E_ARGUMENT, "n_threads");
  ALSO_MENTIONS("-3");
  options = good_options(), options.n_threads = 1025;
  refuse(&options, KVQ_E_ARGUMENT, "n_threads");
  ALSO_MENTIONS("1025");
  options = good_options(), options.n_threads = INT32_MAX;
  refuse(&options, KVQ_E_ARGUMENT, "n_threads");

  options = good_options(), options.reserved = 1;
  refuse(&options, KVQ_E_ARGUMENT, "reserved");

  options = good_options(), options.cpu_isa = "abacus";
  refuse(&options, KVQ_E_UNSUPPORTED, "abacus");
  options = good_options(), options.cpu_isa = "";
  refuse(&options, KVQ_E_UNSUPPORTED, "cpu_isa");

  options = good_options(), options.allocate = tracker_allocate, options.allocator_user = &memory;
  refuse(&options, KVQ_E_ARGUMENT, "free");
  options = good_options(), options.free = tracker_free, options.allocator_user = &memory;
  refuse(&options, KVQ_E_ARGUMENT, "allocate");
  CHECK(memory.n_allocations == 0);
}

static void threads_start_only_on_request(void) {
  const int32_t counts[] = {1, THREADS(2), THREADS(7)};
  size_t i;
  for (i = 0; i < sizeof counts / sizeof counts[0]; ++i) {
    kvq_context_options options = good_options();
    kvq_context* context = NULL;
    kvq_context_info info;
    options.n_threads = counts[i];
    ACCEPTED(kvq_context_create(&options, &context, err));
    memset(&info, 0, sizeof info);
    info.struct_size = sizeof info;
    ACCEPTED(kvq_context_describe(context, &info, err));
    CHECK(info.n_threads == counts[i]);
    kvq_context_destroy(context);
  }
}

void test_context(void) {
  instruction_sets();
  defaults();
  bad_options();
  threads_start_only_on_request();
}
