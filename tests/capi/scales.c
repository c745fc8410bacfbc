/* Scales of channels: found by weights, by tokens and without what reads them, against float64 sums; which caches take
 * them; refused arguments. */
#include "check.h"
#include "suites.h"
#include "trainer_fixture.h"

#include <math.h>

enum {
  kHidden = 24,
  kQueryRows = kQHeads * kHeadDim,
  kKeyRows = kKvHeads * kHeadDim,
  kGroup = kQHeads / kKvHeads,
  kTokens = 300
};

/* A layer's weights, with a few channels larger than the others. */
typedef struct layer_weights {
  float q[kQueryRows * kHidden], k[kKeyRows * kHidden], v[kKeyRows * kHidden], o[kHidden * kQueryRows];
  float q_bias[kQueryRows], k_bias[kKeyRows], v_bias[kKeyRows], norm[kHidden], q_norm[kHeadDim], k_norm[kHeadDim];
  kvq_attention_weights given;
} layer_weights;

static void make_uneven(float* numbers, int32_t rows, int32_t columns) {
  int32_t i;
  for (i = 0; i < rows * columns; ++i) {
    if (i / columns % 5 == 2) numbers[i] *= 6.0f;
  }
}

static void fill_weights(layer_weights* w) {
  fill_tensor(w->q, sizeof w->q / sizeof(float), 1);
  fill_tensor(w->k, sizeof w->k / sizeof(float), 2);
  fill_tensor(w->v, sizeof w->v / sizeof(float), 3);
  fill_tensor(w->o, sizeof w->o / sizeof(float), 4);
  fill_tensor(w->q_bias, kQueryRows, 5);
  fill_tensor(w->k_bias, kKeyRows, 6);
  fill_tensor(w->v_bias, kKeyRows, 7);
  fill_tensor(w->norm, kHidden, 8);
  fill_tensor(w->q_norm, kHeadDim, 9);
  fill_tensor(w->k_norm, kHeadDim, 10);
  make_uneven(w->k, kKeyRows, kHidden);
  make_uneven(w->v, kKeyRows, kHidden);
  w->k_bias[3] = 40.0f;
  kvq_attention_weights_init(&w->given, sizeof w->given);
  w->given.q_heads = kQHeads;
  w->given.hidden_size = kHidden;
  w->given.q_proj = w->q;
  w->given.k_proj = w->k;
  w->given.v_proj = w->v;
  w->given.o_proj = w->o;
  w->given.q_bias = w->q_bias;
  w->given.k_bias = w->k_bias;
  w->given.v_bias = w->v_bias;
  w->given.input_norm = w->norm;
}

static kvq_centres_trainer_options scale_options(void) {
  kvq_centres_trainer_options options = small_centres_options();
  options.key_centres = options.value_centres = 0;
  options.key_scales = options.value_scales = 1;
  return options;
}

typedef struct scales {
  float keys[kKeyRows], values[kKeyRows], offsets[kKeyRows];
  kvq_centres_layer_info info;
} scales;

static scales read_scales(const kvq_centres* centres, int32_t layer) {
  scales found;
  found.info.struct_size = sizeof found.info;
  ACCEPTED(kvq_centres_read_scales(centres, layer, found.keys, found.values, found.offsets, err));
  ACCEPTED(kvq_centres_describe_layer(centres, layer, &found.info, err));
  return found;
}

/* Scales of layer 0 by these weights. */
static scales scales_by_weights(kvq_context* context, const kvq_centres_trainer_options* options,
                                const kvq_attention_weights* weights) {
  kvq_centres_trainer* trainer = new_centres_trainer(context, options);
  kvq_centres* centres = NULL;
  scales found;
  ACCEPTED(kvq_centres_trainer_add_weights(trainer, 0, weights, err));
  ACCEPTED(kvq_centres_trainer_run(trainer, 0, NULL, NULL, err));
  ACCEPTED(kvq_centres_trainer_result(trainer, &centres, err));
  kvq_centres_trainer_destroy(trainer);
  found = read_scales(centres, 0);
  kvq_centres_destroy(centres);
  return found;
}

static double row_energy(const float* row, const float* norm) {
  double sum = 0.0;
  int32_t i;
  for (i = 0; i < kHidden; ++i) sum += pow((double)row[i] * (norm != NULL ? norm[i] : 1.0), 2.0);
  return sum;
}

/* Share of an offset's energy that the mean of 32 tokens does not take, by its definition. */
static double left_by_mean(double angle) {
  double re = 0.0, im = 0.0;
  int32_t i;
  for (i = 0; i < 32; ++i) re += cos(angle * i) / 32.0, im += sin(angle * i) / 32.0;
  return 1.0 - re * re - im * im;
}

/* Scales of one head in proportion to (read / stored)^(1/4). */
static void check_scales(const float* found, const double* read, const double* stored) {
  double largest = 0.0;
  int32_t i;
  for (i = 0; i < kHeadDim; ++i) largest = fmax(largest, pow(read[i] / stored[i], 0.25));
  for (i = 0; i < kHeadDim; ++i) {
    const double expected = pow(read[i] / stored[i], 0.25) / largest;
    CHECK(fabs(found[i] / expected - 1.0) < 1e-3); /* they are FP16 numbers */
  }
}

static void found_by_weights(void) {
  fixture f;
  layer_weights w;
  kvq_centres_trainer_options options = scale_options();
  scales found;
  int32_t head, i, g;
  fixture_open(&f, NULL, 0, 0);
  fill_weights(&w);
  found = scales_by_weights(f.context, &options, &w.given);
  for (head = 0; head < kKvHeads; ++head) {
    double q[kHeadDim], k[kHeadDim], o[kHeadDim], v[kHeadDim], pairs[2][kHeadDim];
    for (i = 0; i < kHeadDim; ++i) {
      const int32_t row = head * kHeadDim + i;
      const double bias = w.k_bias[row];
      k[i] = row_energy(w.k + row * kHidden, w.norm) +
             bias * bias * left_by_mean(pow(10000.0, -2.0 * (i % (kHeadDim / 2)) / kHeadDim));
      v[i] = row_energy(w.v + row * kHidden, w.norm);
      q[i] = o[i] = 0.0;
      for (g = 0; g < kGroup; ++g) {
        const int32_t query_row = (head * kGroup + g) * kHeadDim + i;
        int32_t j;
        q[i] += row_energy(w.q + query_row * kHidden, w.norm) + pow((double)w.q_bias[query_row], 2.0);
        for (j = 0; j < kHidden; ++j) o[i] += pow((double)w.o[j * kQueryRows + query_row], 2.0);
      }
      CHECK(fabs(found.offsets[row] - w.v_bias[row]) <= 1e-3 * fabs(w.v_bias[row]));
    }
    for (i = 0; i < kHeadDim; ++i) {
      const int32_t other = (i + kHeadDim / 2) % kHeadDim;
      pairs[0][i] = q[i] + q[other];
      pairs[1][i] = k[i] + k[other];
    }
    check_scales(found.keys + head * kHeadDim, pairs[0], pairs[1]);
    check_scales(found.values + head * kHeadDim, o, v);
  }
  CHECK(found.info.present == 1 && found.info.tokens == 0);
  CHECK(found.info.key_offset > 5.0);
  CHECK(found.info.key_imbalance > 2.0 && found.info.value_imbalance > 2.0);
  CHECK(found.info.key_noise > found.info.scaled_key_noise && found.info.scaled_key_noise >= 1.0);
  CHECK(found.info.value_noise > 1.5 && fabs(found.info.scaled_value_noise - 1.0) < 1e-3);
  fixture_close(&f);
}

static void folded_and_rounded(void) {
  fixture f;
  layer_weights w;
  kvq_centres_trainer_options options = scale_options();
  scales found;
  int32_t i, exponent;
  fixture_open(&f, NULL, 0, 0);
  fill_weights(&w);
  w.given.q_norm = w.q_norm;
  w.given.k_norm = w.k_norm;
  found = scales_by_weights(f.context, &options, &w.given);
  CHECK(memcmp(found.keys, found.keys + kHeadDim, sizeof(float) * kHeadDim) != 0); /* the heads differ */
  options.fold = 1;
  found = scales_by_weights(f.context, &options, &w.given);
  CHECK(memcmp(found.keys, found.keys + kHeadDim, sizeof(float) * kHeadDim) == 0);
  for (i = 0; i < kKeyRows; ++i) CHECK(found.offsets[i] == 0.0f);
  options.powers_of_two = 1;
  found = scales_by_weights(f.context, &options, &w.given);
  for (i = 0; i < kKeyRows; ++i) {
    CHECK(frexp(found.keys[i], &exponent) == 0.5 && frexp(found.values[i], &exponent) == 0.5);
  }
  fixture_close(&f);
}

/* Without what reads them, uneven channels become even and even ones stay. */
static void found_without_readers(void) {
  fixture f;
  layer_weights w;
  kvq_centres_trainer_options options = scale_options();
  scales found;
  int32_t i;
  fixture_open(&f, NULL, 0, 0);
  fill_weights(&w);
  w.given.q_proj = w.given.o_proj = NULL;
  w.given.k_bias = NULL;
  found = scales_by_weights(f.context, &options, &w.given);
  CHECK(found.values[1] > 2.0f * found.values[2]); /* rows 2, 7, … are six times as large */
  for (i = 0; i < kKeyRows * kHidden; ++i) w.k[i] = w.v[i] = 0.5f;
  found = scales_by_weights(f.context, &options, &w.given);
  for (i = 0; i < kKeyRows; ++i) CHECK(found.keys[i] == 1.0f && found.values[i] == 1.0f);
  for (i = 0; i < kKeyRows * kHidden; ++i) w.k[i] = w.v[i] = 0.0f;
  found = scales_by_weights(f.context, &options, &w.given);
  for (i = 0; i < kKeyRows; ++i) CHECK(found.keys[i] == 1.0f && found.values[i] == 1.0f);
  fixture_close(&f);
}

static void found_by_tokens(void) {
  fixture f;
  kvq_centres_trainer_options options = scale_options();
  kvq_centres_trainer* trainer;
  kvq_centres* centres = NULL;
  static float k[kTokens * kTokenScalars], v[kTokens * kTokenScalars], q[kTokens * kQueryRows];
  double mean[kTokenScalars], variance[kTokenScalars], queries[kTokenScalars];
  scales found;
  int32_t t, i, head;
  fixture_open(&f, NULL, 0, 0);
  options.rope = KVQ_ROPE_NONE; /* a scale a channel */
  fill_tensor(k, kTokens * kTokenScalars, 1);
  fill_tensor(v, kTokens * kTokenScalars, 2);
  fill_tensor(q, kTokens * kQueryRows, 3);
  for (i = 0; i < kTokens * kTokenScalars; ++i) k[i] = k[i] * (i % 7 == 3 ? 8.0f : 1.0f) + (float)(i % kTokenScalars);
  trainer = new_centres_trainer(f.context, &options);
  ACCEPTED(kvq_centres_trainer_add(trainer, 0, kTokens, k, v, KVQ_F32, err));
  ACCEPTED(kvq_centres_trainer_add_queries(trainer, 0, 100, kQHeads, q, KVQ_F32, err));
  ACCEPTED(kvq_centres_trainer_add_queries(trainer, 0, kTokens - 100, kQHeads, q + 100 * kQueryRows, KVQ_F32, err));
  ACCEPTED(kvq_centres_trainer_run(trainer, 0, NULL, NULL, err));
  ACCEPTED(kvq_centres_trainer_result(trainer, &centres, err));
  found = read_scales(centres, 0);
  CHECK(found.info.tokens == kTokens);
  memset(mean, 0, sizeof mean);
  memset(variance, 0, sizeof variance);
  memset(queries, 0, sizeof queries);
  for (t = 0; t < kTokens; ++t) {
    for (i = 0; i < kTokenScalars; ++i) mean[i] += (double)k[t * kTokenScalars + i] / kTokens;
    for (i = 0; i < kQueryRows; ++i) {
      queries[i / kHeadDim / kGroup * kHeadDim + i % kHeadDim] += pow((double)q[t * kQueryRows + i], 2.0);
    }
  }
  for (t = 0; t < kTokens; ++t) {
    for (i = 0; i < kTokenScalars; ++i) variance[i] += pow(k[t * kTokenScalars + i] - mean[i], 2.0) / kTokens;
  }
  for (head = 0; head < kKvHeads; ++head) {
    check_scales(found.keys + head * kHeadDim, queries + head * kHeadDim, variance + head * kHeadDim);
  }
  kvq_centres_destroy(centres);
  kvq_centres_trainer_destroy(trainer);
  fixture_close(&f);
}

static kvq_centres* all_layers(kvq_context* context, const layer_weights* w, kvq_rope rope) {
  kvq_centres_trainer_options options = scale_options();
  kvq_centres_trainer* trainer;
  kvq_centres* centres = NULL;
  int32_t layer;
  options.rope = rope;
  trainer = new_centres_trainer(context, &options);
  for (layer = 0; layer < kLayers; ++layer) {
    ACCEPTED(kvq_centres_trainer_add_weights(trainer, layer, &w->given, err));
    ACCEPTED(kvq_centres_trainer_run(trainer, layer, NULL, NULL, err));
  }
  ACCEPTED(kvq_centres_trainer_result(trainer, &centres, err));
  kvq_centres_trainer_destroy(trainer);
  return centres;
}

static int caches_take(kvq_context* context, const kvq_centres* centres, kvq_rope rope, const char* text) {
  kvq_cache_options options = small_cache_options();
  kvq_policy* policy = load_policy(context, text);
  kvq_cache* cache = NULL;
  kvq_status status;
  options.rope = rope;
  options.model_id = 7;
  options.centres = centres;
  status = kvq_cache_create(context, &options, policy, &cache, err);
  CHECK(status == KVQ_OK || status == KVQ_E_MISMATCH);
  kvq_policy_destroy(policy);
  kvq_cache_destroy(cache);
  return status == KVQ_OK;
}

static void taken_by_caches(void) {
  fixture f;
  layer_weights w;
  kvq_centres* centres;
  kvq_centres_info info;
  blob file, again;
  fixture_open(&f, NULL, 0, 0);
  fill_weights(&w);
  centres = all_layers(f.context, &w, KVQ_ROPE_HALF);
  CHECK(caches_take(f.context, centres, KVQ_ROPE_HALF, "gs2"));
  CHECK(caches_take(f.context, centres, KVQ_ROPE_HALF, "fp16"));
  CHECK(caches_take(f.context, centres, KVQ_ROPE_NONE, "int4+hadamard")); /* keys that arrive rotated */
  CHECK(!caches_take(f.context, centres, KVQ_ROPE_INTERLEAVED, "gs2"));
  info.struct_size = sizeof info;
  ACCEPTED(kvq_centres_describe(centres, &info, err));
  CHECK(info.key_scales == 1 && info.value_scales == 1 && info.key_centres == 0);
  CHECK(info.bytes == sizeof(float) * 3 * kLayers * kTokenScalars);
  SAVE(&file, kvq_centres_save, centres);
  kvq_centres_destroy(centres);
  centres = NULL;
  ACCEPTED(kvq_centres_load(f.context, file.data, file.size, &centres, err));
  SAVE(&again, kvq_centres_save, centres);
  CHECK(same_blobs(&file, &again));
  blob_free(&file);
  blob_free(&again);
  {
    kvq_cache_options options = small_cache_options();
    kvq_policy* policy = load_policy(f.context, "gs2+centres");
    kvq_cache* cache = NULL;
    options.model_id = 7;
    options.centres = centres;
    REFUSED(KVQ_E_ARGUMENT, "none for keys", kvq_cache_create(f.context, &options, policy, &cache, err));
    options.model_id = 8;
    REFUSED(KVQ_E_MISMATCH, "model_id", kvq_cache_create(f.context, &options, NULL, &cache, err));
    options.model_id = 7;
    options.rotary_dim = kHeadDim / 2; /* other pairs than the scales are for */
    REFUSED(KVQ_E_MISMATCH, "rotary_dim, ", kvq_cache_create(f.context, &options, NULL, &cache, err));
    options.rotary_dim = 0;
    options.kv_heads = kKvHeads / 2;
    REFUSED(KVQ_E_MISMATCH, "kv_heads", kvq_cache_create(f.context, &options, NULL, &cache, err));
    kvq_policy_destroy(policy);
  }
  kvq_centres_destroy(centres);
  fixture_close(&f);
}

static void refused_arguments(void) {
  fixture f;
  layer_weights w;
  kvq_centres_trainer_options options = scale_options();
  kvq_centres_trainer* trainer;
  kvq_centres* centres = NULL;
  kvq_attention_weights given;
  float numbers[kKeyRows];
  fixture_open(&f, NULL, 0, 0);
  fill_weights(&w);
#define BAD(field, value, mention)                                                                    \
  do {                                                                                                \
    options = scale_options();                                                                        \
    options.field = (value);                                                                          \
    REFUSED(KVQ_E_ARGUMENT, mention, kvq_centres_trainer_create(f.context, &options, &trainer, err)); \
  } while (0)
  BAD(key_scales, 2, "key_scales");
  BAD(value_scales, -1, "value_scales");
  BAD(fold, 2, "fold");
  BAD(powers_of_two, 2, "powers_of_two");
  BAD(rotary_dim, 5, "rotary_dim");
  BAD(rotary_dim, kHeadDim + 2, "rotary_dim");
  BAD(rope_base, 0.0f, "rope_base");
#undef BAD
  options = small_centres_options();
  trainer = new_centres_trainer(f.context, &options);
  REFUSED(KVQ_E_STATE, "no scales", kvq_centres_trainer_add_weights(trainer, 0, &w.given, err));
  REFUSED(KVQ_E_STATE, "no scales", kvq_centres_trainer_add_queries(trainer, 0, 1, kQHeads, w.q, KVQ_F32, err));
  kvq_centres_trainer_destroy(trainer);

  options = scale_options();
  trainer = new_centres_trainer(f.context, &options);
  REFUSED(KVQ_E_ARGUMENT, "trainer", kvq_centres_trainer_add_weights(NULL, 0, &w.given, err));
  REFUSED(KVQ_E_ARGUMENT, "weights", kvq_centres_trainer_add_weights(trainer, 0, NULL, err));
  REFUSED(KVQ_E_ARGUMENT, "layer", kvq_centres_trainer_add_weights(trainer, kLayers, &w.given, err));
#define BAD(field, value, mention)                                                              \
  do {                                                                                          \
    given = w.given;                                                                            \
    given.field = (value);                                                                      \
    REFUSED(KVQ_E_ARGUMENT, mention, kvq_centres_trainer_add_weights(trainer, 0, &given, err)); \
  } while (0)
  BAD(struct_size, 3, "struct_size");
  BAD(q_heads, 0, "weights->q_heads");
  BAD(q_heads, 3, "weights->q_heads");
  BAD(hidden_size, 0, "weights->hidden_size");
  BAD(dtype, 9, "weights->dtype");
#undef BAD
#define NOT_FINITE(array, index, mention)                                                         \
  do {                                                                                            \
    fill_weights(&w);                                                                             \
    (array)[index] = NAN;                                                                         \
    w.given.q_norm = w.q_norm;                                                                    \
    REFUSED(KVQ_E_ARGUMENT, mention, kvq_centres_trainer_add_weights(trainer, 0, &w.given, err)); \
  } while (0)
  NOT_FINITE(w.q, 30, "weights->q_proj: row 1");
  NOT_FINITE(w.k, 50, "weights->k_proj: row 2");
  NOT_FINITE(w.v, 0, "weights->v_proj: row 0");
  NOT_FINITE(w.o, 3, "weights->o_proj: column 3");
  NOT_FINITE(w.k_bias, 4, "weights->k_bias: number 4");
  NOT_FINITE(w.norm, 5, "weights->input_norm: number 5");
  NOT_FINITE(w.q_norm, 6, "weights->q_norm: number 6");
#undef NOT_FINITE
  fill_weights(&w);
  REFUSED(KVQ_E_ARGUMENT, "n", kvq_centres_trainer_add_queries(trainer, 0, 0, kQHeads, w.q, KVQ_F32, err));
  REFUSED(KVQ_E_ARGUMENT, "q_heads", kvq_centres_trainer_add_queries(trainer, 0, 1, 3, w.q, KVQ_F32, err));
  REFUSED(KVQ_E_ARGUMENT, "q", kvq_centres_trainer_add_queries(trainer, 0, 1, kQHeads, NULL, KVQ_F32, err));
  REFUSED(KVQ_E_ARGUMENT, "dtype", kvq_centres_trainer_add_queries(trainer, 0, 1, kQHeads, w.q, 7, err));
  w.q[70] = INFINITY;
  REFUSED(KVQ_E_ARGUMENT, "q[70]", kvq_centres_trainer_add_queries(trainer, 0, 2, kQHeads, w.q, KVQ_F32, err));
  fill_weights(&w);
  /* Nothing was taken. */
  REFUSED(KVQ_E_STATE, "k_proj", kvq_centres_trainer_run(trainer, 0, NULL, NULL, err));
  w.given.v_proj = NULL;
  ACCEPTED(kvq_centres_trainer_add_weights(trainer, 0, &w.given, err));
  REFUSED(KVQ_E_STATE, "v_proj", kvq_centres_trainer_run(trainer, 0, NULL, NULL, err));
  fill_weights(&w);
  ACCEPTED(kvq_centres_trainer_add_weights(trainer, 0, &w.given, err));
  ACCEPTED(kvq_centres_trainer_run(trainer, 0, NULL, NULL, err));
  REFUSED(KVQ_E_STATE, "finished", kvq_centres_trainer_add_weights(trainer, 0, &w.given, err));
  REFUSED(KVQ_E_STATE, "finished", kvq_centres_trainer_add_queries(trainer, 0, 1, kQHeads, w.q, KVQ_F32, err));
  ACCEPTED(kvq_centres_trainer_result(trainer, &centres, err));
  kvq_centres_trainer_destroy(trainer);
  REFUSED(KVQ_E_ARGUMENT, "centres", kvq_centres_read_scales(NULL, 0, numbers, NULL, NULL, err));
  REFUSED(KVQ_E_ARGUMENT, "layer", kvq_centres_read_scales(centres, -1, numbers, NULL, NULL, err));
  REFUSED(KVQ_E_STATE, "layer 1 is missing", kvq_centres_read_scales(centres, 1, numbers, NULL, NULL, err));
  ACCEPTED(kvq_centres_read_scales(centres, 0, NULL, NULL, NULL, err));
  {
    kvq_cache_options cache_options = small_cache_options();
    kvq_cache* cache = NULL;
    cache_options.model_id = 7;
    cache_options.centres = centres;
    REFUSED(KVQ_E_ARGUMENT, "finish", kvq_cache_create(f.context, &cache_options, NULL, &cache, err));
  }
  kvq_centres_destroy(centres);
  centres = small_centres(f.context);
  REFUSED(KVQ_E_STATE, "key_scales", kvq_centres_read_scales(centres, 0, numbers, NULL, NULL, err));
  kvq_centres_destroy(centres);
  fixture_close(&f);
}

void test_scales(void) {
  found_by_weights();
  folded_and_rounded();
  found_without_readers();
  found_by_tokens();
  taken_by_caches();
  refused_arguments();
}
