/* kvq_file_type: what a file holds, of every kind, cut short, and changed. */
#include "check.h"
#include "fixture.h"
#include "suites.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static blob read_demo(const char* name) {
  blob b = {NULL, 0};
  char path[1024];
  long size = 0;
  FILE* file;
  sprintf(path, "%s/models/demo/%s", KVQ_SOURCE_DIR, name);
  file = fopen(path, "rb");
  CHECK(file != NULL);
  if (file == NULL) return b;
  fseek(file, 0, SEEK_END);
  size = ftell(file);
  rewind(file);
  b.data = malloc((size_t)size);
  b.size = fread(b.data, 1, (size_t)size, file);
  CHECK(b.size == (size_t)size);
  fclose(file);
  return b;
}

static kvq_file_kind kind_of(kvq_context* context, const void* data, size_t size) {
  kvq_file_kind kind = -1;
  ACCEPTED(kvq_file_type(context, data, size, &kind, err));
  return kind;
}

static kvq_file_kind kind_of_text(kvq_context* context, const char* text) {
  return kind_of(context, text, strlen(text));
}

static void trained_files(kvq_context* context) {
  static const struct {
    const char* name;
    kvq_file_kind kind;
  } kFiles[] = {{"commvq-1bit.safetensors", KVQ_FILE_CODEBOOK},
                {"centres.safetensors", KVQ_FILE_CENTRES},
                {"moqae.safetensors", KVQ_FILE_ROUTER},
                {"model.safetensors", KVQ_FILE_UNKNOWN},
                {"sample.txt", KVQ_FILE_UNKNOWN}};
  size_t i;
  for (i = 0; i < sizeof kFiles / sizeof kFiles[0]; ++i) {
    blob b = read_demo(kFiles[i].name);
    CHECK(kind_of(context, b.data, b.size) == kFiles[i].kind);
    if (b.size > 0)
      CHECK(kind_of(context, b.data, b.size - 1) == KVQ_FILE_UNKNOWN || kFiles[i].kind == KVQ_FILE_UNKNOWN);
    blob_free(&b);
  }
}

static void matrix_file(kvq_context* context) {
  static const float kWeights[16 * 64] = {1.0F, -2.0F};
  const char* const name = "w";
  qp_quantize_options options;
  qp_matrix* matrix = NULL;
  const qp_matrix* matrices[1];
  size_t size = 0;
  char* data;
  qp_quantize_options_init(&options, sizeof options);
  options.scheme = "nuq-4";
  ACCEPTED(qp_quantize(context, &options, kWeights, 16, 64, &matrix, err));
  matrices[0] = matrix;
  ACCEPTED(qp_matrix_save(matrices, &name, 1, NULL, 0, &size, err));
  data = malloc(size);
  ACCEPTED(qp_matrix_save(matrices, &name, 1, data, size, &size, err));
  CHECK(kind_of(context, data, size) == KVQ_FILE_MATRIX);
  free(data);
  qp_matrix_destroy(matrix);
}

/* A snapshot is told by its mark, whatever follows. */
static void snapshot_file(fixture* f) {
  kvq_sequence* sequence = new_sequence(f->cache);
  blob b;
  size_t size;
  grow(f->cache, sequence, 3);
  b = save_sequence(f->cache, sequence);
  CHECK(kind_of(f->context, b.data, b.size) == KVQ_FILE_SNAPSHOT);
  CHECK(kind_of(f->context, b.data, 8) == KVQ_FILE_SNAPSHOT);
  for (size = 0; size < 8; ++size) CHECK(kind_of(f->context, b.data, size) == KVQ_FILE_UNKNOWN);
  ((char*)b.data)[0] ^= 1;
  CHECK(kind_of(f->context, b.data, b.size) == KVQ_FILE_UNKNOWN);
  blob_free(&b);
  kvq_sequence_destroy(sequence);
}

static void texts(kvq_context* context) {
  CHECK(kind_of_text(context, "version: 1\nkeys: int4\n") == KVQ_FILE_POLICY);
  CHECK(kind_of_text(context, "{version: 1, router: {experts: [fp16, int4]}}") == KVQ_FILE_POLICY);
  CHECK(kind_of_text(context, "# a comment\nkeys: nonsense\nversion: 7\n") == KVQ_FILE_POLICY);
  CHECK(kind_of_text(context, "version: 1\ncache: {keys: int4, values: int4}\n") == KVQ_FILE_PLAN);
  CHECK(kind_of_text(context, "weights:\n  \"a: b\": tcx-3\nversion: 1\n") == KVQ_FILE_PLAN);
  /* Sections are what a document has, not what stands in it. */
  CHECK(kind_of_text(context, "version: 1\nnote: \"\n\ncache: none\"\n") == KVQ_FILE_POLICY);
  CHECK(kind_of_text(context, "# \"kvq.router\"\nversion: 1\n") == KVQ_FILE_POLICY);
  CHECK(kind_of_text(context, "gs2") == KVQ_FILE_UNKNOWN);
  CHECK(kind_of_text(context, "") == KVQ_FILE_UNKNOWN);
  CHECK(kind_of_text(context, "version: [") == KVQ_FILE_UNKNOWN);
  CHECK(kind_of_text(context, "version: &a 1\nkeys: *a\n") == KVQ_FILE_UNKNOWN);
  CHECK(kind_of_text(context, "keys: int4\n") == KVQ_FILE_UNKNOWN);
}

/* A type is what the metadata say, in a header that holds together. */
static void headers(kvq_context* context) {
  static const struct {
    const char* header;
    kvq_file_kind kind;
  } kHeaders[] = {{"{\"__metadata__\":{\"type\":\"kvq.router\"}}", KVQ_FILE_ROUTER},
                  {"{\"__metadata__\":{\"type\":\"kvq.weights\",\"version\":\"99\"}}", KVQ_FILE_MATRIX},
                  {"{\"__metadata__\":{\"type\":\"kvq.routers\"}}", KVQ_FILE_UNKNOWN},
                  {"{\"__metadata__\":{\"note\":\"\\\"kvq.router\\\"\"}}", KVQ_FILE_UNKNOWN},
                  {"{\"__metadata__\":{\"type\":\"kvq.router\",\"type\":\"kvq.centres\"}}", KVQ_FILE_UNKNOWN},
                  {"{\"__metadata__\":{\"type\":\"kvq.router\"}", KVQ_FILE_UNKNOWN},
                  {"{}", KVQ_FILE_UNKNOWN}};
  char file[256];
  size_t i;
  for (i = 0; i < sizeof kHeaders / sizeof kHeaders[0]; ++i) {
    const size_t length = strlen(kHeaders[i].header);
    memset(file, 0, 8);
    file[0] = (char)length;
    memcpy(file + 8, kHeaders[i].header, length);
    CHECK(kind_of(context, file, 8 + length) == kHeaders[i].kind);
  }
  memset(file, 0xFF, sizeof file);
  CHECK(kind_of(context, file, sizeof file) == KVQ_FILE_UNKNOWN);
}

void test_file_type(void) {
  fixture f;
  kvq_file_kind kind = 42;
  fixture_open(&f, "int4", 0, 0);
  trained_files(f.context);
  matrix_file(f.context);
  snapshot_file(&f);
  texts(f.context);
  headers(f.context);
  REFUSED(KVQ_E_ARGUMENT, "context", kvq_file_type(NULL, "", 0, &kind, err));
  REFUSED(KVQ_E_ARGUMENT, "data", kvq_file_type(f.context, NULL, 0, &kind, err));
  REFUSED(KVQ_E_ARGUMENT, "kind", kvq_file_type(f.context, "", 0, NULL, err));
  CHECK(kind == 42);
  fixture_close(&f);

  /* A limit leaves no room for what a long header says. */
  fixture_open(&f, "int4", 256 << 10, 0);
  {
    const size_t length = (size_t)1 << 20;
    char* file = malloc(8 + length);
    memset(file, 'x', 8 + length);
    memset(file, 0, 8);
    file[2] = (char)(length >> 16);
    memcpy(file + 8, "{\"__metadata__\":{\"a\":\"", 22);
    memcpy(file + 8 + length - 3, "\"}}", 3);
    REFUSED(KVQ_E_LIMIT, NULL, kvq_file_type(f.context, file, 8 + length, &kind, err));
    CHECK(kind == 42);
    free(file);
  }
  fixture_close(&f);
}
