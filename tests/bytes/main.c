/* Whether snapshots, files and products of linear layers are the same bytes on every instruction set of this machine,
 * and those that expected.txt names for all systems.
 *
 *     kvq_bytes FILE            compares with FILE
 *     kvq_bytes --write FILE    writes it: build/release/bin/kvq_bytes --write tests/bytes/expected.txt
 *
 * Both fail where two instruction sets differ. What is not hashed, since instruction sets and C libraries may round it
 * differently, is compared with float64: attention, and products with weights in FP16, whose sums use FMA where a
 * processor has it. Evictions that score tokens by attention are left out. */
#include "bytes.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { kMostRecords = 512, kNameSize = 120 };

typedef struct entry {
  char name[kNameSize];
  uint64_t hash;
  int n_seen; /* instruction sets that have given it */
} entry;

static entry entries[kMostRecords];
static int n_entries;
static int is_complete; /* names that come later are not expected */
static const char* isa;

static uint64_t fnv1a(const unsigned char* bytes, size_t size) {
  uint64_t hash = UINT64_C(0xcbf29ce484222325);
  size_t i;
  for (i = 0; i < size; ++i) hash = (hash ^ bytes[i]) * UINT64_C(0x100000001b3);
  return hash;
}

static entry* find(const char* name) {
  int i;
  for (i = 0; i < n_entries; ++i) {
    if (strcmp(entries[i].name, name) == 0) return &entries[i];
  }
  return NULL;
}

void record(const char* what, const char* of, const void* bytes, size_t size) {
  const uint64_t hash = fnv1a((const unsigned char*)bytes, size);
  char name[kNameSize];
  entry* known;
  snprintf(name, sizeof name, "%s %s", what, of);
  known = find(name);
  if (known == NULL && !is_complete && n_entries < kMostRecords) {
    known = &entries[n_entries++];
    strcpy(known->name, name);
    known->hash = hash;
  }
  CHECK(known != NULL && known->hash == hash);
  if (known == NULL || known->hash != hash) {
    printf("%s: %s: %016" PRIx64 " instead of %016" PRIx64 "\n", isa, name, hash, known == NULL ? 0 : known->hash);
  }
  if (known != NULL) ++known->n_seen;
}

/* Lines of a name, which has spaces, and a hash. */
static int read_expected(const char* path) {
  char line[kNameSize + 20];
  FILE* file = fopen(path, "r");
  if (file == NULL) return 0;
  while (n_entries < kMostRecords && fgets(line, sizeof line, file) != NULL) {
    char* last = strrchr(line, ' ');
    entry* each = &entries[n_entries];
    if (line[0] == '#') continue;
    if (last == NULL || (size_t)(last - line) >= sizeof each->name) break;
    memcpy(each->name, line, (size_t)(last - line));
    if (sscanf(last, "%" SCNx64, &each->hash) != 1) break;
    ++n_entries;
  }
  is_complete = feof(file);
  fclose(file);
  return is_complete;
}

static kvq_context* context_of(const char* name) {
  kvq_context_options options;
  kvq_context* context = NULL;
  kvq_context_options_init(&options, sizeof options);
  options.cpu_isa = name;
  options.n_threads = THREADS(2);
  ACCEPTED(kvq_context_create(&options, &context, err));
  return context;
}

static int write_expected(const char* path) {
  FILE* file = fopen(path, "wb");
  int i;
  if (file == NULL) return 0;
  fprintf(file, "# NAME HASH, the same on every processor and system; main.c says how this file is written.\n");
  for (i = 0; i < n_entries; ++i) fprintf(file, "%s %016" PRIx64 "\n", entries[i].name, entries[i].hash);
  return fclose(file) == 0;
}

static void run(void) {
  static trained files;
  static blob matrices[64];
  const int n_isas = kvq_cpu_isa_count();
  int i;
  CHECK(n_isas > 0 && (size_t)qp_scheme_count() <= sizeof matrices / sizeof matrices[0]);
  for (i = 0; i < n_isas; ++i) {
    kvq_context* context = context_of(isa = kvq_cpu_isa_name(i));
    printf("%s\n", isa);
    record_training(context, &files);
    record_caches(context, &files);
    record_matrices(context, matrices);
    kvq_context_destroy(context);
  }
  for (i = 0; i < n_entries; ++i) {
    CHECK(entries[i].n_seen == n_isas);
    if (entries[i].n_seen != n_isas) {
      printf("%s: %d times on %d instruction sets\n", entries[i].name, entries[i].n_seen, n_isas);
    }
  }
  printf("%d hashes\n", n_entries);
  blob_free(&files.codebook);
  blob_free(&files.centres);
  blob_free(&files.scales);
  for (i = 0; i < qp_scheme_count(); ++i) blob_free(&matrices[i]);
}

int main(int argc, char** argv) {
  const int writes = argc == 3 && strcmp(argv[1], "--write") == 0;
  if (!writes && argc != 2) {
    fprintf(stderr, "usage: kvq_bytes [--write] FILE\n");
    return 2;
  }
  if (!writes && !read_expected(argv[1])) {
    fprintf(stderr, "%s has other lines than NAME HASH, or cannot be read\n", argv[1]);
    return 2;
  }
  run();
  if (writes && !write_expected(argv[2])) {
    fprintf(stderr, "%s cannot be written\n", argv[2]);
    return 2;
  }
  return finish_checks();
}
