/* The C API from C: layout, every refused input, failing allocations, limits, snapshots, hooks.
 * Usage: kvq_capi_tests [[-]PART]...: the suites whose names have one of these parts, or all, but for those with a
 * -PART. Exit status 0 when every check passed, 2 when no suite is named so. */
#include "check.h"
#include "suites.h"

#include <stdio.h>
#include <string.h>

typedef struct suite {
  const char* name;
  void (*run)(void);
} suite;

static const suite kSuites[] = {
    {"layout", test_layout},
    {"errors", test_errors},
    {"sizes", test_sizes},
    {"lifetimes", test_lifetimes},
    {"context", test_context},
    {"device", test_device},
    {"policy", test_policy},
    {"policy_save", test_policy_save},
    {"plan", test_plan},
    {"codebook", test_codebook},
    {"codebook_trainer", test_codebook_trainer},
    {"codebook_trainer_memory", test_codebook_trainer_memory},
    {"centres", test_centres},
    {"centres_trainer", test_centres_trainer},
    {"scales", test_scales},
    {"router_trainer", test_router_trainer},
    {"router_trainer_memory", test_router_trainer_memory},
    {"matrix", test_matrix},
    {"mrope", test_mrope},
    {"pool", test_pool},
    {"commvq", test_commvq},
    {"cache", test_cache},
    {"sequence", test_sequence},
    {"truncate", test_truncate},
    {"compress", test_compress},
    {"reserve", test_reserve},
    {"append", test_append},
    {"append_batch", test_append_batch},
    {"extend", test_extend},
    {"step", test_step},
    {"recode", test_recode},
    {"attend", test_attend},
    {"usage", test_usage},
    {"predict", test_predict},
    {"snapshot", test_snapshot},
    {"states", test_states},
    {"windows", test_windows},
    {"file_type", test_file_type},
    {"limits", test_limits},
    {"allocation_failures", test_allocation_failures},
    {"hooks", test_hooks},
    {"fork", test_fork},
    {"walkthrough", test_walkthrough},
};

static int is_wanted(const char* name, int argc, char** argv) {
  int parts = 0;
  int has_one = 0;
  int i;
  for (i = 1; i < argc; ++i) {
    const int excludes = argv[i][0] == '-';
    const int has = strstr(name, argv[i] + excludes) != NULL;
    if (excludes && has) return 0;
    parts += !excludes;
    has_one |= !excludes && has;
  }
  return parts == 0 || has_one;
}

int main(int argc, char** argv) {
  size_t i;
  int n_run = 0;
  for (i = 0; i < sizeof kSuites / sizeof kSuites[0]; ++i) {
    if (!is_wanted(kSuites[i].name, argc, argv)) continue;
    kSuites[i].run();
    ++n_run;
  }
  if (n_run == 0) {
    fprintf(stderr, "no suite is named as %s asks\n", argc == 2 ? argv[1] : "these arguments");
    return 2;
  }
  return finish_checks();
}
