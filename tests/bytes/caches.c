#include "bytes.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Tokens at which a sequence that finds its scales has what it needs, and all. */
enum { kPrompt = 130, kTokens = 205, kMostDim = 64, kKeyScalars = kTokens * kKvHeads * kMostDim };

/* Attention multiplies queries and probabilities of 8 bits by integer pages where a processor can. */
static const double kLargestError = 2e-2;

typedef struct shape {
  int32_t head_dim;
  kvq_rope rope;
  int32_t rotary_dim;
} shape;

static const shape kWhole = {kBytesHeadDim, KVQ_ROPE_HALF, kBytesHeadDim};
static const shape kPartial = {40, KVQ_ROPE_INTERLEAVED, 16}; /* of no whole vectors */

/* Policies without trained data, by their names. */
static const char* const kPolicies[] = {
    "fp16",
    "int8",
    "int4",
    "int3",
    "int2",
    "int8+hadamard",
    "int4+hadamard",
    "int3+hadamard",
    "int2+hadamard",
    "gs4",
    "gs3",
    "gs2",
    "gs1",
    "gt3",
    "gt2",
    "gt1",
    "gs4+nocentre",
    "gs2+nocentre",
    "gt2+nocentre",
    "int8/int4+hadamard",
    "int2+hadamard/gt3",
    "gs3/gt1",
    "fp16/gs2",
    "int4/fp16",
    "{version: 1, keys: gs3, values: gs2, calibrate: none}",
    "{version: 1, keys: int4, values: {format: int2, group: 64}, calibrate: first, recent: 2}",
    "{version: 1, keys: gs2, values: gs2, sink: 0, layers: [{range: [1, 1], keys: gt1, values: int3}]}"};

typedef enum given { kNothing, kCodebook, kCentres, kScales } given;
typedef struct trained_policy {
  const char* text;
  given with;
} trained_policy;

static const trained_policy kTrained[] = {
    {"commvq", kCodebook},
    {"commvq/int4", kCodebook},
    {"fp16/commvq", kCodebook},
    {"{version: 1, keys: commvq, values: commvq, commvq: {beam: 4, flips: 10}}", kCodebook},
    {"gs4+centres", kCentres},
    {"gs3+centres/int8", kCentres},
    {"gs2+centres/gt1+centres", kCentres},
    {"gs1+centres", kCentres},
    {"gt3+centres", kCentres},
    {"gt2+centres/gs2", kCentres},
    {"int4", kScales},
    {"int2+hadamard", kScales},
    {"gs2", kScales},
    {"gt1", kScales}};

typedef struct tokens {
  float k[kLayers][kKeyScalars];
  float v[kLayers][kKeyScalars];
  float q[kQHeads * kMostDim];
} tokens;

static void fill_tokens(tokens* t, const shape* s) {
  const size_t channels = (size_t)s->head_dim;
  const size_t n = (size_t)kTokens * kKvHeads * channels;
  uint32_t layer;
  size_t i;
  for (layer = 0; layer < kLayers; ++layer) {
    fill_exactly(t->k[layer], n, channels, 10 + layer);
    fill_exactly(t->v[layer], n, channels, 20 + layer);
  }
  fill_exactly(t->q, (size_t)kQHeads * channels, channels, 30);
  for (i = 0; i < (size_t)kQHeads * channels; ++i) t->q[i] /= 16.0f; /* so that many tokens count */
}

static kvq_cache* cache_of(kvq_context* context, const shape* s, const kvq_policy* policy, given with,
                           const trained* files) {
  kvq_cache_options options = small_cache_options();
  kvq_codebook* codebook = NULL;
  kvq_centres* centres = NULL;
  kvq_cache* cache = NULL;
  options.head_dim = s->head_dim;
  options.rope = s->rope;
  options.rotary_dim = s->rotary_dim;
  if (with == kCodebook) {
    ACCEPTED(kvq_codebook_load(context, files->codebook.data, files->codebook.size, &codebook, err));
  }
  if (with == kCentres || with == kScales) {
    const blob* file = with == kCentres ? &files->centres : &files->scales;
    ACCEPTED(kvq_centres_load(context, file->data, file->size, &centres, err));
  }
  options.codebook = codebook;
  options.centres = centres;
  ACCEPTED(kvq_cache_create(context, &options, policy, &cache, err));
  kvq_codebook_destroy(codebook);
  kvq_centres_destroy(centres);
  return cache;
}

/* Append tokens `begin` to `end` - 1 to all layers. */
static void append(kvq_cache* cache, kvq_sequence* sequence, const tokens* t, const shape* s, int begin, int end) {
  const int32_t first = begin * kKvHeads * s->head_dim;
  int32_t layer;
  for (layer = 0; layer < kLayers; ++layer) {
    ACCEPTED(
        kvq_append(cache, sequence, layer, end - begin, t->k[layer] + first, t->v[layer] + first, KVQ_F32, NULL, err));
  }
}

static void attend(kvq_cache* cache, const kvq_sequence* sequence, int32_t layer, const tokens* t, float* output) {
  kvq_attend_batch batch;
  kvq_attend_batch_init(&batch, sizeof batch);
  batch.n_sequences = 1;
  batch.sequences = &sequence;
  batch.q = t->q;
  batch.output = output;
  ACCEPTED(kvq_attend(cache, layer, &batch, err));
}

/* A query as the library rotates it. */
static void rotate(const shape* s, const float* q, int position, double* rotated) {
  const int pairs = s->rotary_dim / 2;
  int i;
  for (i = 0; i < s->head_dim; ++i) rotated[i] = (double)q[i];
  for (i = 0; i < pairs; ++i) {
    const int a = s->rope == KVQ_ROPE_HALF ? i : 2 * i;
    const int b = s->rope == KVQ_ROPE_HALF ? i + pairs : 2 * i + 1;
    const double angle = position * pow(10000.0, -2.0 * i / s->rotary_dim);
    rotated[a] = (double)q[a] * cos(angle) - (double)q[b] * sin(angle);
    rotated[b] = (double)q[a] * sin(angle) + (double)q[b] * cos(angle);
  }
}

/* Attention of one query head to the decoded keys and values of its KV head. */
static void expect(const shape* s, const float* k, const float* v, int n, const double* q, double* expected) {
  double weights[kTokens];
  double largest = -INFINITY;
  double sum = 0.0;
  int token, i;
  for (token = 0; token < n; ++token) {
    double logit = 0.0;
    for (i = 0; i < s->head_dim; ++i) logit += q[i] * (double)k[token * s->head_dim + i];
    weights[token] = logit / sqrt(s->head_dim);
    largest = fmax(largest, weights[token]);
  }
  for (i = 0; i < s->head_dim; ++i) expected[i] = 0.0;
  for (token = 0; token < n; ++token) {
    const double weight = exp(weights[token] - largest);
    sum += weight;
    for (i = 0; i < s->head_dim; ++i) expected[i] += weight * (double)v[token * s->head_dim + i];
  }
  for (i = 0; i < s->head_dim; ++i) expected[i] /= sum;
}

static void check_attention(kvq_cache* cache, const kvq_sequence* sequence, const tokens* t, const shape* s,
                            const char* policy, int n) {
  static float k[kTokens * kMostDim];
  static float v[kTokens * kMostDim];
  float output[kQHeads * kMostDim];
  double q[kMostDim];
  double expected[kMostDim];
  int32_t layer;
  int head, i;
  for (layer = 0; layer < kLayers; ++layer) {
    double error = 0.0;
    double size = 0.0;
    attend(cache, sequence, layer, t, output);
    for (head = 0; head < kQHeads; ++head) {
      ACCEPTED(kvq_sequence_decode(cache, sequence, layer, head * kKvHeads / kQHeads, 0, n, k, v, NULL, err));
      rotate(s, t->q + head * s->head_dim, n - 1, q);
      expect(s, k, v, n, q, expected);
      for (i = 0; i < s->head_dim; ++i) {
        const double difference = (double)output[head * s->head_dim + i] - expected[i];
        error += difference * difference;
        size += expected[i] * expected[i];
      }
    }
    CHECK(sqrt(error / size) <= kLargestError);
    if (!(sqrt(error / size) <= kLargestError)) {
      printf("attention to %d tokens, %s: an error of %g\n", n, policy, sqrt(error / size));
    }
  }
}

static void record_snapshot(const char* what, const char* name, kvq_cache* cache, const kvq_sequence* sequence) {
  blob snapshot = save_sequence(cache, sequence);
  record(what, name, snapshot.data, snapshot.size);
  blob_free(&snapshot);
}

static void record_policy(const char* name, const kvq_policy* policy) {
  char text[4096];
  size_t size = 0;
  ACCEPTED(kvq_policy_save(policy, text, sizeof text, &size, err));
  record("policy", name, text, size);
}

static void record_cache(kvq_context* context, const shape* s, const char* text, given with, const trained* files) {
  static const char* const kGiven[] = {"", ", codebook", ", centres", ", scales"};
  static tokens t;
  kvq_policy* policy = load_calibrating_policy(context, text);
  kvq_cache* cache = cache_of(context, s, policy, with, files);
  kvq_sequence* sequence = new_sequence(cache);
  char name[120];
  snprintf(name, sizeof name, "%s%s, %d channels", text, kGiven[with], (int)s->head_dim);
  fill_tokens(&t, s);
  if (with == kNothing && s == &kWhole) record_policy(text, policy);
  append(cache, sequence, &t, s, 0, 1);
  append(cache, sequence, &t, s, 1, 38);
  append(cache, sequence, &t, s, 38, kPrompt);
  record_snapshot("prompt", name, cache, sequence);
  check_attention(cache, sequence, &t, s, name, kPrompt);
  append(cache, sequence, &t, s, kPrompt, kPrompt + 1);
  append(cache, sequence, &t, s, kPrompt + 1, kTokens);
  record_snapshot("snapshot", name, cache, sequence);
  check_attention(cache, sequence, &t, s, name, kTokens);
  kvq_sequence_destroy(sequence);
  kvq_cache_destroy(cache);
  kvq_policy_destroy(policy);
}

/* A sequence with all tokens, in a cache of its own. */
static kvq_sequence* new_filled(kvq_context* context, const char* text, kvq_cache** cache) {
  static tokens t;
  kvq_policy* policy = load_calibrating_policy(context, text);
  kvq_sequence* sequence;
  *cache = cache_of(context, &kWhole, policy, kNothing, NULL);
  kvq_policy_destroy(policy);
  sequence = new_sequence(*cache);
  fill_tokens(&t, &kWhole);
  append(*cache, sequence, &t, &kWhole, 0, kTokens);
  return sequence;
}

/* Pages that are decoded and encoded again. */
static void record_recoded(kvq_context* context, const char* from, const char* to) {
  kvq_cache* cache;
  kvq_sequence* sequence = new_filled(context, from, &cache);
  kvq_policy* after = load_calibrating_policy(context, to);
  char name[40];
  snprintf(name, sizeof name, "%s to %s", from, to);
  ACCEPTED(kvq_sequence_recode(cache, sequence, after, err));
  record_snapshot("recoded", name, cache, sequence);
  kvq_sequence_destroy(sequence);
  kvq_cache_destroy(cache);
  kvq_policy_destroy(after);
}

/* The first and the newest tokens, whatever attention says. */
static void record_evicted(kvq_context* context, const char* text) {
  kvq_cache* cache;
  kvq_sequence* sequence = new_filled(context, text, &cache);
  ACCEPTED(kvq_compress(cache, sequence, NULL, err));
  record_snapshot("evicted", text, cache, sequence);
  kvq_sequence_destroy(sequence);
  kvq_cache_destroy(cache);
}

void record_caches(kvq_context* context, const trained* files) {
  size_t i;
  for (i = 0; i < sizeof kPolicies / sizeof kPolicies[0]; ++i) {
    record_cache(context, &kWhole, kPolicies[i], kNothing, NULL);
    record_cache(context, &kPartial, kPolicies[i], kNothing, NULL);
  }
  for (i = 0; i < sizeof kTrained / sizeof kTrained[0]; ++i) {
    record_cache(context, &kWhole, kTrained[i].text, kTrained[i].with, files);
  }
  record_recoded(context, "fp16", "int8");
  record_recoded(context, "gs4", "gs2");
  record_recoded(context, "int8", "gt2");
  record_evicted(context, "int4+streaming:64");
}
