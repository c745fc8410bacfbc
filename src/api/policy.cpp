#include "api/boundary.h"
#include "api/handles.h"
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

void kvq_policy_destroy(kvq_policy* policy) {
  if (policy != nullptr) Deleter<kvq_policy>(policy->allocator, sizeof(kvq_policy), alignof(kvq_policy))(policy);
}
