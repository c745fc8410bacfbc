/* Structs of callers built with an older or newer header: shorter and longer ones. */
#include "check.h"
#include "objects.h"
#include "plugins.h"
#include "suites.h"
#include "trainer_fixture.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The largest accepted struct, the caller's memory behind it, and its contents. */
enum { kMost = 4096, kGuard = 64, kCanary = 0x77, kBlock = kMost + kGuard };

/* Memory for any struct. */
typedef union memory {
  unsigned char bytes[kBlock];
  uint64_t aligns;
  void* aligns_too;
} memory;

static int all_are(const unsigned char* bytes, size_t n, int value) {
  size_t i;
  for (i = 0; i < n; ++i) {
    if (bytes[i] != value) return 0;
  }
  return 1;
}

static size_t least_of(size_t a, size_t b) { return a < b ? a : b; }

static uint32_t size_in(const unsigned char* block) {
  uint32_t size;
  memcpy(&size, block, sizeof size);
  return size;
}

static void set_size(unsigned char* block, uint32_t size) { memcpy(block, &size, sizeof size); }

/* A struct of `size` bytes at `block` has the fields that `full`, of `known` bytes, has room for, zeros beyond these,
 * and nobody wrote behind it. */
static int is_part_of(const unsigned char* block, size_t size, const unsigned char* full, size_t known) {
  const size_t shared = least_of(size, known);
  return size_in(block) == size && memcmp(block + sizeof(uint32_t), full + sizeof(uint32_t), shared - 4) == 0 &&
         all_are(block + shared, size - shared, 0) && all_are(block + size, kGuard, kCanary);
}

/* ------------------------------------------------------------------------------- what init functions write */

static void check_init(const char* name, size_t known, void (*init)(void* it, size_t size)) {
  memory full_memory;
  memory block_memory;
  unsigned char* const full = full_memory.bytes;
  unsigned char* const block = block_memory.bytes;
  size_t size;
  memset(full, kCanary, kBlock);
  init(full, known);
  CHECK(size_in(full) == known && all_are(full + known, kBlock - known, kCanary));
  for (size = 0; size <= kMost; size += size < known + 16 ? 1 : 997) {
    int good;
    memset(block, kCanary, kBlock);
    init(block, size);
    good = size < sizeof(uint32_t) ? all_are(block, kBlock, kCanary) : is_part_of(block, size, full, known);
    if (!good) printf("%s_init, %lu bytes\n", name, (unsigned long)size);
    CHECK(good);
  }
  init(NULL, known);
}

#define INITIALIZE(type) \
  static void init_##type(void* it, size_t size) { type##_init((type*)it, size); }

INITIALIZE(kvq_error)
INITIALIZE(kvq_context_options)
INITIALIZE(kvq_cache_options)
INITIALIZE(kvq_append_batch)
INITIALIZE(kvq_compress_options)
INITIALIZE(kvq_attend_batch)
INITIALIZE(qp_quantize_options)
INITIALIZE(kvq_codebook_trainer_options)
INITIALIZE(kvq_centres_trainer_options)
INITIALIZE(kvq_router_trainer_options)

static void init_functions(void) {
  check_init("kvq_error", sizeof(kvq_error), init_kvq_error);
  check_init("kvq_context_options", sizeof(kvq_context_options), init_kvq_context_options);
  check_init("kvq_cache_options", sizeof(kvq_cache_options), init_kvq_cache_options);
  check_init("kvq_append_batch", sizeof(kvq_append_batch), init_kvq_append_batch);
  check_init("kvq_compress_options", sizeof(kvq_compress_options), init_kvq_compress_options);
  check_init("kvq_attend_batch", sizeof(kvq_attend_batch), init_kvq_attend_batch);
  check_init("qp_quantize_options", sizeof(qp_quantize_options), init_qp_quantize_options);
  check_init("kvq_codebook_trainer_options", sizeof(kvq_codebook_trainer_options), init_kvq_codebook_trainer_options);
  check_init("kvq_centres_trainer_options", sizeof(kvq_centres_trainer_options), init_kvq_centres_trainer_options);
  check_init("kvq_router_trainer_options", sizeof(kvq_router_trainer_options), init_kvq_router_trainer_options);
}

/* -------------------------------------------------------------------------------- what failing calls write */

/* A failing call writes as much of its message as fits, and no byte beyond the struct it knows. */
static void errors(void) {
  memory block_memory;
  unsigned char* const block = block_memory.bytes;
  uint32_t size;
  for (size = sizeof(uint32_t); size <= sizeof(kvq_error) + kGuard; ++size) {
    kvq_error* error = (kvq_error*)(void*)block;
    const size_t room = size > offsetof(kvq_error, message) ? size - offsetof(kvq_error, message) : 0;
    const size_t known = least_of(size, sizeof(kvq_error));
    memset(block, kCanary, kBlock);
    kvq_error_init(error, size);
    CHECK(kvq_policy_load(NULL, "", 0, NULL, error) == KVQ_E_ARGUMENT);
    CHECK(error->struct_size == size);
    CHECK(all_are(block + known, size - known, 0));
    CHECK(all_are(block + size, kBlock - size, kCanary));
    if (room == 0) continue;
    CHECK(error->code == KVQ_E_ARGUMENT && error->backend_code == 0);
    CHECK(memchr(error->message, '\0', room) != NULL);
    if (room > strlen("context is NULL")) CHECK(strcmp(error->message, "context is NULL") == 0);
  }
}

/* ------------------------------------------------------------------------------- what describe functions write */

typedef kvq_status (*describe_call)(const objects* o, void* info);

static kvq_status describe_context(const objects* o, void* info) {
  return kvq_context_describe(o->context, (kvq_context_info*)info, err);
}
static kvq_status describe_device(const objects* o, void* info) {
  (void)o;
  return kvq_device_describe(KVQ_DEVICE_CUDA, 0, TEST_PLUGIN("pretend"), (kvq_device_info*)info, err);
}
static kvq_status describe_policy(const objects* o, void* info) {
  return kvq_policy_describe(o->policy, (kvq_policy_info*)info, err);
}
static kvq_status describe_codebook(const objects* o, void* info) {
  return kvq_codebook_describe(o->codebook, (kvq_codebook_info*)info, err);
}
static kvq_status describe_codebook_layer(const objects* o, void* info) {
  return kvq_codebook_describe_layer(o->codebook, 1, (kvq_codebook_layer_info*)info, err);
}
static kvq_status describe_centres(const objects* o, void* info) {
  return kvq_centres_describe(o->centres, (kvq_centres_info*)info, err);
}
static kvq_status describe_centres_layer(const objects* o, void* info) {
  return kvq_centres_describe_layer(o->centres, 1, (kvq_centres_layer_info*)info, err);
}
static kvq_status describe_router(const objects* o, void* info) {
  return kvq_router_describe(o->router, (kvq_router_info*)info, err);
}
static kvq_status describe_router_group(const objects* o, void* info) {
  return kvq_router_describe_group(o->router, 0, (kvq_router_group_info*)info, err);
}
static kvq_status describe_cache(const objects* o, void* info) {
  return kvq_cache_describe(o->cache, (kvq_cache_info*)info, err);
}
static kvq_status describe_layer(const objects* o, void* info) {
  return kvq_cache_describe_layer(o->routed, 1, (kvq_layer_info*)info, err);
}
static kvq_status describe_cache_usage(const objects* o, void* usage) {
  return kvq_cache_usage(o->cache, NULL, (kvq_usage*)usage, err);
}
static kvq_status describe_sequence_usage(const objects* o, void* usage) {
  return kvq_cache_usage(o->cache, o->sequence, (kvq_usage*)usage, err);
}
static kvq_status predict_usage(const objects* o, void* usage) {
  return kvq_cache_predict_usage(o->cache, 2, 100, 1, (kvq_usage*)usage, err);
}
static kvq_status describe_matrix(const objects* o, void* info) {
  return qp_matrix_describe(o->matrix, (qp_matrix_info*)info, err);
}

#define CHECK_DESCRIBE(argument, type, call) check_describe(o, #type, sizeof(type), argument, call)
static void check_describe(const objects* o, const char* name, size_t known, const char* argument,
                           describe_call describe) {
  const uint32_t refused[] = {0, 1, 2, 3, kMost + 1, UINT32_MAX};
  memory full_memory;
  memory block_memory;
  unsigned char* const full = full_memory.bytes;
  unsigned char* const block = block_memory.bytes;
  uint32_t size;
  size_t i;
  memset(full, kCanary, kBlock);
  set_size(full, (uint32_t)known);
  ACCEPTED(describe(o, full));
  CHECK(size_in(full) == known && all_are(full + known, kBlock - known, kCanary));
  for (size = sizeof(uint32_t); size <= kMost; size += size < known + 16 ? 1 : 997) {
    int good;
    memset(block, kCanary, kBlock);
    set_size(block, size);
    good = describe(o, block) == KVQ_OK && is_part_of(block, size, full, known);
    if (!good) printf("%s, %u bytes\n", name, size);
    CHECK(good);
  }
  for (i = 0; i < sizeof refused / sizeof refused[0]; ++i) {
    char expected[64];
    memset(block, kCanary, kBlock);
    set_size(block, refused[i]);
    sprintf(expected, "%s->struct_size is %u", argument, refused[i]);
    REFUSED(KVQ_E_ARGUMENT, expected, describe(o, block));
    CHECK(size_in(block) == refused[i]);
    CHECK(all_are(block + sizeof(uint32_t), kBlock - sizeof(uint32_t), kCanary));
  }
}

static void describe_functions(const objects* o) {
  CHECK_DESCRIBE("info", kvq_context_info, describe_context);
  if (HAS_PLUGINS) CHECK_DESCRIBE("info", kvq_device_info, describe_device);
  CHECK_DESCRIBE("info", kvq_policy_info, describe_policy);
  CHECK_DESCRIBE("info", kvq_codebook_info, describe_codebook);
  CHECK_DESCRIBE("info", kvq_codebook_layer_info, describe_codebook_layer);
  CHECK_DESCRIBE("info", kvq_centres_info, describe_centres);
  CHECK_DESCRIBE("info", kvq_centres_layer_info, describe_centres_layer);
  CHECK_DESCRIBE("info", kvq_router_info, describe_router);
  CHECK_DESCRIBE("info", kvq_router_group_info, describe_router_group);
  CHECK_DESCRIBE("info", kvq_cache_info, describe_cache);
  CHECK_DESCRIBE("info", kvq_layer_info, describe_layer);
  CHECK_DESCRIBE("usage", kvq_usage, describe_cache_usage);
  CHECK_DESCRIBE("usage", kvq_usage, describe_sequence_usage);
  CHECK_DESCRIBE("usage", kvq_usage, predict_usage);
  CHECK_DESCRIBE("info", qp_matrix_info, describe_matrix);
}

/* --------------------------------------------------------------------------------------- what calls read */

/* Set the required fields of an initialized struct. */
typedef void (*fill_call)(objects* o, void* it);
/* Make a call that needs the struct; destroys its result. */
typedef kvq_status (*use_call)(objects* o, const void* it);

static float q[kQHeads * kHeadDim];
static float kv[kTokenScalars];
static float output[kQHeads * kHeadDim];

static void fill_nothing(objects* o, void* it) { (void)o, (void)it; }

static kvq_status use_context_options(objects* o, const void* it) {
  kvq_context* context = NULL;
  const kvq_status status = kvq_context_create((const kvq_context_options*)it, &context, err);
  (void)o;
  kvq_context_destroy(context);
  return status;
}

static void fill_cache_options(objects* o, void* it) {
  kvq_cache_options* options = (kvq_cache_options*)it;
  (void)o;
  options->n_layers = kLayers;
  options->q_heads = kQHeads;
  options->kv_heads = kKvHeads;
  options->head_dim = kHeadDim;
}
static kvq_status use_cache_options(objects* o, const void* it) {
  kvq_cache* cache = NULL;
  const kvq_status status = kvq_cache_create(o->context, (const kvq_cache_options*)it, NULL, &cache, err);
  kvq_cache_destroy(cache);
  return status;
}

static void fill_append_batch(objects* o, void* it) {
  kvq_append_batch* batch = (kvq_append_batch*)it;
  batch->n_sequences = 1;
  batch->sequences = &o->fork;
  batch->k = kv;
  batch->v = kv;
}
static kvq_status use_append_batch(objects* o, const void* it) {
  return kvq_append_sequences(o->cache, 0, (const kvq_append_batch*)it, err);
}

static void fill_attend_batch(objects* o, void* it) {
  kvq_attend_batch* batch = (kvq_attend_batch*)it;
  batch->n_sequences = 1;
  batch->sequences = (const kvq_sequence* const*)&o->sequence;
  batch->q = q;
  batch->output = output;
}
static kvq_status use_attend_batch(objects* o, const void* it) {
  int32_t layer = 0;
  kvq_status status = KVQ_OK;
  for (; status == KVQ_OK && layer < kLayers; ++layer) {
    status = kvq_attend(o->cache, layer, (const kvq_attend_batch*)it, err);
  }
  return status;
}

/* Compressing needs queries that have been observed. */
static kvq_status use_compress_options(objects* o, const void* it) {
  kvq_attend_batch batch;
  kvq_attend_batch_init(&batch, sizeof(batch));
  fill_attend_batch(o, &batch);
  if (use_attend_batch(o, &batch) != KVQ_OK) return KVQ_E_INTERNAL;
  return kvq_compress(o->cache, o->sequence, (const kvq_compress_options*)it, err);
}

static kvq_status use_quantize_options(objects* o, const void* it) {
  const float weights[kMatrixColumns] = {1.0f};
  qp_matrix* matrix = NULL;
  const kvq_status status =
      qp_quantize(o->context, (const qp_quantize_options*)it, weights, 1, kMatrixColumns, &matrix, err);
  qp_matrix_destroy(matrix);
  return status;
}

static void fill_codebook_trainer_options(objects* o, void* it) {
  kvq_codebook_trainer_options* options = (kvq_codebook_trainer_options*)it;
  (void)o;
  options->n_layers = kLayers;
  options->kv_heads = kKvHeads;
  options->head_dim = kHeadDim;
}
static kvq_status use_codebook_trainer_options(objects* o, const void* it) {
  kvq_codebook_trainer* trainer = NULL;
  const kvq_status status =
      kvq_codebook_trainer_create(o->context, (const kvq_codebook_trainer_options*)it, &trainer, err);
  kvq_codebook_trainer_destroy(trainer);
  return status;
}

static void fill_centres_trainer_options(objects* o, void* it) {
  kvq_centres_trainer_options* options = (kvq_centres_trainer_options*)it;
  (void)o;
  options->n_layers = kLayers;
  options->kv_heads = kKvHeads;
  options->head_dim = kHeadDim;
}
static kvq_status use_centres_trainer_options(objects* o, const void* it) {
  kvq_centres_trainer* trainer = NULL;
  const kvq_status status =
      kvq_centres_trainer_create(o->context, (const kvq_centres_trainer_options*)it, &trainer, err);
  kvq_centres_trainer_destroy(trainer);
  return status;
}

static kvq_status make_router_trainer(objects* o, const kvq_cache_options* cache,
                                      const kvq_router_trainer_options* options) {
  kvq_policy* policy = NULL;
  kvq_router_trainer* trainer = NULL;
  kvq_status status = kvq_policy_load(o->context, kExperts, strlen(kExperts), &policy, NULL);
  if (status != KVQ_OK) return KVQ_E_INTERNAL;
  status = kvq_router_trainer_create(o->context, cache, policy, options, &trainer, err);
  kvq_router_trainer_destroy(trainer);
  kvq_policy_destroy(policy);
  return status;
}
static void fill_router_trainer_options(objects* o, void* it) {
  (void)o;
  ((kvq_router_trainer_options*)it)->mean_bits = 8.0;
}
static kvq_status use_router_trainer_options(objects* o, const void* it) {
  const kvq_cache_options cache = small_cache_options();
  return make_router_trainer(o, &cache, (const kvq_router_trainer_options*)it);
}
static kvq_status use_router_trainer_cache(objects* o, const void* it) {
  const kvq_router_trainer_options options = small_router_options();
  return make_router_trainer(o, (const kvq_cache_options*)it, &options);
}

#define CHECK_READ(argument, type, fill, use) check_read(o, argument, sizeof(type), init_##type, fill, use)
static void check_read(objects* o, const char* argument, size_t known, void (*init)(void* it, size_t size),
                       fill_call fill, use_call use) {
  const uint32_t refused[] = {0, 3, (uint32_t)known - 1, kMost + 1, UINT32_MAX};
  const size_t larger[] = {known + 1, known + 8, kMost};
  memory block_memory;
  unsigned char* const block = block_memory.bytes;
  char expected[80];
  size_t i;
  memset(block, kCanary, kBlock);
  init(block, known);
  fill(o, block);
  ACCEPTED(use(o, block));
  for (i = 0; i < sizeof refused / sizeof refused[0]; ++i) {
    set_size(block, refused[i]);
    sprintf(expected, "%s->struct_size is %u", argument, refused[i]);
    REFUSED(KVQ_E_ARGUMENT, expected, use(o, block));
  }
  for (i = 0; i < sizeof larger / sizeof larger[0]; ++i) {
    const size_t size = larger[i];
    const size_t set[] = {known, size - 1};
    size_t j;
    memset(block, kCanary, kBlock);
    init(block, size);
    fill(o, block);
    ACCEPTED(use(o, block));
    for (j = 0; j < 2; ++j) {
      block[set[j]] = 1;
      sprintf(expected, "byte %lu is not 0", (unsigned long)set[j]);
      REFUSED(KVQ_E_UNSUPPORTED, expected, use(o, block));
      ALSO_MENTIONS(argument);
      block[set[j]] = 0;
    }
  }
}

static void structs_that_are_read(objects* o) {
  CHECK_READ("options", kvq_context_options, fill_nothing, use_context_options);
  CHECK_READ("options", kvq_cache_options, fill_cache_options, use_cache_options);
  CHECK_READ("batch", kvq_append_batch, fill_append_batch, use_append_batch);
  CHECK_READ("batch", kvq_attend_batch, fill_attend_batch, use_attend_batch);
  CHECK_READ("options", kvq_compress_options, fill_nothing, use_compress_options);
  CHECK_READ("options", qp_quantize_options, fill_nothing, use_quantize_options);
  CHECK_READ("options", kvq_codebook_trainer_options, fill_codebook_trainer_options, use_codebook_trainer_options);
  CHECK_READ("options", kvq_centres_trainer_options, fill_centres_trainer_options, use_centres_trainer_options);
  CHECK_READ("options", kvq_router_trainer_options, fill_router_trainer_options, use_router_trainer_options);
  CHECK_READ("cache", kvq_cache_options, fill_cache_options, use_router_trainer_cache);
}

void test_sizes(void) {
  objects o;
  objects_open(&o);
  init_functions();
  errors();
  describe_functions(&o);
  structs_that_are_read(&o);
  objects_close(&o);
}
