/* kvq_policy_load: accepted policies, and every kind of invalid policy. */
#include "check.h"
#include "fixture.h"
#include "suites.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static kvq_context* context;
static int unused_place;

static void accept(const char* text) {
  kvq_policy* policy = NULL;
  ACCEPTED(kvq_policy_load(context, text, strlen(text), &policy, err));
  CHECK(policy != NULL);
  kvq_policy_destroy(policy);
}

static void refuse_bytes(const char* text, size_t length, const char* mention) {
  kvq_policy* policy = (kvq_policy*)&unused_place;
  const kvq_status status = kvq_policy_load(context, text, length, &policy, NULL);
  if (status != KVQ_E_FORMAT) printf("policy that should be refused:\n%.200s\n", text);
  REFUSED(KVQ_E_FORMAT, mention, kvq_policy_load(context, text, length, &policy, err));
  CHECK(policy == NULL);
}

static void refuse(const char* text, const char* mention) { refuse_bytes(text, strlen(text), mention); }

static void short_forms(void) {
  accept("fp16");
  accept("int8");
  accept("int4");
  accept("int3");
  accept("int2");
  accept("int8+hadamard");
  accept("int4+hadamard");
  accept("int3+hadamard");
  accept("int2+hadamard");
  refuse("int5", "int5");
  refuse("int16", "int16");
  refuse("INT4", "INT4");
  refuse("fp16+hadamard", "hadamard");
  refuse("int4+", NULL);
  refuse("int4+hadamard+hadamard", NULL);
  refuse("int4+snapkv", "write int4+snapkv:256, or int4+snapkv:25%");
  refuse("q4_0", "write int4, which is nearest");
  CHECK(strstr(err->message, "yaml") == NULL); /* no document */
  accept("int4+adasnap:25%");
  accept("version: 1\neviction: {method: adasnap, budget: 12.5%}\n");
  refuse("int4+adasnap:0%", "or a share of them such as 25%");
  refuse("int4+adasnap:-1%", "budget");
  refuse("int4+adasnap:nan%", "budget");
  refuse("int4+adasnap:101%", "budget");
  refuse("version: 1\neviction: {method: adasnap, budget: 101%}\n", "yaml line 2: budget is \"101%\"");
  accept("fp16+streaming:40");
  accept("int4+h2o:64");
  accept("int4+hadamard+adasnap:128");
  accept("commvq+pyramid:2147483647");
  refuse("int4+snapkv:", NULL); /* for YAML, a map */
  refuse("int4+snapkv:0", "budget");
  refuse("int4+snapkv:31", "window");
  refuse("int4+snapkv:x", "budget");
  refuse("int4+snapkv:99999999999", "budget");
  refuse("int4+snap:64", "known are");
  refuse("+snapkv:64", NULL);
  refuse("snapkv:64", NULL);
  refuse("+hadamard", NULL);
  refuse("4", NULL);
}

static void gain_shapes(void) {
  static const char* const kNames[] = {"gs4", "gs3", "gs2", "gs1", "gt3", "gt2", "gt1"};
  char text[200];
  size_t i;
  for (i = 0; i < sizeof kNames / sizeof kNames[0]; ++i) {
    accept(kNames[i]);
    sprintf(text, "%s+nocentre", kNames[i]);
    accept(text);
    sprintf(text, "%s+nocentre+snapkv:64", kNames[i]);
    accept(text);
    sprintf(text, "version: 1\nkeys: {format: %s, centres: page}\nvalues: {format: %s, hadamard: true, group: 64}\n",
            kNames[i], kNames[i]);
    accept(text);
    sprintf(text, "version: 1\nkeys: {centres: none, format: %s}\n", kNames[i]);
    accept(text);
    sprintf(text, "%s+hadamard", kNames[i]);
    refuse(text, "always rotated");
    ALSO_MENTIONS(kNames[i]);
    sprintf(text, "%s+nocentre+nocentre", kNames[i]);
    refuse(text, "not two of them");
    sprintf(text, "%s+centres+snapkv:64", kNames[i]);
    accept(text);
    sprintf(text, "version: 1\nkeys: {format: %s, centres: trained}\nvalues: {format: %s+centres, group: 64}\n",
            kNames[i], kNames[i]);
    accept(text);
    sprintf(text, "%s+centres+nocentre", kNames[i]);
    refuse(text, "not two of them");
    ALSO_MENTIONS(kNames[i]);
    sprintf(text, "version: 1\nvalues: {format: %s, hadamard: false}\n", kNames[i]);
    refuse(text, "always rotated");
    sprintf(text, "version: 1\nkeys: {format: %s, group: 32}\n", kNames[i]); /* as for integers, values have groups */
    refuse(text, "group");
  }
  accept("gt2/gt1");
  accept("gs2+nocentre/int4+hadamard");
  accept("gt2/gt1+adasnap:128");
  accept("version: 1\nrouter: {experts: [gs4, gt2/gs2+nocentre, gt1], votes: head}\n");
  refuse("gs5", "nearest: gs4");
  ALSO_MENTIONS("policy is \"gs5\"");
  refuse("gs0", "nearest: gs1");
  refuse("gt4", "nearest: gt3");
  refuse("gs", "gs4");
  refuse("GS2", "gs2");
  refuse("gs2+", NULL);
  refuse("gs2+centre", "nearest: gs2+centres");
  refuse("gt2/", "gt2/");
  refuse("/gt2", "/gt2");
  refuse("gt2/gt4", "nearest: gt3");
  refuse("gt2/gt1/gs1", NULL);
  refuse("int4+nocentre", "gain-shape");
  refuse("fp16+nocentre", "gain-shape");
  refuse("version: 1\nrouter: {experts: [gs4, gs2, gs4]}\n", "twice");
  refuse("version: 1\nrouter: {experts: [gs4, gs2/gt5]}\n", "nearest: gt3");
  refuse("version: 1\nkeys: {format: gs2, centres: some}\n", "some");
  ALSO_MENTIONS("none, page or trained");
  refuse("version: 1\nkeys: {format: gs2, centres: [page]}\n", "centres");
  refuse("version: 1\nkeys: {format: gs2, centres: }\n", "centres");
  refuse("version: 1\nkeys: {format: gs2, centres: 256}\n", "256");
  refuse("version: 1\nkeys: {format: gs2, centers: page}\n", "centers");
  refuse("version: 1\nkeys: {format: gs2, centres: page, centres: none}\n", "centres");
  refuse("version: 1\nkeys: {format: int4, centres: page}\n", "gain-shape");
  refuse("version: 1\nvalues: {format: fp16, centres: none}\n", "gain-shape");
  refuse("version: 1\nkeys: {centres: page}\n", "format");
}

/* The formats determine the number of first FP16 pages, unless the policy sets it. */
static void default_sinks(void) {
  static const struct {
    const char* policy;
    int32_t sink;
  } kCases[] = {{"fp16", 0},
                {"int2", 0},
                {"gs4", 0},
                {"gs3", 1},
                {"gs2", 1},
                {"gs1+nocentre", 1},
                {"gt3", 1},
                {"gt2", 1},
                {"gt1", 1},
                {"int4/gt3", 1},
                {"gs2+streaming:64", 1},
                {"version: 1\nkeys: gs2\nsink: 0\n", 0},
                {"version: 1\nkeys: gs2\nsink: 3\n", 3},
                {"version: 1\nkeys: int4\nlayers: [{range: [1, 1], values: gt2}]\n", 1},
                {"version: 1\nkeys: int4\nlayers: [{range: [1, 1], values: gs4}]\n", 0}};
  const kvq_cache_options options = small_cache_options();
  size_t i;
  for (i = 0; i < sizeof kCases / sizeof kCases[0]; ++i) {
    kvq_policy* policy;
    kvq_cache* cache = NULL;
    kvq_cache_info info;
    policy = load_policy(context, kCases[i].policy);
    ACCEPTED(kvq_cache_create(context, &options, policy, &cache, err));
    info.struct_size = sizeof info;
    ACCEPTED(kvq_cache_describe(cache, &info, err));
    if (info.sink != kCases[i].sink) printf("sink of %s\n", kCases[i].policy);
    CHECK(info.sink == kCases[i].sink);
    kvq_cache_destroy(cache);
    kvq_policy_destroy(policy);
  }
}

/* Layers describe their formats by the names that policies use. */
static void names_of_layers(void) {
  static const struct {
    const char* policy;
    const char* formats;
  } kCases[] = {{"gs4", "gs4"},
                {"gt1+nocentre", "gt1+nocentre"},
                {"gt2/gt1", "gt2/gt1"},
                {"version: 1\nkeys: {format: gs2, centres: none, hadamard: true}\nvalues: int2+hadamard\n",
                 "gs2+nocentre/int2+hadamard"}};
  const kvq_cache_options options = small_cache_options();
  size_t i;
  for (i = 0; i < sizeof kCases / sizeof kCases[0]; ++i) {
    kvq_policy* policy = load_policy(context, kCases[i].policy);
    kvq_cache* cache = NULL;
    kvq_layer_info info;
    ACCEPTED(kvq_cache_create(context, &options, policy, &cache, err));
    info.struct_size = sizeof info;
    ACCEPTED(kvq_cache_describe_layer(cache, 1, &info, err));
    CHECK(info.n_formats == 1 && strcmp(info.formats, kCases[i].formats) == 0);
    kvq_cache_destroy(cache);
    kvq_policy_destroy(policy);
  }
}

static void evictions(void) {
  const struct {
    const char* text;
    int32_t budget;
    int32_t window;
  } described[] = {
      {"fp16", 0, 0},
      {"int4+snapkv:64", 64, 32},
      {"version: 1\neviction: {method: adapyramid, budget: 100, window: 8, alpha: 0.2, beta: 5}\n", 100, 8}};
  kvq_policy_info info;
  size_t i;
  for (i = 0; i < sizeof described / sizeof described[0]; ++i) {
    kvq_policy* policy = NULL;
    ACCEPTED(kvq_policy_load(context, described[i].text, strlen(described[i].text), &policy, err));
    info.struct_size = sizeof info;
    ACCEPTED(kvq_policy_describe(policy, &info, err));
    CHECK(info.eviction_budget == described[i].budget && info.eviction_window == described[i].window);
    info.struct_size = 3;
    REFUSED(KVQ_E_ARGUMENT, "struct_size", kvq_policy_describe(policy, &info, err));
    REFUSED(KVQ_E_ARGUMENT, "info", kvq_policy_describe(policy, NULL, err));
    kvq_policy_destroy(policy);
  }
  REFUSED(KVQ_E_ARGUMENT, "policy", kvq_policy_describe(NULL, &info, err));
  accept("version: 1\nkeys: int4\neviction: {method: h2o, budget: 64, window: 1}\n");
  accept(
      "version: 1\neviction: {budget: 64, score: mass, layers: pyramid, heads: reserved, alpha: 1, pooling: mean, "
      "group: max, kernel: 1}\n");
  accept("version: 1\neviction: {budget: 64, score: streaming, first: 0, heads: together}\n");
  refuse("version: 1\neviction: snapkv\n", "map");
  refuse("version: 1\neviction: {method: snapkv}\n", "budget");
  refuse("version: 1\neviction: {method: snap, budget: 64}\n", "snap");
  refuse("version: 1\neviction: {method: [snapkv], budget: 64}\n", "method");
  refuse("version: 1\neviction: {method: snapkv, budget: 0}\n", "budget");
  refuse("version: 1\neviction: {method: snapkv, budget: -5}\n", "-5");
  refuse("version: 1\neviction: {method: snapkv, budget: 16}\n", "window");
  refuse("version: 1\neviction: {method: snapkv, budget: 64, window: 65}\n", "65");
  refuse("version: 1\neviction: {method: snapkv, budget: 64, window: 0}\n", "window");
  refuse("version: 1\neviction: {method: snapkv, budget: 64, kernel: 6}\n", "odd");
  refuse("version: 1\neviction: {method: adasnap, budget: 64, alpha: 1.5}\n", "1.5");
  refuse("version: 1\neviction: {method: adasnap, budget: 64, alpha: -0.1}\n", "alpha");
  refuse("version: 1\neviction: {method: adasnap, budget: 64, alpha: nan}\n", "alpha");
  refuse("version: 1\neviction: {method: pyramid, budget: 64, beta: 0}\n", "beta");
  refuse("version: 1\neviction: {budget: 64, heads: all}\n", "adaptive");
  refuse("version: 1\neviction: {budget: 64, score: [mass]}\n", "score");
  refuse("version: 1\neviction: {budget: 64, pool: 7}\n", "pool");
}

static void routers(void) {
  accept("version: 1\nrouter: {experts: [fp16, int4, int2]}\n");
  accept("version: 1\nsink: 1\nrouter: {experts: [int8/int4, commvq], votes: head}\ncommvq: {beam: 2}\n");
  accept("version: 1\nrouter: {experts: [int8, int2]}\neviction: {method: h2o, budget: 64}\n");
  refuse("version: 1\nrouter: int4\n", "map");
  refuse("version: 1\nrouter: {votes: head}\n", "experts");
  refuse("version: 1\nrouter: {experts: int4}\n", "list");
  refuse("version: 1\nrouter: {experts: [int4]}\n", "2 to 8");
  refuse("version: 1\nrouter: {experts: [fp16, int8, int4, int3, int2, int8/int4, int4/int3, int3/int2, int4/int2]}\n",
         "2 to 8");
  refuse("version: 1\nrouter: {experts: [int4, int5]}\n", "int5");
  refuse("version: 1\nrouter: {experts: [int4, int2/int1]}\n", "int2/int1");
  refuse("version: 1\nrouter: {experts: [int4, [int2]]}\n", "expert");
  refuse("version: 1\nrouter: {experts: [int4, int2, int4]}\n", "twice");
  refuse("version: 1\nrouter: {experts: [int4, int2], votes: page}\n", "page");
  refuse("version: 1\nrouter: {experts: [int4, int2], vote: head}\n", "vote");
  refuse("version: 1\nkeys: int4\nrouter: {experts: [int4, int2]}\n", "keys");
  refuse("version: 1\nrouter: {experts: [int4, int2]}\nvalues: int4\n", "values");
  refuse("version: 1\nrouter: {experts: [int4, int2]}\nlayers: [{range: [0, 0], keys: int8}]\n", "layers");
}

/* Eviction on top of another policy. */
static void added_eviction(void) {
  static const char* const kBases[] = {"int4+hadamard", "version: 1\nsink: 1\nrouter: {experts: [int8, int2]}\n",
                                       "version: 1\neviction: {method: h2o, budget: 64, window: 10}\n"};
  size_t i;
  for (i = 0; i < sizeof kBases / sizeof kBases[0]; ++i) {
    kvq_policy* base = NULL;
    kvq_policy* policy = NULL;
    kvq_policy_info info;
    info.struct_size = sizeof info;
    ACCEPTED(kvq_policy_load(context, kBases[i], strlen(kBases[i]), &base, err));
    ACCEPTED(kvq_policy_with_eviction(context, base, "adasnap", 128, &policy, err));
    ACCEPTED(kvq_policy_describe(policy, &info, err));
    CHECK(info.eviction_budget == 128 && info.eviction_window == (i == 2 ? 10 : 32));
    kvq_policy_destroy(policy);
    policy = (kvq_policy*)&unused_place;
    REFUSED(KVQ_E_ARGUMENT, "snap\"", kvq_policy_with_eviction(context, base, "snap", 128, &policy, err));
    CHECK(policy == NULL);
    REFUSED(KVQ_E_ARGUMENT, "budget is 9", kvq_policy_with_eviction(context, base, "snapkv", 9, &policy, err));
    REFUSED(KVQ_E_ARGUMENT, "budget is -1", kvq_policy_with_eviction(context, base, "snapkv", -1, &policy, err));
    REFUSED(KVQ_E_ARGUMENT, "method", kvq_policy_with_eviction(context, base, NULL, 64, &policy, err));
    REFUSED(KVQ_E_ARGUMENT, "policy", kvq_policy_with_eviction(context, NULL, "h2o", 64, &policy, err));
    REFUSED(KVQ_E_ARGUMENT, "context", kvq_policy_with_eviction(NULL, base, "h2o", 64, &policy, err));
    REFUSED(KVQ_E_ARGUMENT, "result", kvq_policy_with_eviction(context, base, "h2o", 64, NULL, err));
    kvq_policy_destroy(base);
  }
}

static void long_forms(void) {
  accept("version: 1\nkeys: int4\nvalues: int2\n");
  accept(
      "version: 1\nkeys: int4+hadamard\nvalues: {format: int2, hadamard: false, group: 32}\nsink: 1\nrecent: 1\n"
      "layers:\n  - {range: [0, 1], keys: fp16, values: int8}\n");
  accept("version: 1\nkeys: {format: int4, hadamard: true}\nvalues: {format: int4, group: 64}\n");
  accept("version: 1\nvalues: {format: int4, group: 128}\n");
  accept("version: 1\nsink: 0\nrecent: 4\n");
  accept("version: 1\nkeys: gs2\ncalibrate: first\n");
  accept("version: 1\ncalibrate: none\n");
  accept("version: 1 # a comment\nkeys: \"int8\" # another\n");
  accept("{version: 1, keys: int8, values: int8}");
  accept("version: 1\nlayers: []\n");
}

/* The text has a length, not a terminator. */
static void text_need_not_be_terminated(void) {
  const char text[] = {'i', 'n', 't', '4', '?', '?'};
  kvq_policy* policy = NULL;
  ACCEPTED(kvq_policy_load(context, text, 4, &policy, err));
  kvq_policy_destroy(policy);
  refuse_bytes(text, 6, NULL);
}

static void wrong_contents(void) {
  refuse("version: 2\nkeys: int4\n", "version");
  ALSO_MENTIONS("2");
  refuse("version: 1\nkeyz: int4\n", "keyz");
  ALSO_MENTIONS("line 2");
  refuse("version: 1\nkeys: int7\n", "int7");
  ALSO_MENTIONS("line 2");
  refuse("version: 1\nkeys: [int4]\n", "keys");
  refuse("version: 1\nkeys: {format: int4, colour: red}\n", "colour");
  refuse("version: 1\nkeys: {hadamard: true}\n", NULL); /* fp16 pages are never rotated */
  refuse("version: 1\nvalues: {format: int4, hadamard: maybe}\n", "hadamard");
  refuse("version: 1\nvalues: {format: int4, group: 48}\n", "48");
  ALSO_MENTIONS("group");
  refuse("version: 1\nvalues: {format: int4, group: 0}\n", "group");
  refuse("version: 1\nvalues: {format: int4, group: -32}\n", "group");
  refuse("version: 1\nvalues: {format: int4, group: wide}\n", "group");
  refuse("version: 1\nvalues: {format: int4, group: 256}\n", "256");
  refuse("version: 1\nsink: -1\n", "sink");
  ALSO_MENTIONS("-1");
  refuse("version: 1\nsink: 1.5\n", "sink");
  refuse("version: 1\nsink: many\n", "sink");
  refuse("version: 1\nsink: [1]\n", "sink");
  refuse("version: 1\nsink: 99999999999999999999\n", "sink");
  refuse("version: 1\nrecent: -2\n", "recent");
  refuse("version: 1\ncalibrate: last\n", "calibrate");
  refuse("version: 1\ncalibrate: [first]\n", "calibrate");
  refuse("version: 1\nrecent: {}\n", "recent");
  refuse("version: one\n", "version");
  refuse("version: 1\nkeys: int4\nkeys: int2\n", "keys");
  refuse("version: 1\nvalues: {format: int4, format: int2}\n", "format");
  refuse("version: 1\nlayers: 3\n", "layers");
  refuse("version: 1\nlayers: {range: [0, 1], keys: int4}\n", "layers");
  refuse("version: 1\nlayers: [int4]\n", "layers");
  refuse("version: 1\nlayers:\n  - {range: [3, 1], keys: int4}\n", "range");
  ALSO_MENTIONS("line 3");
  refuse("version: 1\nlayers:\n  - {range: [-1, 1], keys: int4}\n", "range");
  refuse("version: 1\nlayers:\n  - {range: [0], keys: int4}\n", "range");
  refuse("version: 1\nlayers:\n  - {range: [0, 1, 2], keys: int4}\n", "range");
  refuse("version: 1\nlayers:\n  - {range: [a, b], keys: int4}\n", "range");
  refuse("version: 1\nlayers:\n  - {range: 1, keys: int4}\n", "range");
  refuse("version: 1\nlayers:\n  - {keys: int4}\n", "range");
  refuse("version: 1\nlayers:\n  - {range: [0, 0], sink: 3}\n", "sink");
}

static void malformed_text(void) {
  refuse("version: 1\nkeys: {format: int4\n", "line");
  refuse("version: 1\nkeys: \"int4\n", "line");
  refuse("version: 1\n\tkeys: int4\n", "line");
  refuse("version: 1\n keys: int4\n", NULL);
  refuse("]", NULL);
  refuse("- int4\n- int2\n", NULL);
  refuse("version: 1\n---\nkeys: int4\n", NULL); /* a second document */
  refuse("# nothing but a comment\n", NULL);
  refuse("\n\n   \n", NULL);
  refuse("~", NULL);
  refuse("version: 1\nkeys: *missing\n", NULL);
  refuse("version: 1\nkeys: !!binary int4\nvalues: !custom {a: b}\n", NULL);
  refuse("\xff\xfe\x00k", NULL);
  refuse("version: 1\nkeys: int4\xc3\x28\n", NULL);
  refuse_bytes("version: 1\nkeys: int4\0\n", 23, NULL);
  refuse_bytes("int4\0", 5, NULL);
  refuse_bytes("\0\0\0\0", 4, NULL);
}

static void deep_nesting(void) {
  enum { kDepth = 10000 };
  const char* const openings[] = {"[", "{a: ", "- ", "? ", "[{a: "};
  size_t i;
  for (i = 0; i < sizeof openings / sizeof openings[0]; ++i) {
    const size_t width = strlen(openings[i]);
    char* text = (char*)malloc(kDepth * width + 64);
    size_t length;
    int depth;
    length = (size_t)sprintf(text, "version: 1\nkeys:\n  ");
    if (i == 0) length = 0; /* and once from the first byte */
    for (depth = 0; depth < kDepth; ++depth) memcpy(text + length + (size_t)depth * width, openings[i], width);
    length += kDepth * width;
    text[length] = '\0';
    refuse(text, NULL);
    free(text);
  }
}

/* Nested aliases that would expand to 10^9 nodes. */
static void alias_bomb(void) {
  char text[2048];
  size_t length = (size_t)sprintf(text, "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
  int level;
  int copy;
  for (level = 1; level < 9; ++level) {
    length += (size_t)sprintf(text + length, "a%d: &a%d [", level, level);
    for (copy = 0; copy < 10; ++copy) {
      length += (size_t)sprintf(text + length, "%s*a%d", copy == 0 ? "" : ", ", level - 1);
    }
    length += (size_t)sprintf(text + length, "]\n");
  }
  sprintf(text + length, "version: 1\nkeys: *a8\n");
  refuse(text, NULL);
  refuse("version: 1\nkeys: &loop {format: int4, hadamard: *loop}\n", NULL);
  refuse("&self [*self]", NULL);
}

static void ways_of_attention(void) {
  accept("version: 1\nkeys: commvq\ncommvq: {attention: auto}\n");
  accept("version: 1\nkeys: commvq\ncommvq: {attention: tables}\n");
  accept("version: 1\nkeys: commvq\ncommvq: {attention: rebuild, beam: 2}\n");
  accept("version: 1\nkeys: commvq\ncommvq: {attention: rebuild, flips: 0}\n");
  refuse("version: 1\ncommvq: {attention: naive}\n", "naive");
  refuse("version: 1\ncommvq: {attention: [tables]}\n", "attention");
  refuse("version: 1\ncommvq: {attend: tables}\n", "attend");
}

/* More than the documented 1 MiB is an argument out of range or a malformed input; either way it is refused. */
static void oversized_text(void) {
  const size_t size = (size_t)2 << 20;
  char* text = (char*)malloc(size);
  kvq_policy* policy = (kvq_policy*)&unused_place;
  kvq_status status;
  memset(text, ' ', size);
  memcpy(text, "version: 1\n#", 12);
  status = kvq_policy_load(context, text, size, &policy, err);
  CHECK(status == KVQ_E_ARGUMENT || status == KVQ_E_FORMAT);
  CHECK(policy == NULL);
  CHECK(strstr(last_error.message, "2097152") != NULL || strstr(last_error.message, "1048576") != NULL ||
        strstr(last_error.message, "MiB") != NULL);
  text[((size_t)1 << 20) - 1] = '\n';
  policy = NULL;
  ACCEPTED(kvq_policy_load(context, text, (size_t)1 << 20, &policy, err));
  kvq_policy_destroy(policy);
  status = kvq_policy_load(context, "int4", SIZE_MAX, &policy, err);
  CHECK(status == KVQ_E_ARGUMENT || status == KVQ_E_FORMAT);
  free(text);
}

static void bad_arguments(void) {
  kvq_policy* policy = (kvq_policy*)&unused_place;
  kvq_status status;
  REFUSED(KVQ_E_ARGUMENT, "context", kvq_policy_load(NULL, "int4", 4, &policy, err));
  CHECK(policy == NULL);
  policy = (kvq_policy*)&unused_place;
  REFUSED(KVQ_E_ARGUMENT, "yaml", kvq_policy_load(context, NULL, 4, &policy, err));
  CHECK(policy == NULL);
  REFUSED(KVQ_E_ARGUMENT, "result", kvq_policy_load(context, "int4", 4, NULL, err));
  policy = (kvq_policy*)&unused_place;
  status = kvq_policy_load(context, "int4", 0, &policy, err); /* no text at all */
  CHECK(status == KVQ_E_ARGUMENT || status == KVQ_E_FORMAT);
  CHECK(policy == NULL);
  kvq_policy_destroy(NULL);
}

/* Only the cache knows the number of layers. */
static void layer_ranges_meet_the_cache(void) {
  kvq_cache_options options = small_cache_options();
  const char* beyond = "version: 1\nlayers:\n  - {range: [0, 2], keys: int4}\n"; /* two layers: 0 and 1 */
  const char* inside = "version: 1\nlayers:\n  - {range: [1, 1], keys: int4}\n";
  kvq_policy* policy = load_policy(context, beyond);
  kvq_cache* cache = (kvq_cache*)&unused_place;
  REFUSED(KVQ_E_ARGUMENT, "range", kvq_cache_create(context, &options, policy, &cache, err));
  ALSO_MENTIONS("2");
  CHECK(cache == NULL);
  kvq_policy_destroy(policy);
  policy = load_policy(context, inside);
  ACCEPTED(kvq_cache_create(context, &options, policy, &cache, err));
  kvq_policy_destroy(policy); /* the cache keeps what it needs */
  {
    kvq_sequence* sequence = new_sequence(cache);
    grow(cache, sequence, 70);
    kvq_sequence_destroy(sequence);
  }
  kvq_cache_destroy(cache);
}

/* A cache keeps nothing of its policy, whose context may be destroyed first. */
static void policies_of_other_contexts(void) {
  const char* const text = "version: 1\nkeys: int4\nvalues: int2\nlayers:\n  - {range: [1, 1], keys: fp16}\n";
  const kvq_cache_options options = small_cache_options();
  float out[kQHeads * kHeadDim];
  fixture f;
  fixture other;
  kvq_policy* policy;
  kvq_cache* cache = NULL;
  kvq_sequence* sequence;
  fixture_open(&f, NULL, 0, 0);
  fixture_open(&other, NULL, 0, 0);
  policy = load_policy(other.context, text);
  ACCEPTED(kvq_cache_create(f.context, &options, policy, &cache, err));
  kvq_policy_destroy(policy);
  fixture_close(&other);
  sequence = new_sequence(cache);
  grow(cache, sequence, 100);
  ACCEPTED(attend_last(cache, sequence, out));
  kvq_sequence_destroy(sequence);
  kvq_cache_destroy(cache);
  fixture_close(&f);
}

void test_policy(void) {
  ACCEPTED(kvq_context_create(NULL, &context, err));
  short_forms();
  gain_shapes();
  default_sinks();
  names_of_layers();
  evictions();
  routers();
  added_eviction();
  long_forms();
  ways_of_attention();
  text_need_not_be_terminated();
  wrong_contents();
  malformed_text();
  deep_nesting();
  alias_bomb();
  oversized_text();
  bad_arguments();
  layer_ranges_meet_the_cache();
  kvq_context_destroy(context);
  policies_of_other_contexts();
}
