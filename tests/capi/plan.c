/* kvq_plan_*: solving, fusing, rates and plan files; every way their arguments can be wrong; damaged files and failing
 * allocations. */
#include "check.h"
#include "fixture.h"
#include "suites.h"
#include "trainer_fixture.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static kvq_context* context;
static int unused_place;

/* Two choices, with three and two options. */
static const int32_t kCounts[] = {3, 2};
static const double kBytes[] = {10, 6, 2, 8, 4};
static const double kSeconds[] = {1, 2, 3, 1, 1};
static const double kLoss[] = {0, 1, 5, 0, 2};

static kvq_plan_problem problem_of(void) {
  kvq_plan_problem problem;
  kvq_plan_problem_init(&problem, sizeof problem);
  problem.n_choices = 2;
  problem.option_counts = kCounts;
  problem.bytes = kBytes;
  problem.seconds = kSeconds;
  problem.loss = kLoss;
  return problem;
}

static kvq_plan_costs costs_of(void) {
  kvq_plan_costs costs;
  memset(&costs, 0, sizeof costs);
  costs.struct_size = sizeof costs;
  return costs;
}

static void solves(void) {
  kvq_plan_problem problem = problem_of();
  kvq_plan_costs costs = costs_of();
  int32_t chosen[2] = {-1, -1};
  CHECK(isinf(problem.max_bytes) && isinf(problem.max_seconds) && isinf(problem.max_loss));
  CHECK(problem.goal == KVQ_PLAN_LOSS && problem.tolerance == 0.0001);

  ACCEPTED(kvq_plan_solve(context, &problem, chosen, 2, &costs, err));
  CHECK(chosen[0] == 0 && chosen[1] == 0);
  CHECK(costs.bytes == 18 && costs.seconds == 2 && costs.loss == 0 && costs.bound == 0);

  problem.max_bytes = 14; /* 6 + 8 loses 1, 10 + 4 loses 2 */
  ACCEPTED(kvq_plan_solve(context, &problem, chosen, 2, &costs, err));
  CHECK(chosen[0] == 1 && chosen[1] == 0 && costs.bytes == 14 && costs.seconds == 3 && costs.loss == 1);
  CHECK(costs.bound <= 1 && costs.bound > 0.99);
  problem.max_seconds = 2;
  ACCEPTED(kvq_plan_solve(context, &problem, chosen, 2, &costs, err));
  CHECK(chosen[0] == 0 && chosen[1] == 1 && costs.bytes == 14 && costs.seconds == 2 && costs.loss == 2);

  problem = problem_of();
  problem.goal = KVQ_PLAN_BYTES;
  problem.max_loss = 3;
  ACCEPTED(kvq_plan_solve(context, &problem, chosen, 2, &costs, err));
  CHECK(chosen[0] == 1 && chosen[1] == 1 && costs.bytes == 10 && costs.loss == 3);
  problem.goal = KVQ_PLAN_SECONDS;
  problem.max_bytes = 10;
  problem.max_loss = 6;
  ACCEPTED(kvq_plan_solve(context, &problem, chosen, 2, &costs, err));
  CHECK(chosen[0] == 1 && chosen[1] == 1 && costs.seconds == 3);

  /* Costs that are NULL are 0. */
  problem = problem_of();
  problem.seconds = NULL;
  problem.loss = NULL;
  problem.goal = KVQ_PLAN_BYTES;
  ACCEPTED(kvq_plan_solve(context, &problem, chosen, 2, &costs, err));
  CHECK(costs.bytes == 6 && costs.seconds == 0 && costs.loss == 0);
}

static void refuses_problems(void) {
  static const int32_t kNone[] = {3, 0};
  static const int32_t kMany[] = {1 << 24, 1};
  const double infinite = HUGE_VAL;
  double bytes[5];
  kvq_plan_problem problem = problem_of();
  kvq_plan_costs costs = costs_of();
  int32_t chosen[2] = {-7, -7};
  REFUSED(KVQ_E_ARGUMENT, "context", kvq_plan_solve(NULL, &problem, chosen, 2, &costs, err));
  REFUSED(KVQ_E_ARGUMENT, "problem", kvq_plan_solve(context, NULL, chosen, 2, &costs, err));
  REFUSED(KVQ_E_ARGUMENT, "chosen", kvq_plan_solve(context, &problem, NULL, 2, &costs, err));
  REFUSED(KVQ_E_ARGUMENT, "n is 3", kvq_plan_solve(context, &problem, chosen, 3, &costs, err));
  REFUSED(KVQ_E_ARGUMENT, "costs", kvq_plan_solve(context, &problem, chosen, 2, NULL, err));

#define REFUSED_WITH(status, mention, change)                                            \
  do {                                                                                   \
    problem = problem_of();                                                              \
    change;                                                                              \
    REFUSED(status, mention, kvq_plan_solve(context, &problem, chosen, 2, &costs, err)); \
  } while (0)
  REFUSED_WITH(KVQ_E_ARGUMENT, "goal is 3", problem.goal = 3);
  REFUSED_WITH(KVQ_E_ARGUMENT, "n_choices is 0", problem.n_choices = 0);
  REFUSED_WITH(KVQ_E_ARGUMENT, "reserved", problem.reserved = 1);
  REFUSED_WITH(KVQ_E_ARGUMENT, "option_counts is NULL", problem.option_counts = NULL);
  REFUSED_WITH(KVQ_E_ARGUMENT, "option_counts[1] is 0", problem.option_counts = kNone);
  REFUSED_WITH(KVQ_E_ARGUMENT, "16777217", problem.option_counts = kMany);
  REFUSED_WITH(KVQ_E_ARGUMENT, "max_bytes is -1", problem.max_bytes = -1);
  REFUSED_WITH(KVQ_E_ARGUMENT, "max_loss is", problem.max_loss = infinite - infinite);
  REFUSED_WITH(KVQ_E_ARGUMENT, "tolerance is 2", problem.tolerance = 2);
  REFUSED_WITH(KVQ_E_ARGUMENT, "tolerance is -", problem.tolerance = -0.5);
  memcpy(bytes, kBytes, sizeof bytes);
  bytes[3] = -4;
  REFUSED_WITH(KVQ_E_ARGUMENT, "bytes[3] is -4", problem.bytes = bytes);
  bytes[3] = infinite;
  REFUSED_WITH(KVQ_E_ARGUMENT, "loss[3] is inf", problem.loss = bytes);
  bytes[3] = (double)NAN;
  REFUSED_WITH(KVQ_E_ARGUMENT, "seconds[3] is", problem.seconds = bytes);
  REFUSED_WITH(KVQ_E_LIMIT, "max_bytes is 5, but no plan takes less than 6: 1 more", problem.max_bytes = 5);
  REFUSED_WITH(KVQ_E_LIMIT, "max_seconds is 1.5", problem.max_seconds = 1.5);
#undef REFUSED_WITH
  CHECK(chosen[0] == -7 && chosen[1] == -7 && costs.bytes == 0);
}

/* q, k and v in two schemes; alone, or all three together. */
static const int32_t kGroups[] = {1, 2, 4, 7};
static const double kMemberBytes[] = {8, 4, 4, 2, 4, 2};
static const double kMemberLoss[] = {0, 1, 0, 1, 0, 3};
static const double kGroupSeconds[] = {4, 3, 2, 2, 2, 2, 5, 4};

static kvq_plan_fusion_options fusion_options(void) {
  kvq_plan_fusion_options options;
  kvq_plan_fusion_options_init(&options, sizeof options);
  options.n_members = 3;
  options.n_schemes = 2;
  options.n_groups = 4;
  options.groups = kGroups;
  options.bytes = kMemberBytes;
  options.loss = kMemberLoss;
  options.seconds = kGroupSeconds;
  return options;
}

static kvq_plan_grouping_info grouping_of(const kvq_plan_fusion* fusion, int32_t index) {
  kvq_plan_grouping_info info;
  memset(&info, 0, sizeof info);
  info.struct_size = sizeof info;
  ACCEPTED(kvq_plan_fusion_describe_grouping(fusion, index, &info, err));
  return info;
}

static void fuses(void) {
  const kvq_plan_fusion_options options = fusion_options();
  kvq_plan_fusion* fusion = NULL;
  kvq_plan_fusion_info info = {sizeof info, 0, 0, 0};
  kvq_plan_grouping_info first;
  kvq_plan_grouping_info last;
  ACCEPTED(kvq_plan_fusion_create(context, &options, &fusion, err));
  ACCEPTED(kvq_plan_fusion_describe(fusion, &info, err));
  CHECK(info.n_members == 3 && info.n_groupings >= 2);
  /* Without loss: all in the first scheme, and fused because that is faster. */
  first = grouping_of(fusion, 0);
  CHECK(first.loss == 0 && first.bytes == 16 && first.seconds == 5);
  CHECK(first.groups[0] == 7 && first.groups[1] == 7 && first.groups[2] == 7 && first.groups[3] == 0);
  CHECK(first.schemes[0] == 0 && first.schemes[1] == 0 && first.schemes[2] == 0 && first.schemes[3] == 0);
  last = grouping_of(fusion, info.n_groupings - 1);
  CHECK(last.loss == 5 && last.bytes == 8 && last.seconds == 4 && last.groups[1] == 7 && last.schemes[2] == 1);
  {
    kvq_plan_grouping_info none = {sizeof none, 0, 0, 0, 0, {0}, {0}};
    REFUSED(KVQ_E_ARGUMENT, "index", kvq_plan_fusion_describe_grouping(fusion, info.n_groupings, &none, err));
    REFUSED(KVQ_E_ARGUMENT, "index is -1", kvq_plan_fusion_describe_grouping(fusion, -1, &none, err));
    REFUSED(KVQ_E_ARGUMENT, "info", kvq_plan_fusion_describe_grouping(fusion, 0, NULL, err));
  }
  REFUSED(KVQ_E_ARGUMENT, "fusion", kvq_plan_fusion_describe(NULL, &info, err));
  kvq_plan_fusion_destroy(fusion);
  kvq_plan_fusion_destroy(NULL);
}

static void refuses_fusions(void) {
  static const int32_t kTwice[] = {1, 2, 4, 4};
  static const int32_t kBeyond[] = {1, 2, 4, 8};
  static const int32_t kLacking[] = {1, 2, 3};
  double seconds[8];
  kvq_plan_fusion_options options;
  kvq_plan_fusion* fusion = NULL;
#define REFUSED_WITH(mention, change)                                                          \
  do {                                                                                         \
    options = fusion_options();                                                                \
    change;                                                                                    \
    fusion = (kvq_plan_fusion*)&unused_place;                                                  \
    REFUSED(KVQ_E_ARGUMENT, mention, kvq_plan_fusion_create(context, &options, &fusion, err)); \
    CHECK(fusion == NULL);                                                                     \
  } while (0)
  REFUSED_WITH("n_members is 5", options.n_members = 5);
  REFUSED_WITH("n_members is 0", options.n_members = 0);
  REFUSED_WITH("n_schemes is 0", options.n_schemes = 0);
  REFUSED_WITH("n_groups is 16", options.n_groups = 16);
  REFUSED_WITH("groups is NULL", options.groups = NULL);
  REFUSED_WITH("bytes is NULL", options.bytes = NULL);
  REFUSED_WITH("loss is NULL", options.loss = NULL);
  REFUSED_WITH("seconds is NULL", options.seconds = NULL);
  REFUSED_WITH("groups[3] is 4", options.groups = kTwice);
  REFUSED_WITH("groups[3] is 8", options.groups = kBeyond);
  REFUSED_WITH("member 2", (options.groups = kLacking, options.n_groups = 3));
  memcpy(seconds, kGroupSeconds, sizeof seconds);
  seconds[7] = -1;
  REFUSED_WITH("seconds[7] is -1", options.seconds = seconds);
  seconds[7] = HUGE_VAL; /* a group without a scheme is allowed */
  options = fusion_options();
  options.seconds = seconds;
  ACCEPTED(kvq_plan_fusion_create(context, &options, &fusion, err));
  kvq_plan_fusion_destroy(fusion);
  REFUSED_WITH("bytes[7] is inf", (options.bytes = seconds, options.n_schemes = 8, options.loss = seconds));
#undef REFUSED_WITH
  REFUSED(KVQ_E_ARGUMENT, "options", kvq_plan_fusion_create(context, NULL, &fusion, err));
}

static void rates(void) {
  const double weights[] = {100, 100};
  const double sensitivities[] = {16, 1};
  const double nothing[] = {100, 0};
  double bits[2] = {0, 0};
  double loss = 0;
  ACCEPTED(kvq_plan_rates(2, weights, sensitivities, 0, 600, bits, &loss, err));
  CHECK(fabs(bits[0] - 4) < 1e-9 && fabs(bits[1] - 2) < 1e-9); /* log2(16) / 2 bits more */
  CHECK(fabs(loss - 0.125) < 1e-9);                            /* 16 / 256 + 1 / 16 */
  REFUSED(KVQ_E_ARGUMENT, "n is 0", kvq_plan_rates(0, weights, sensitivities, 0, 600, bits, &loss, err));
  REFUSED(KVQ_E_ARGUMENT, "weights is NULL", kvq_plan_rates(2, NULL, sensitivities, 0, 600, bits, &loss, err));
  REFUSED(KVQ_E_ARGUMENT, "weights[1] is 0", kvq_plan_rates(2, nothing, sensitivities, 0, 600, bits, &loss, err));
  REFUSED(KVQ_E_ARGUMENT, "sensitivities", kvq_plan_rates(2, weights, NULL, 0, 600, bits, &loss, err));
  REFUSED(KVQ_E_ARGUMENT, "least_bits is -1", kvq_plan_rates(2, weights, sensitivities, -1, 600, bits, &loss, err));
  REFUSED(KVQ_E_ARGUMENT, "total_bits is 399", kvq_plan_rates(2, weights, sensitivities, 2, 399, bits, &loss, err));
  REFUSED(KVQ_E_ARGUMENT, "bits is NULL", kvq_plan_rates(2, weights, sensitivities, 0, 600, NULL, &loss, err));
  REFUSED(KVQ_E_ARGUMENT, "loss is NULL", kvq_plan_rates(2, weights, sensitivities, 0, 600, bits, NULL, err));
}

static const char* const kNames[] = {"b \"quoted\" \\", "a", "null"};
static const char* const kSchemes[] = {"tcx-3", "nuq-4", "tcq-2.75"};

static kvq_plan_content content_of(const kvq_policy* policy) {
  kvq_plan_content content;
  kvq_plan_content_init(&content, sizeof content);
  content.n_matrices = 3;
  content.names = kNames;
  content.schemes = kSchemes;
  content.policy = policy;
  content.bytes = 123456789.0;
  content.seconds = 0.1;
  content.loss = 1.0 / 3.0;
  content.note = "for a test: # \"no comment\"";
  return content;
}

static kvq_plan_info described(const kvq_plan* plan) {
  kvq_plan_info info;
  memset(&info, 0, sizeof info);
  info.struct_size = sizeof info;
  ACCEPTED(kvq_plan_describe(plan, &info, err));
  return info;
}

static void check_content(const kvq_plan* plan) {
  const kvq_plan_info info = described(plan);
  int32_t i;
  CHECK(info.n_matrices == 3 && info.has_policy == 1);
  CHECK(info.bytes == 123456789.0 && info.seconds == 0.1 && info.loss == 1.0 / 3.0);
  CHECK(strcmp(info.note, "for a test: # \"no comment\"") == 0);
  for (i = 0; i < 3; ++i) {
    kvq_plan_matrix_info matrix = {sizeof matrix, 0, NULL, NULL};
    ACCEPTED(kvq_plan_describe_matrix(plan, i, &matrix, err));
    CHECK(strcmp(matrix.name, kNames[i]) == 0 && strcmp(matrix.scheme, kSchemes[i]) == 0);
    CHECK(strcmp(kvq_plan_scheme(plan, kNames[i]), kSchemes[i]) == 0);
  }
  CHECK(kvq_plan_scheme(plan, "c") == NULL && kvq_plan_scheme(plan, NULL) == NULL &&
        kvq_plan_scheme(NULL, "a") == NULL);
}

static void check_policy(const kvq_plan* plan) {
  kvq_policy* policy = NULL;
  kvq_cache* cache = NULL;
  kvq_layer_info info;
  kvq_cache_options options;
  kvq_cache_options_init(&options, sizeof options);
  options.n_layers = 2;
  options.q_heads = 2;
  options.kv_heads = 1;
  options.head_dim = 64;
  memset(&info, 0, sizeof info);
  info.struct_size = sizeof info;
  ACCEPTED(kvq_plan_policy(plan, &policy, err));
  ACCEPTED(kvq_cache_create(context, &options, policy, &cache, err));
  ACCEPTED(kvq_cache_describe_layer(cache, 0, &info, err));
  CHECK(strcmp(info.formats, "int4/gs2") == 0);
  ACCEPTED(kvq_cache_describe_layer(cache, 1, &info, err));
  CHECK(strcmp(info.formats, "int8/gs2") == 0);
  kvq_cache_destroy(cache);
  kvq_policy_destroy(policy);
}

static const char kPolicy[] = "{version: 1, keys: int4, values: gs2, layers: [{range: [1, 1], keys: int8}]}";

static void keeps_plans(void) {
  kvq_policy* policy = NULL;
  kvq_plan* plan = NULL;
  kvq_plan* again = NULL;
  kvq_plan_content content;
  char text[2000];
  char second[2000];
  size_t size = 0;
  size_t second_size = 0;
  ACCEPTED(kvq_policy_load(context, kPolicy, strlen(kPolicy), &policy, err));
  content = content_of(policy);
  ACCEPTED(kvq_plan_create(context, &content, &plan, err));
  kvq_policy_destroy(policy);
  check_content(plan);
  check_policy(plan);
  ACCEPTED(kvq_plan_save(plan, NULL, 0, &size, err));
  CHECK(size > 100 && size < sizeof text);
  memset(text, 'x', sizeof text);
  REFUSED(KVQ_E_BUFFER_SIZE, "capacity", kvq_plan_save(plan, text, size - 1, &size, err));
  CHECK(text[0] == 'x');
  ACCEPTED(kvq_plan_save(plan, text, sizeof text, &size, err));
  CHECK(text[size] == 'x');
  ACCEPTED(kvq_plan_load(context, text, size, &again, err));
  check_content(again);
  check_policy(again);
  ACCEPTED(kvq_plan_save(again, second, sizeof second, &second_size, err));
  CHECK(second_size == size && memcmp(text, second, size) == 0);
  kvq_plan_destroy(plan);
  kvq_plan_destroy(again);
  kvq_plan_destroy(NULL);
}

static void keeps_little(void) {
  kvq_plan* plan = NULL;
  kvq_policy* policy = (kvq_policy*)&unused_place;
  kvq_plan_info info;
  ACCEPTED(kvq_plan_load(context, "version: 1", 10, &plan, err));
  info = described(plan);
  CHECK(info.n_matrices == 0 && info.has_policy == 0 && info.bytes == 0 && info.note[0] == 0);
  REFUSED(KVQ_E_STATE, "has no policy", kvq_plan_policy(plan, &policy, err));
  CHECK(policy == NULL);
  kvq_plan_destroy(plan);
}

static void refuse(const char* text, const char* mention) {
  kvq_plan* plan = (kvq_plan*)&unused_place;
  REFUSED(KVQ_E_FORMAT, mention, kvq_plan_load(context, text, strlen(text), &plan, err));
  CHECK(plan == NULL);
}

static void refuses_texts(void) {
  char name[300];
  refuse("", "empty");
  refuse("gs2", "map");
  refuse("weights: {a: tcx-3}", "version");
  refuse("version: 2", "version");
  refuse("version: 1\nwheights: {}", "wheights");
  refuse("version: 1\nweights: [a]", "line 2");
  refuse("version: 1\nweights:\n  a: tcx-3\n  a: tcx-2", "twice");
  refuse("version: 1\nweights:\n  a: tcx-9", "tcx-9");
  ALSO_MENTIONS("line 3");
  refuse("version: 1\nweights:\n  a: {scheme: tcx-3}", "\"a\"");
  refuse("version: 1\nexpected: {bytes: -1}", "bytes");
  refuse("version: 1\nexpected: {bytes: nan}", "nan");
  refuse("version: 1\nexpected: {loss: 1e999}", "loss");
  refuse("version: 1\nexpected: {time: 1}", "time");
  refuse("version: 1\nexpected: 1", "expected");
  refuse("version: 1\nnote: [a]", "note");
  refuse("version: 1\nnote: \"a\\nb\"", "control");
  refuse("version: 1\ncache: int5", "int5");
  refuse("version: 1\ncache: {keys: gs2, sink: -1}", "sink");
  memset(name, 'a', sizeof name);
  memcpy(name, "version: 1\nweights: {", 21);
  memcpy(name + 280, ": tcx-3}", 9);
  refuse(name, "at most 200");
}

static void refuses_content(void) {
  static const char* const kTwice[] = {"a", "b", "a"};
  static const char* const kEmpty[] = {"a", "", "c"};
  static const char* const kControl[] = {"a", "b\tb", "c"};
  static const char* const kOdd[] = {"a", "b\xC2\x85", "c"};
  static const char* const kLines[] = {"a", "b\xE2\x80\xA8", "c"};
  static const char* const kBroken[] = {"a", "b\xFF", "c"};
  static const char* const kNull[] = {"a", NULL, "c"};
  static const char* const kLacking[] = {"tcx-3", NULL, "tcx-3"};
  static const char* const kUnknown[] = {"tcx-3", "tcx-9", "tcx-3"};
  kvq_plan_content content;
  kvq_plan* plan = NULL;
  kvq_plan_info info = {sizeof info, 0, 0, 0, 0, 0, 0, NULL};
  kvq_plan_matrix_info matrix = {sizeof matrix, 0, NULL, NULL};
  size_t size = 0;
#define REFUSED_WITH(mention, change)                                                 \
  do {                                                                                \
    content = content_of(NULL);                                                       \
    change;                                                                           \
    plan = (kvq_plan*)&unused_place;                                                  \
    REFUSED(KVQ_E_ARGUMENT, mention, kvq_plan_create(context, &content, &plan, err)); \
    CHECK(plan == NULL);                                                              \
  } while (0)
  REFUSED_WITH("n_matrices is -1", content.n_matrices = -1);
  REFUSED_WITH("names is NULL", content.names = NULL);
  REFUSED_WITH("schemes is NULL", content.schemes = NULL);
  REFUSED_WITH("names[1] is NULL", content.names = kNull);
  REFUSED_WITH("schemes[1] is NULL", content.schemes = kLacking);
  REFUSED_WITH("twice", content.names = kTwice);
  REFUSED_WITH("names[1] is empty", content.names = kEmpty);
  REFUSED_WITH("control", content.names = kControl);
  REFUSED_WITH("control", content.names = kOdd);
  REFUSED_WITH("control", content.names = kLines);
  REFUSED_WITH("UTF-8", content.names = kBroken);
  REFUSED_WITH("schemes[1] is \"tcx-9\"", content.schemes = kUnknown);
  REFUSED_WITH("bytes is -1", content.bytes = -1);
  REFUSED_WITH("loss is inf", content.loss = HUGE_VAL);
  REFUSED_WITH("note", content.note = "a\nb");
#undef REFUSED_WITH
  content = content_of(NULL);
  REFUSED(KVQ_E_ARGUMENT, "context", kvq_plan_create(NULL, &content, &plan, err));
  REFUSED(KVQ_E_ARGUMENT, "content", kvq_plan_create(context, NULL, &plan, err));
  REFUSED(KVQ_E_ARGUMENT, "result", kvq_plan_create(context, &content, NULL, err));
  ACCEPTED(kvq_plan_create(context, &content, &plan, err));
  REFUSED(KVQ_E_ARGUMENT, "index is 3", kvq_plan_describe_matrix(plan, 3, &matrix, err));
  REFUSED(KVQ_E_ARGUMENT, "info", kvq_plan_describe_matrix(plan, 0, NULL, err));
  REFUSED(KVQ_E_ARGUMENT, "plan", kvq_plan_describe(NULL, &info, err));
  REFUSED(KVQ_E_ARGUMENT, "info", kvq_plan_describe(plan, NULL, err));
  REFUSED(KVQ_E_ARGUMENT, "plan", kvq_plan_save(NULL, NULL, 0, &size, err));
  REFUSED(KVQ_E_ARGUMENT, "size", kvq_plan_save(plan, NULL, 0, NULL, err));
  REFUSED(KVQ_E_ARGUMENT, "result", kvq_plan_policy(plan, NULL, err));
  kvq_plan_destroy(plan);
  REFUSED(KVQ_E_ARGUMENT, "yaml", kvq_plan_load(context, NULL, 0, &plan, err));
  REFUSED(KVQ_E_ARGUMENT, "context", kvq_plan_load(NULL, "version: 1", 10, &plan, err));
}

static void refuses_other_contexts(void) {
  kvq_context* other = threaded_context(1);
  kvq_policy* policy = NULL;
  kvq_plan* plan = NULL;
  kvq_plan_content content;
  ACCEPTED(kvq_policy_load(other, "gs2", 3, &policy, err));
  content = content_of(policy);
  REFUSED(KVQ_E_ARGUMENT, "another context", kvq_plan_create(context, &content, &plan, err));
  kvq_policy_destroy(policy);
  kvq_context_destroy(other);
}

static void failing_allocations(void) {
  kvq_context* const shared = context;
  const kvq_plan_problem problem = problem_of();
  const kvq_plan_fusion_options options = fusion_options();
  kvq_plan_costs costs = costs_of();
  kvq_policy* policy = NULL;
  kvq_policy* again = NULL;
  kvq_plan_fusion* fusion = NULL;
  kvq_plan* plan = NULL;
  kvq_plan* loaded = NULL;
  kvq_plan_content content;
  char text[2000];
  size_t size = 0;
  int32_t chosen[2];
  fixture f;
  fixture_open(&f, NULL, 0, 0);
  context = f.context;
  FAIL_EACH_ALLOCATION(&f.memory, kvq_plan_solve(context, &problem, chosen, 2, &costs, err));
  FAIL_EACH_ALLOCATION(&f.memory, kvq_plan_fusion_create(context, &options, &fusion, err));
  ACCEPTED(kvq_policy_load(context, kPolicy, strlen(kPolicy), &policy, err));
  content = content_of(policy);
  FAIL_EACH_ALLOCATION(&f.memory, kvq_plan_create(context, &content, &plan, err));
  FAIL_ALLOCATIONS(&f.memory, 1, 1, kvq_plan_save(plan, text, sizeof text, &size, err));
  FAIL_EACH_ALLOCATION(&f.memory, kvq_plan_load(context, text, size, &loaded, err));
  check_content(loaded);
  FAIL_ALLOCATIONS(&f.memory, 1, 1, kvq_plan_policy(loaded, &again, err));
  kvq_policy_destroy(again);
  kvq_policy_destroy(policy);
  kvq_plan_destroy(loaded);
  kvq_plan_destroy(plan);
  kvq_plan_fusion_destroy(fusion);
  fixture_close(&f);
  context = shared;
}

/* A plan with one to three bytes changed, sometimes truncated: read or refused; a plan that is read can be written
 * again. */
static void damaged_texts(void) {
  static const char kLikely[] = "{}[]:,-#&*|>'\"\n\t 019.e\xC2\xFF";
  kvq_policy* policy = NULL;
  kvq_plan* plan = NULL;
  kvq_plan_content content;
  char text[2000];
  char damaged[2000];
  char again[8000];
  size_t size = 0;
  uint32_t random = 1;
  int n_read = 0;
  int n_refused = 0;
  int i;
  ACCEPTED(kvq_policy_load(context, kPolicy, strlen(kPolicy), &policy, err));
  content = content_of(policy);
  ACCEPTED(kvq_plan_create(context, &content, &plan, err));
  kvq_policy_destroy(policy);
  ACCEPTED(kvq_plan_save(plan, text, sizeof text, &size, err));
  kvq_plan_destroy(plan);
  for (i = 0; i < 3000; ++i) {
    const int n_changes = 1 + i % 3;
    size_t length = size;
    size_t written = 0;
    kvq_status status;
    int change;
    memcpy(damaged, text, size);
    for (change = 0; change < n_changes; ++change) {
      size_t place;
      random = random * 1664525U + 1013904223U;
      place = (size_t)(random >> 8) % size;
      random = random * 1664525U + 1013904223U;
      damaged[place] = kLikely[(random >> 8) % (sizeof kLikely - 1)];
    }
    if (i % 7 == 0) length = (size_t)(random >> 4) % size;
    plan = (kvq_plan*)&unused_place;
    status = kvq_plan_load(context, damaged, length, &plan, err);
    CHECK(status == KVQ_OK || (status == KVQ_E_FORMAT && plan == NULL));
    if (status == KVQ_OK) {
      ++n_read;
      ACCEPTED(kvq_plan_save(plan, again, sizeof again, &written, err));
      kvq_plan_destroy(plan);
      ACCEPTED(kvq_plan_load(context, again, written, &plan, err));
      kvq_plan_destroy(plan);
    } else {
      ++n_refused;
    }
  }
  CHECK(n_read > 100 && n_refused > 1000);
}

void test_plan(void) {
  context = threaded_context(1);
  solves();
  refuses_problems();
  fuses();
  refuses_fusions();
  rates();
  keeps_plans();
  keeps_little();
  refuses_texts();
  refuses_content();
  refuses_other_contexts();
  failing_allocations();
  damaged_texts();
  kvq_context_destroy(context);
}
