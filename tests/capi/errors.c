/* kvq_error, status names, versions. */
#include "check.h"
#include "suites.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

static void status_names(void) {
  CHECK(strcmp(kvq_status_name(KVQ_OK), "KVQ_OK") == 0);
  CHECK(strcmp(kvq_status_name(KVQ_E_ARGUMENT), "KVQ_E_ARGUMENT") == 0);
  CHECK(strcmp(kvq_status_name(KVQ_E_MEMORY), "KVQ_E_MEMORY") == 0);
  CHECK(strcmp(kvq_status_name(KVQ_E_LIMIT), "KVQ_E_LIMIT") == 0);
  CHECK(strcmp(kvq_status_name(KVQ_E_STATE), "KVQ_E_STATE") == 0);
  CHECK(strcmp(kvq_status_name(KVQ_E_FORMAT), "KVQ_E_FORMAT") == 0);
  CHECK(strcmp(kvq_status_name(KVQ_E_MISMATCH), "KVQ_E_MISMATCH") == 0);
  CHECK(strcmp(kvq_status_name(KVQ_E_UNSUPPORTED), "KVQ_E_UNSUPPORTED") == 0);
  CHECK(strcmp(kvq_status_name(KVQ_E_BACKEND), "KVQ_E_BACKEND") == 0);
  CHECK(strcmp(kvq_status_name(KVQ_E_INTERNAL), "KVQ_E_INTERNAL") == 0);
  CHECK(strcmp(kvq_status_name(KVQ_E_CANCELLED), "KVQ_E_CANCELLED") == 0);
  CHECK(strcmp(kvq_status_name(1), "unknown status") == 0);
  CHECK(strcmp(kvq_status_name(KVQ_E_BUFFER_SIZE), "KVQ_E_BUFFER_SIZE") == 0);
  CHECK(strcmp(kvq_status_name(-12), "unknown status") == 0);
  CHECK(strcmp(kvq_status_name(INT32_MIN), "unknown status") == 0);
  CHECK(strcmp(kvq_status_name(INT32_MAX), "unknown status") == 0);
}

static void versions(void) {
  int major = -1;
  int minor = -1;
  int patch = -1;
  int used = 0;
  CHECK(kvq_api_version() == KVQ_API_VERSION);
  CHECK(sscanf(kvq_version_string(), "%d.%d.%d%n", &major, &minor, &patch, &used) == 3);
  CHECK(kvq_version_string()[used] == '\0' && major >= 0 && minor >= 0 && patch >= 0);
}

static void error_init(void) {
  kvq_error error;
  memset(&error, 0x77, sizeof error);
  kvq_error_init(&error, sizeof(error));
  CHECK(error.struct_size == sizeof error);
  CHECK(error.code == KVQ_OK);
  CHECK(error.backend_code == 0);
  CHECK(error.message[0] == '\0');
  kvq_error_init(NULL, 0);
}

/* An error object of another size, followed by bytes that do not belong to it. */
typedef struct guarded_error {
  kvq_error error;
  unsigned char guard[64];
} guarded_error;

static int all_bytes_are(const unsigned char* bytes, size_t n, unsigned char value) {
  size_t i;
  for (i = 0; i < n; ++i) {
    if (bytes[i] != value) return 0;
  }
  return 1;
}

/* The library writes neither beyond the caller's struct size nor beyond the struct it knows. */
static void errors_of_other_sizes(void) {
  const uint32_t sizes[] = {0, 4, 8, 12, 13, 64, 267, 268, 300, UINT32_MAX};
  size_t i;
  for (i = 0; i < sizeof sizes / sizeof sizes[0]; ++i) {
    guarded_error g;
    const size_t writable = sizes[i] < sizeof g.error ? sizes[i] : sizeof g.error;
    memset(&g, 0x77, sizeof g);
    g.error.struct_size = sizes[i];
    CHECK(kvq_context_create(NULL, NULL, &g.error) == KVQ_E_ARGUMENT);
    CHECK(g.error.struct_size == sizes[i]);
    CHECK(all_bytes_are(g.guard, sizeof g.guard, 0x77));
    if (writable >= 4) {
      CHECK(all_bytes_are((const unsigned char*)&g + writable, sizeof g - writable, 0x77));
    } else {
      CHECK(all_bytes_are((const unsigned char*)&g + 4, sizeof g - 4, 0x77));
    }
    if (writable > offsetof(kvq_error, message)) {
      CHECK(g.error.code == KVQ_E_ARGUMENT || g.error.code == 0x77777777);
      if (g.error.code == KVQ_E_ARGUMENT) {
        CHECK(memchr(g.error.message, '\0', writable - offsetof(kvq_error, message)) != NULL);
      }
    }
    if (sizes[i] == sizeof g.error) CHECK(g.error.code == KVQ_E_ARGUMENT);
  }
}

/* Values of any length are truncated to fit. */
static void long_values_fit(void) {
  char name[2000];
  kvq_context_options options;
  kvq_context* context = NULL;
  memset(name, 'x', sizeof name);
  name[sizeof name - 1] = '\0';
  kvq_context_options_init(&options, sizeof(options));
  options.cpu_isa = name;
  REFUSED(KVQ_E_UNSUPPORTED, "cpu_isa", kvq_context_create(&options, &context, err));
  CHECK(strstr(last_error.message, "xxxxxxxx") != NULL);
  CHECK(context == NULL);
}

/* Control characters and invalid UTF-8 in names are escaped, so that messages can be printed. */
static void names_are_readable(void) {
  const char* const yaml = "version: 1\n\"k\\x1b[31m\\a\": fp16\n";
  const float weights[64] = {1.0f};
  kvq_context_options options;
  qp_quantize_options quantizing;
  kvq_context* context = NULL;
  kvq_policy* policy = NULL;
  qp_matrix* matrix = NULL;
  kvq_context_options_init(&options, sizeof(options));
  options.cpu_isa = "\x1b]0;caf\xc3\xa9\x07";
  REFUSED(KVQ_E_UNSUPPORTED, "cpu_isa", kvq_context_create(&options, &context, err));
  CHECK(strstr(last_error.message, "\"\\x1b]0;caf\xc3\xa9\\x07\"") != NULL);
  ACCEPTED(kvq_context_create(NULL, &context, err));
  REFUSED(KVQ_E_FORMAT, "unknown", kvq_policy_load(context, yaml, strlen(yaml), &policy, err));
  CHECK(strstr(last_error.message, "\"k\\x1b[31m\\x07\"") != NULL);
  qp_quantize_options_init(&quantizing, sizeof(quantizing));
  quantizing.scheme = "nuq\xff\n\xe2\x82";
  REFUSED(KVQ_E_ARGUMENT, "scheme", qp_quantize(context, &quantizing, weights, 1, 64, &matrix, err));
  CHECK(strstr(last_error.message, "\"nuq\\xff\\x0a\"") != NULL);
  kvq_context_destroy(context);
}

void test_errors(void) {
  status_names();
  versions();
  error_init();
  errors_of_other_sizes();
  long_values_fit();
  names_are_readable();
}
