#include "api/boundary.h"
#include "api/handles.h"
#include "core/error.h"
#include "io/eviction_yaml.h"
#include "io/policy_yaml.h"

#include <string_view>

using namespace kvq;
using namespace kvq::api;

kvq_status kvq_policy_load(kvq_context* context, const char* yaml, size_t length, kvq_policy** result,
                           kvq_error* error) {
  if (result != nullptr) *result = nullptr;
  return guarded(error, [&] {
    require(context, "context");
    require(yaml, "yaml");
    require(result, "result");
    Allocator& allocator = context->allocator;
    *result = make_owned<kvq_policy>(allocator, *context, io::read_policy(allocator, {yaml, length})).release();
  });
}

kvq_status kvq_policy_with_eviction(kvq_context* context, const kvq_policy* policy, const char* method, int32_t budget,
                                    kvq_policy** result, kvq_error* error) {
  if (result != nullptr) *result = nullptr;
  return guarded(error, [&] {
    require(context, "context");
    require(policy, "policy");
    require(method, "method");
    require(result, "result");
    Allocator& allocator = context->allocator;
    if (&*policy->context != context) fail(KVQ_E_ARGUMENT, "policy belongs to another context");
    Policy evicting = *policy;
    evicting.eviction = io::with_method(policy->eviction, method, budget);
    *result = make_owned<kvq_policy>(allocator, *context, std::move(evicting)).release();
  });
}

kvq_status kvq_policy_describe(const kvq_policy* policy, kvq_policy_info* info, kvq_error* error) {
  return guarded(error, [&] {
    require(policy, "policy");
    const Eviction& eviction = policy->eviction;
    kvq_policy_info found{};
    found.eviction_budget = eviction.budget;
    found.eviction_window = eviction.budget > 0 ? eviction.window : 0;
    write_struct(info, found, "info");
  });
}

void kvq_policy_destroy(kvq_policy* policy) { destroy(policy); }
