#include "api/boundary.h"
#include "api/handles.h"
#include "core/error.h"
#include "io/eviction_yaml.h"
#include "io/policy_yaml.h"

#include <string_view>

using namespace kvq;
using namespace kvq::api;

kvq_status kvq_policy_load(kvq_context* context, const char* yaml, size_t length, kvq_policy** out, kvq_error* error) {
  if (out != nullptr) *out = nullptr;
  return guarded(error, [&] {
    require(context, "context");
    require(yaml, "yaml");
    require(out, "out");
    Allocator& allocator = context->allocator;
    *out = make_owned<kvq_policy>(allocator, allocator, io::read_policy(allocator, {yaml, length})).release();
  });
}

kvq_status kvq_policy_with_eviction(kvq_context* context, const kvq_policy* policy, const char* method, int32_t budget,
                                    kvq_policy** out, kvq_error* error) {
  if (out != nullptr) *out = nullptr;
  return guarded(error, [&] {
    require(context, "context");
    require(policy, "policy");
    require(method, "method");
    require(out, "out");
    Allocator& allocator = context->allocator;
    if (&policy->allocator != &allocator) fail(KVQ_E_ARGUMENT, "policy belongs to another context");
    Policy evicting = *policy;
    evicting.eviction = io::with_method(policy->eviction, method, budget);
    *out = make_owned<kvq_policy>(allocator, allocator, std::move(evicting)).release();
  });
}

kvq_status kvq_policy_describe(const kvq_policy* policy, kvq_policy_info* info, kvq_error* error) {
  return guarded(error, [&] {
    require(policy, "policy");
    require_struct(info, "info");
    const Eviction& eviction = policy->eviction;
    *info = {sizeof(kvq_policy_info), eviction.budget, eviction.budget > 0 ? eviction.window : 0, 0};
  });
}

void kvq_policy_destroy(kvq_policy* policy) {
  if (policy != nullptr) destroy(policy, policy->allocator);
}
