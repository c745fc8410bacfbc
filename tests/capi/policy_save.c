/* kvq_policy_save and kvq_policy_with_layer: equivalent text, and layers in other formats. */
#include "check.h"
#include "fixture.h"
#include "suites.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kSomeLayers = 6 };

/* The text with a NUL behind it. */
static char* save(const kvq_policy* policy) {
  size_t size = 0;
  size_t written = 0;
  char* text;
  ACCEPTED(kvq_policy_save(policy, NULL, 0, &size, err));
  text = (char*)malloc(size + 1);
  text[size] = '!';
  ACCEPTED(kvq_policy_save(policy, text, size, &written, err));
  CHECK(written == size && text[size] == '!'); /* it is not terminated */
  text[size] = '\0';
  CHECK(strlen(text) == size);
  return text;
}

static kvq_cache* cache_with(kvq_context* context, const kvq_policy* policy) {
  kvq_cache_options options = small_cache_options();
  kvq_cache* cache = NULL;
  options.n_layers = kSomeLayers;
  ACCEPTED(kvq_cache_create(context, &options, policy, &cache, err));
  return cache;
}

static kvq_layer_info layer_of(const kvq_cache* cache, int32_t layer) {
  kvq_layer_info info;
  memset(&info, 0, sizeof info);
  info.struct_size = sizeof info;
  ACCEPTED(kvq_cache_describe_layer(cache, layer, &info, err));
  return info;
}

static kvq_cache_info info_of(const kvq_cache* cache) {
  kvq_cache_info info;
  memset(&info, 0, sizeof info);
  info.struct_size = sizeof info;
  ACCEPTED(kvq_cache_describe(cache, &info, err));
  return info;
}

/* Caches created with both have the same description. */
static void check_alike(kvq_context* context, const kvq_policy* a, const kvq_policy* b) {
  kvq_cache* of_a = cache_with(context, a);
  kvq_cache* of_b = cache_with(context, b);
  const kvq_cache_info info_a = info_of(of_a);
  const kvq_cache_info info_b = info_of(of_b);
  int32_t layer;
  CHECK(memcmp(&info_a, &info_b, sizeof info_a) == 0);
  for (layer = 0; layer < kSomeLayers; ++layer) {
    const kvq_layer_info layer_a = layer_of(of_a, layer);
    const kvq_layer_info layer_b = layer_of(of_b, layer);
    CHECK(memcmp(&layer_a, &layer_b, sizeof layer_a) == 0);
  }
  kvq_cache_destroy(of_a);
  kvq_cache_destroy(of_b);
}

static void check_round_trip(kvq_context* context, const char* text) {
  kvq_policy* policy = load_calibrating_policy(context, text);
  char* first = save(policy);
  kvq_policy* again = load_calibrating_policy(context, first);
  char* second = save(again);
  CHECK(strcmp(first, second) == 0);
  if (strstr(text, "router") == NULL) check_alike(context, policy, again);
  free(first);
  free(second);
  kvq_policy_destroy(again);
  kvq_policy_destroy(policy);
}

static void examples(kvq_context* context) {
  static const char* const kExamples[] = {"ada-pyramidkv", "ada-snapkv", "gain-shape", "h2o",
                                          "moqae",         "pyramidkv",  "snapkv",     "streaming"};
  static char text[1 << 16];
  size_t i;
  for (i = 0; i < sizeof kExamples / sizeof kExamples[0]; ++i) {
    char path[1024];
    FILE* file;
    sprintf(path, "%s/docs/policies/%s.yaml", KVQ_SOURCE_DIR, kExamples[i]);
    file = fopen(path, "rb");
    CHECK(file != NULL);
    if (file == NULL) continue;
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    check_round_trip(context, text);
  }
  check_round_trip(context, "gt2/gs1+nocentre");
  check_round_trip(context, "int4+hadamard/fp16+h2o:77");
  check_round_trip(context, "version: 1\nvalues: {format: int2, hadamard: true, group: 64}\nrecent: 3\nsink: 2\n");
  check_round_trip(context,
                   "version: 1\nkeys: gs3\nlayers: [{range: [1, 4], keys: int8}, {range: [2, 2], values: gt1}]\n");
}

static void refused(fixture* f) {
  kvq_policy* policy = load_policy(f->context, "int4");
  char buffer[64];
  size_t size = 0;
  REFUSED(KVQ_E_ARGUMENT, "policy is NULL", kvq_policy_save(NULL, buffer, sizeof buffer, &size, err));
  REFUSED(KVQ_E_ARGUMENT, "size is NULL", kvq_policy_save(policy, buffer, sizeof buffer, NULL, err));
  CHECK(size == 0);
  memset(buffer, '?', sizeof buffer);
  REFUSED(KVQ_E_BUFFER_SIZE, "capacity is 7", kvq_policy_save(policy, buffer, 7, &size, err));
  CHECK(size == strlen("version: 1\nkeys: int4\nvalues: int4\n") && buffer[0] == '?');
  kvq_policy_destroy(policy);
}

static kvq_policy* with_layer(kvq_context* context, const kvq_policy* policy, int32_t first, int32_t last,
                              const char* keys, const char* values) {
  kvq_policy* result = NULL;
  ACCEPTED(kvq_policy_with_layer(context, policy, first, last, keys, values, &result, err));
  return result;
}

static void check_formats(kvq_context* context, const kvq_policy* policy, const char* const formats[kSomeLayers]) {
  kvq_cache* cache = cache_with(context, policy);
  int32_t layer;
  for (layer = 0; layer < kSomeLayers; ++layer) {
    const kvq_layer_info info = layer_of(cache, layer);
    CHECK(strcmp(info.formats, formats[layer]) == 0);
  }
  kvq_cache_destroy(cache);
}

/* Later layers win; formats that are NULL and all other settings stay. */
static void layers(kvq_context* context) {
  static const char* const kExpected[kSomeLayers] = {"fp16", "int4", "int8/int4", "int8/gs2+nocentre", "int4", "int4"};
  kvq_policy* plain = load_policy(context,
                                  "version: 1\nkeys: int4\nvalues: int4\nsink: 2\nrecent: 3\n"
                                  "eviction: {method: h2o, budget: 99}\n");
  kvq_policy* first = with_layer(context, plain, 0, 0, "fp16", "fp16");
  kvq_policy* second = with_layer(context, first, 2, 3, "int8", NULL);
  kvq_policy* third = with_layer(context, second, 3, 3, NULL, "gs2+nocentre");
  kvq_policy* same = with_layer(context, third, 1, 5, NULL, NULL);
  char* text = save(third);
  check_formats(context, third, kExpected);
  check_formats(context, same, kExpected);
  CHECK(strcmp(text,
               "version: 1\nkeys: int4\nvalues: int4\nsink: 2\nrecent: 3\nlayers:\n"
               "  - {range: [0, 0], keys: fp16, values: fp16}\n"
               "  - {range: [2, 2], keys: int8}\n"
               "  - {range: [3, 3], keys: int8, values: gs2+nocentre}\n"
               "eviction: {method: h2o, budget: 99}\n") == 0);
  free(text);
  kvq_policy_destroy(same);
  kvq_policy_destroy(third);
  kvq_policy_destroy(second);
  kvq_policy_destroy(first);
  kvq_policy_destroy(plain);
}

static void refused_layers(kvq_context* context) {
  fixture other;
  kvq_policy* policy = load_policy(context, "int4");
  kvq_policy* routed = load_policy(context, "version: 1\nrouter: {experts: [fp16, int4]}\n");
  kvq_policy* result = policy;
  kvq_policy* large;
  kvq_cache_options options = small_cache_options();
  kvq_cache* cache = NULL;
#define WITH(policy_, first_, last_, keys_, values_) \
  kvq_policy_with_layer(context, (policy_), (first_), (last_), (keys_), (values_), &result, err)
  REFUSED(KVQ_E_ARGUMENT, "context is NULL", kvq_policy_with_layer(NULL, policy, 0, 0, "fp16", NULL, &result, err));
  CHECK(result == NULL);
  REFUSED(KVQ_E_ARGUMENT, "policy is NULL", WITH(NULL, 0, 0, "fp16", NULL));
  REFUSED(KVQ_E_ARGUMENT, "result is NULL", kvq_policy_with_layer(context, policy, 0, 0, "fp16", NULL, NULL, err));
  REFUSED(KVQ_E_ARGUMENT, "first_layer is -1", WITH(policy, -1, 0, "fp16", NULL));
  REFUSED(KVQ_E_ARGUMENT, "first_layer is 4", WITH(policy, 4, 3, "fp16", NULL));
  REFUSED(KVQ_E_ARGUMENT, "last_layer is 65536", WITH(policy, 4, 65536, "fp16", NULL));
  REFUSED(KVQ_E_ARGUMENT, "last_layer is -1", WITH(policy, 0, -1, "fp16", NULL));
  REFUSED(KVQ_E_ARGUMENT, "keys is \"int5\"", WITH(policy, 0, 1, "int5", NULL));
  ALSO_MENTIONS("nearest: int4");
  REFUSED(KVQ_E_ARGUMENT, "values is \"int8/int4\"", WITH(policy, 0, 1, NULL, "int8/int4"));
  REFUSED(KVQ_E_ARGUMENT, "values is \"gs2+hadamard\"", WITH(policy, 0, 1, NULL, "gs2+hadamard"));
  REFUSED(KVQ_E_ARGUMENT, "keys is \"\"", WITH(policy, 0, 1, "", NULL));
  REFUSED(KVQ_E_ARGUMENT, "router", WITH(routed, 2, 3, "fp16", NULL));
  ALSO_MENTIONS("layers 2 to 3");
  fixture_open(&other, NULL, 0, 0);
  REFUSED(KVQ_E_ARGUMENT, "another context",
          kvq_policy_with_layer(other.context, policy, 0, 0, "fp16", NULL, &result, err));
  CHECK(result == NULL);
  fixture_close(&other);
  large = with_layer(context, policy, 0, kLayers, "fp16", NULL);
  REFUSED(KVQ_E_ARGUMENT, "[0, 2]", kvq_cache_create(context, &options, large, &cache, err));
  kvq_policy_destroy(large);
  kvq_policy_destroy(routed);
  kvq_policy_destroy(policy);
#undef WITH
}

static void failing_allocations(fixture* f) {
  kvq_policy* policy = load_policy(f->context, "version: 1\nlayers: [{range: [0, 1], keys: int8}]\n");
  kvq_policy* result = NULL;
  FAIL_ALLOCATIONS(&f->memory, 1, 1, kvq_policy_with_layer(f->context, policy, 0, 0, "int4", NULL, &result, NULL));
  kvq_policy_destroy(result);
  kvq_policy_destroy(policy);
}

void test_policy_save(void) {
  fixture f;
  fixture_open(&f, NULL, 0, 0);
  examples(f.context);
  refused(&f);
  layers(f.context);
  refused_layers(f.context);
  failing_allocations(&f);
  fixture_close(&f);
}
