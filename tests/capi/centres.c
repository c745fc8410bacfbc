/* kvq_centres_load, _save, _describe: files written here by hand, arguments, limits, failing allocations. */
#include "check.h"
#include "fixture.h"
#include "suites.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kHeaderBytes = 4096, kKeyCentres = 3, kValueCentres = 2 };
enum { kKeyScalars = kKvHeads * kKeyCentres * kHeadDim, kValueScalars = kKvHeads * kValueCentres * kHeadDim };

static int unused_place;

/* Centres for the shape of the fixture, as any tool could write them. */
static blob centres_file(void) {
  const size_t layer_bytes = 2 * (kKeyScalars + kValueScalars);
  char header[kHeaderBytes];
  blob file;
  uint64_t length;
  size_t size;
  size_t i;
  size = (size_t)snprintf(
      header, kHeaderBytes,
      "{\"__metadata__\":{\"type\":\"kvq.centres\",\"version\":\"1\",\"n_layers\":\"%d\",\"kv_heads\":\"%d\","
      "\"head_dim\":\"%d\",\"rope\":\"half\",\"key_centres\":\"%d\",\"value_centres\":\"%d\",\"model_id\":\"7f\","
      "\"seed\":\"9\",\"note\":\"by hand\",\"layers.0.tokens\":\"300\",\"layers.0.key_residual\":\"0.25\","
      "\"layers.0.value_residual\":\"0.5\",\"layers.1.tokens\":\"200\",\"layers.1.key_residual\":\"0.75\","
      "\"layers.1.value_residual\":\"1e-1\"}",
      kLayers, kKvHeads, kHeadDim, kKeyCentres, kValueCentres);
  for (i = 0; i < kLayers; ++i) {
    const size_t begin = i * layer_bytes;
    size += (size_t)snprintf(header + size, kHeaderBytes - size,
                             ",\"layers.%zu.keys.centres\":{\"dtype\":\"F16\",\"shape\":[%d,%d,%d],\"data_offsets\":["
                             "%zu,%zu]},\"layers.%zu.values.centres\":{\"dtype\":\"F16\",\"shape\":[%d,%d,%d],"
                             "\"data_offsets\":[%zu,%zu]}",
                             i, kKvHeads, kKeyCentres, kHeadDim, begin, begin + 2 * kKeyScalars, i, kKvHeads,
                             kValueCentres, kHeadDim, begin + 2 * kKeyScalars, begin + layer_bytes);
  }
  header[size++] = '}';
  length = size;
  file.size = 8 + size + kLayers * layer_bytes;
  file.data = (unsigned char*)malloc(file.size);
  memcpy(file.data, &length, 8);
  memcpy(file.data + 8, header, size);
  memset(file.data + 8 + size, 0x38, kLayers * layer_bytes); /* 0.52734375 in FP16 */
  return file;
}

static kvq_centres* load_centres(kvq_context* context, const blob* file) {
  kvq_centres* centres = NULL;
  ACCEPTED(kvq_centres_load(context, file->data, file->size, &centres, err));
  return centres;
}

static void described(void) {
  blob file = centres_file();
  fixture f;
  kvq_centres* centres;
  kvq_centres_info info;
  kvq_centres_layer_info layer;
  fixture_open(&f, NULL, 0, 0);
  centres = load_centres(f.context, &file);
  memset(&info, 0x77, sizeof info);
  info.struct_size = sizeof info;
  ACCEPTED(kvq_centres_describe(centres, &info, err));
  CHECK(info.struct_size == sizeof info);
  CHECK(info.n_layers == kLayers && info.layers_present == kLayers);
  CHECK(info.kv_heads == kKvHeads && info.head_dim == kHeadDim && info.rope == KVQ_ROPE_HALF);
  CHECK(info.key_centres == kKeyCentres && info.value_centres == kValueCentres);
  CHECK(info.key_residual == 0.5 && info.value_residual == 0.3);
  CHECK(info.tokens == 200 && info.seed == 9 && info.model_id == 0x7F);
  CHECK(info.bytes == 4 * kLayers * (kKeyScalars + kValueScalars));
  CHECK(strcmp(info.note, "by hand") == 0);

  layer.struct_size = sizeof layer;
  ACCEPTED(kvq_centres_describe_layer(centres, 1, &layer, err));
  CHECK(layer.present == 1 && layer.tokens == 200 && layer.key_residual == 0.75 && layer.value_residual == 0.1);
  REFUSED(KVQ_E_ARGUMENT, "layer", kvq_centres_describe_layer(centres, 2, &layer, err));
  REFUSED(KVQ_E_ARGUMENT, "layer", kvq_centres_describe_layer(centres, -1, &layer, err));
  REFUSED(KVQ_E_ARGUMENT, "centres", kvq_centres_describe_layer(NULL, 0, &layer, err));
  layer.struct_size = 0;
  REFUSED(KVQ_E_ARGUMENT, "struct_size", kvq_centres_describe_layer(centres, 0, &layer, err));
  REFUSED(KVQ_E_ARGUMENT, "centres", kvq_centres_describe(NULL, &info, err));
  REFUSED(KVQ_E_ARGUMENT, "info", kvq_centres_describe(centres, NULL, err));
  info.struct_size = 3;
  REFUSED(KVQ_E_ARGUMENT, "struct_size", kvq_centres_describe(centres, &info, err));
  kvq_centres_destroy(centres);
  kvq_centres_destroy(NULL);
  fixture_close(&f);
  blob_free(&file);
}

static void saved(void) {
  blob file = centres_file();
  fixture f;
  kvq_centres* centres;
  kvq_centres* again;
  blob first;
  blob second;
  size_t size = 0;
  fixture_open(&f, NULL, 0, 0);
  centres = load_centres(f.context, &file);
  SAVE(&first, kvq_centres_save, centres);
  again = load_centres(f.context, &first);
  SAVE(&second, kvq_centres_save, again);
  CHECK(first.size == second.size && memcmp(first.data, second.data, first.size) == 0);
  /* Too small a buffer is not written; the call returns the size it needs. */
  memset(second.data, 0x77, second.size);
  REFUSED(KVQ_E_BUFFER_SIZE, "capacity", kvq_centres_save(centres, second.data, second.size - 1, &size, err));
  CHECK(size == second.size && second.data[0] == 0x77 && second.data[second.size - 1] == 0x77);
  REFUSED(KVQ_E_ARGUMENT, "centres", kvq_centres_save(NULL, second.data, second.size, &size, err));
  REFUSED(KVQ_E_ARGUMENT, "size", kvq_centres_save(centres, second.data, second.size, NULL, err));
  blob_free(&second);
  blob_free(&first);
  kvq_centres_destroy(again);
  kvq_centres_destroy(centres);
  fixture_close(&f);
  blob_free(&file);
}

static void refused_files(void) {
  blob file = centres_file();
  fixture f;
  kvq_centres* centres = (kvq_centres*)&unused_place;
  size_t live;
  fixture_open(&f, NULL, 0, 0);
  live = f.memory.live_bytes;
  REFUSED(KVQ_E_ARGUMENT, "context", kvq_centres_load(NULL, file.data, file.size, &centres, err));
  CHECK(centres == NULL);
  REFUSED(KVQ_E_ARGUMENT, "buffer", kvq_centres_load(f.context, NULL, file.size, &centres, err));
  REFUSED(KVQ_E_ARGUMENT, "result", kvq_centres_load(f.context, file.data, file.size, NULL, err));
  centres = (kvq_centres*)&unused_place;
  REFUSED(KVQ_E_FORMAT, "bytes", kvq_centres_load(f.context, file.data, file.size - 1, &centres, err));
  CHECK(centres == NULL);
  REFUSED(KVQ_E_FORMAT, NULL, kvq_centres_load(f.context, file.data, 0, &centres, err));
  file.data[file.size - 1] = 0x7e; /* the last number is NaN */
  REFUSED(KVQ_E_FORMAT, "layers.1.values.centres", kvq_centres_load(f.context, file.data, file.size, &centres, err));
  ALSO_MENTIONS("nan");
  file.data = (unsigned char*)realloc(file.data, file.size + 2);
  memset(file.data + file.size, 0, 2);
  REFUSED(KVQ_E_FORMAT, "bytes", kvq_centres_load(f.context, file.data, file.size + 2, &centres, err));
  CHECK(f.memory.live_bytes == live);
  fixture_close(&f);
  blob_free(&file);
}

/* The limit may be hit at any allocation; everything allocated before is freed. */
static void limited(void) {
  blob file = centres_file();
  fixture f;
  uint64_t limit;
  int n_refused = 0;
  int n_loaded = 0;
  fixture_open(&f, NULL, 0, 0);
  limit = f.memory.live_bytes;
  fixture_close(&f);
  for (; n_loaded == 0 && n_refused < 1000; limit += 100) {
    kvq_centres* centres = (kvq_centres*)&unused_place;
    kvq_status status;
    size_t live;
    fixture_open(&f, NULL, limit, 0);
    live = f.memory.live_bytes;
    status = kvq_centres_load(f.context, file.data, file.size, &centres, err);
    CHECK(f.memory.live_bytes <= limit);
    CHECK(status == KVQ_OK || (status == KVQ_E_LIMIT && centres == NULL && f.memory.live_bytes == live));
    if (status == KVQ_OK) ++n_loaded;
    if (status != KVQ_OK) ++n_refused;
    kvq_centres_destroy(centres);
    fixture_close(&f);
  }
  CHECK(n_loaded == 1 && n_refused > 10);
  blob_free(&file);
}

/* Centres, or NULL. */
static kvq_status load(kvq_context* context, const blob* file, kvq_centres** centres) {
  kvq_status status;
  *centres = (kvq_centres*)&unused_place;
  status = kvq_centres_load(context, file->data, file->size, centres, err);
  CHECK(status == KVQ_OK || *centres == NULL);
  return status;
}

static void failing_allocations(void) {
  blob file = centres_file();
  fixture f;
  kvq_centres* centres = NULL;
  blob saved_once;
  blob target;
  size_t size = 0;
  fixture_open(&f, NULL, 0, 0);
  FAIL_ALLOCATIONS(&f.memory, 1, 4 * kLayers, load(f.context, &file, &centres));
  SAVE(&saved_once, kvq_centres_save, centres);
  SAVE(&target, kvq_centres_save, centres);
  FAIL_EACH_ALLOCATION(&f.memory, (memset(target.data, 0, target.size),
                                   kvq_centres_save(centres, target.data, target.size, &size, err)));
  CHECK(memcmp(saved_once.data, target.data, target.size) == 0);
  blob_free(&target);
  blob_free(&saved_once);
  kvq_centres_destroy(centres);
  fixture_close(&f);
  blob_free(&file);
}

void test_centres(void) {
  described();
  saved();
  refused_files();
  limited();
  failing_allocations();
}
