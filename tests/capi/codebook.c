/* kvq_codebook_load, _save, _describe: files written here by hand, arguments, limits, failing allocations. */
#include "check.h"
#include "fixture.h"
#include "suites.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kHeaderBytes = 4096, kCodes = 4, kStages = 2, kGroup = 8 };

static int unused_place;

typedef struct text {
  char data[kHeaderBytes];
  size_t size;
} text;

static void add_tensor(text* header, blob* data, int32_t layer, const char* name, const char* shape, size_t n,
                       int is_half) {
  const uint16_t half = 0x3800; /* 0.5 */
  const float one = 1.0f;
  const size_t bytes = n * (is_half ? 2 : 4);
  size_t i;
  data->data = (unsigned char*)realloc(data->data, data->size + bytes);
  for (i = 0; i < n; ++i) {
    if (is_half) memcpy(data->data + data->size + 2 * i, &half, 2);
    if (!is_half) memcpy(data->data + data->size + 4 * i, &one, 4);
  }
  header->size += (size_t)snprintf(header->data + header->size, kHeaderBytes - header->size,
                                   ",\"layers.%d.%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
                                   (int)layer, name, is_half ? "F16" : "F32", shape, data->size, data->size + bytes);
  data->size += bytes;
}

/* Codebooks for the shape of the fixture, as any tool could write them. */
static blob codebook_file(void) {
  text header;
  blob data = {NULL, 0};
  blob file;
  uint64_t length;
  int32_t i;
  header.size = (size_t)snprintf(
      header.data, kHeaderBytes,
      "{\"__metadata__\":{\"type\":\"kvq.codebook\",\"version\":\"1\",\"n_layers\":\"%d\",\"kv_heads\":\"%d\","
      "\"head_dim\":\"%d\",\"rope\":\"half\",\"key_stages\":\"%d\",\"key_codes\":\"%d\",\"key_group\":\"%d\","
      "\"key_norms\":\"head\",\"value_bits\":\"1\",\"value_scope\":\"head\",\"model_id\":\"7f\",\"seed\":\"9\","
      "\"note\":\"by hand\",\"layers.0.tokens\":\"300\",\"layers.0.key_errors\":\"0.5 0.25\",\"layers.0.value_error\":"
      "\"0.5\",\"layers.1.tokens\":\"200\",\"layers.1.key_errors\":\"1 0.75\",\"layers.1.value_error\":\"1e-1\"}",
      kLayers, kKvHeads, kHeadDim, kStages, kCodes, kGroup);
  for (i = 0; i < kLayers; ++i) {
    add_tensor(&header, &data, i, "keys.codes", "2,1,2,4,8,2", 2 * 1 * kStages * kCodes * kGroup * 2, 1);
    add_tensor(&header, &data, i, "values.channel_scale", "2,16", 32, 0);
    add_tensor(&header, &data, i, "values.codes", "2,16,16", 512, 1);
    add_tensor(&header, &data, i, "values.offset", "2,16", 32, 0);
    add_tensor(&header, &data, i, "values.proposal", "2,16,16", 512, 1);
    add_tensor(&header, &data, i, "values.proposal_bias", "2,16", 32, 0);
  }
  header.data[header.size++] = '}';
  length = header.size;
  file.size = 8 + header.size + data.size;
  file.data = (unsigned char*)malloc(file.size);
  memcpy(file.data, &length, 8);
  memcpy(file.data + 8, header.data, header.size);
  memcpy(file.data + 8 + header.size, data.data, data.size);
  blob_free(&data);
  return file;
}

static kvq_codebook* load_codebook(kvq_context* context, const blob* file) {
  kvq_codebook* codebook = NULL;
  ACCEPTED(kvq_codebook_load(context, file->data, file->size, &codebook, err));
  return codebook;
}

static void described(void) {
  blob file = codebook_file();
  fixture f;
  kvq_codebook* codebook;
  kvq_codebook_info info;
  kvq_codebook_layer_info layer;
  fixture_open(&f, NULL, 0, 0);
  codebook = load_codebook(f.context, &file);
  memset(&info, 0x77, sizeof info);
  info.struct_size = sizeof info;
  ACCEPTED(kvq_codebook_describe(codebook, &info, err));
  CHECK(info.struct_size == sizeof info);
  CHECK(info.n_layers == kLayers && info.layers_present == kLayers);
  CHECK(info.kv_heads == kKvHeads && info.head_dim == kHeadDim && info.rope == KVQ_ROPE_HALF);
  CHECK(info.key_stages == kStages && info.key_codes == kCodes && info.key_group == kGroup);
  CHECK(info.key_norms == KVQ_SCOPE_HEAD && info.value_bits == 1 && info.value_scope == KVQ_SCOPE_HEAD);
  CHECK(info.key_true_bits == 2.0 * kStages * 2 / (2 * kGroup) + 16.0 / kHeadDim);
  CHECK(info.value_true_bits == 1.0 + 16.0 / kHeadDim);
  CHECK(info.key_error == 0.5 && info.value_error == 0.3);
  CHECK(info.tokens == 200 && info.seed == 9 && info.model_id == 0x7F);
  CHECK(info.bytes == 4 * kLayers * (256 + 32 + 512 + 32 + 512 + 32));
  CHECK(strcmp(info.note, "by hand") == 0);

  layer.struct_size = sizeof layer;
  ACCEPTED(kvq_codebook_describe_layer(codebook, 1, &layer, err));
  CHECK(layer.present == 1 && layer.tokens == 200 && layer.key_error == 0.75 && layer.value_error == 0.1);
  CHECK(layer.key_stage_errors[0] == 1.0 && layer.key_stage_errors[1] == 0.75 && layer.key_stage_errors[2] == 0.0);
  REFUSED(KVQ_E_ARGUMENT, "layer", kvq_codebook_describe_layer(codebook, 2, &layer, err));
  REFUSED(KVQ_E_ARGUMENT, "layer", kvq_codebook_describe_layer(codebook, -1, &layer, err));
  REFUSED(KVQ_E_ARGUMENT, "codebook", kvq_codebook_describe_layer(NULL, 0, &layer, err));
  layer.struct_size = 0;
  REFUSED(KVQ_E_ARGUMENT, "struct_size", kvq_codebook_describe_layer(codebook, 0, &layer, err));
  REFUSED(KVQ_E_ARGUMENT, "codebook", kvq_codebook_describe(NULL, &info, err));
  REFUSED(KVQ_E_ARGUMENT, "info", kvq_codebook_describe(codebook, NULL, err));
  info.struct_size = 3;
  REFUSED(KVQ_E_ARGUMENT, "struct_size", kvq_codebook_describe(codebook, &info, err));
  kvq_codebook_destroy(codebook);
  kvq_codebook_destroy(NULL);
  fixture_close(&f);
  blob_free(&file);
}

static void saved(void) {
  blob file = codebook_file();
  fixture f;
  kvq_codebook* codebook;
  kvq_codebook* again;
  blob first;
  blob second;
  size_t size = 0;
  fixture_open(&f, NULL, 0, 0);
  codebook = load_codebook(f.context, &file);
  SAVE(&first, kvq_codebook_save, codebook);
  again = load_codebook(f.context, &first);
  SAVE(&second, kvq_codebook_save, again);
  CHECK(first.size == second.size && memcmp(first.data, second.data, first.size) == 0);
  /* Too small a buffer is not written; the call returns the size it needs. */
  memset(second.data, 0x77, second.size);
  REFUSED(KVQ_E_BUFFER_SIZE, "capacity", kvq_codebook_save(codebook, second.data, second.size - 1, &size, err));
  CHECK(size == second.size && second.data[0] == 0x77 && second.data[second.size - 1] == 0x77);
  REFUSED(KVQ_E_ARGUMENT, "codebook", kvq_codebook_save(NULL, second.data, second.size, &size, err));
  REFUSED(KVQ_E_ARGUMENT, "size", kvq_codebook_save(codebook, second.data, second.size, NULL, err));
  blob_free(&second);
  blob_free(&first);
  kvq_codebook_destroy(again);
  kvq_codebook_destroy(codebook);
  fixture_close(&f);
  blob_free(&file);
}

static void refused_files(void) {
  blob file = codebook_file();
  fixture f;
  kvq_codebook* codebook = (kvq_codebook*)&unused_place;
  size_t live;
  fixture_open(&f, NULL, 0, 0);
  live = f.memory.live_bytes;
  REFUSED(KVQ_E_ARGUMENT, "context", kvq_codebook_load(NULL, file.data, file.size, &codebook, err));
  CHECK(codebook == NULL);
  REFUSED(KVQ_E_ARGUMENT, "buffer", kvq_codebook_load(f.context, NULL, file.size, &codebook, err));
  REFUSED(KVQ_E_ARGUMENT, "result", kvq_codebook_load(f.context, file.data, file.size, NULL, err));
  codebook = (kvq_codebook*)&unused_place;
  REFUSED(KVQ_E_FORMAT, "bytes", kvq_codebook_load(f.context, file.data, file.size - 1, &codebook, err));
  CHECK(codebook == NULL);
  REFUSED(KVQ_E_FORMAT, NULL, kvq_codebook_load(f.context, file.data, 0, &codebook, err));
  CHECK(f.memory.live_bytes == live);
  fixture_close(&f);
  blob_free(&file);
}

/* The limit may be hit at any allocation; everything allocated before is freed. */
static void limited(void) {
  blob file = codebook_file();
  fixture f;
  uint64_t limit;
  int n_refused = 0;
  int n_loaded = 0;
  fixture_open(&f, NULL, 0, 0);
  limit = f.memory.live_bytes;
  fixture_close(&f);
  for (; n_loaded == 0 && n_refused < 1000; limit += 500) {
    kvq_codebook* codebook = (kvq_codebook*)&unused_place;
    kvq_status status;
    size_t live;
    fixture_open(&f, NULL, limit, 0);
    live = f.memory.live_bytes;
    status = kvq_codebook_load(f.context, file.data, file.size, &codebook, err);
    CHECK(f.memory.live_bytes <= limit);
    CHECK(status == KVQ_OK || (status == KVQ_E_LIMIT && codebook == NULL && f.memory.live_bytes == live));
    if (status == KVQ_OK) ++n_loaded;
    if (status != KVQ_OK) ++n_refused;
    kvq_codebook_destroy(codebook);
    fixture_close(&f);
  }
  CHECK(n_loaded == 1 && n_refused > 10);
  blob_free(&file);
}

/* A codebook, or NULL. */
static kvq_status load(kvq_context* context, const blob* file, kvq_codebook** codebook) {
  kvq_status status;
  *codebook = (kvq_codebook*)&unused_place;
  status = kvq_codebook_load(context, file->data, file->size, codebook, err);
  CHECK(status == KVQ_OK || *codebook == NULL);
  return status;
}

static void failing_allocations(void) {
  blob file = codebook_file();
  fixture f;
  kvq_codebook* codebook = NULL;
  blob saved_once;
  blob target;
  size_t size = 0;
  fixture_open(&f, NULL, 0, 0);
  FAIL_ALLOCATIONS(&f.memory, 1, 6 * kLayers, load(f.context, &file, &codebook));
  SAVE(&saved_once, kvq_codebook_save, codebook);
  SAVE(&target, kvq_codebook_save, codebook);
  FAIL_EACH_ALLOCATION(&f.memory, (memset(target.data, 0, target.size),
                                   kvq_codebook_save(codebook, target.data, target.size, &size, err)));
  CHECK(memcmp(saved_once.data, target.data, target.size) == 0);
  blob_free(&target);
  blob_free(&saved_once);
  kvq_codebook_destroy(codebook);
  fixture_close(&f);
  blob_free(&file);
}

void test_codebook(void) {
  described();
  saved();
  refused_files();
  limited();
  failing_allocations();
}
