#include "api/boundary.h"
#include "api/handles.h"
#include "core/checks.h"
#include "core/error.h"
#include "core/text.h"
#include "io/policy_yaml.h"

#include <optional>

using namespace kvq;
using namespace kvq::api;

namespace {

/// Format of this name; none for NULL.
std::optional<SideFormat> optional_format(const char* name, const char* argument) {
  if (name == nullptr) return {};
  const std::optional<SideFormat> format = parse_format(name);
  if (format.has_value()) return format;
  fail(KVQ_E_ARGUMENT, "%s is \"%s\", %s", argument, Quoted(name).c_str(), format_name_advice(name).c_str());
}

}  // namespace

kvq_status kvq_policy_load(kvq_context* context, const char* yaml, size_t length, kvq_policy** result,
                           kvq_error* error) {
  return created(result, error, [&] {
    require(context, "context");
    require(yaml, "yaml");
    require(result, "result");
    return make_owned<kvq_policy>(context->allocator, *context, io::read_policy(context->allocator, {yaml, length}));
  });
}

kvq_status kvq_policy_with_eviction(kvq_context* context, const kvq_policy* policy, const char* method, int32_t budget,
                                    kvq_policy** result, kvq_error* error) {
  return created(result, error, [&] {
    require(context, "context");
    require(policy, "policy");
    require(method, "method");
    require(result, "result");
    require_context(*context, *policy, "policy");
    Policy evicting = *policy;
    evicting.eviction = io::with_method(policy->eviction, method, budget);
    return make_owned<kvq_policy>(context->allocator, *context, std::move(evicting));
  });
}

kvq_status kvq_policy_with_layer(kvq_context* context, const kvq_policy* policy, int32_t first_layer,
                                 int32_t last_layer, const char* keys, const char* values, kvq_policy** result,
                                 kvq_error* error) {
  return created(result, error, [&] {
    require(context, "context");
    require(policy, "policy");
    require(result, "result");
    require_context(*context, *policy, "policy");
    require_range(last_layer, 0, kMaxLayers - 1, "last_layer");
    require_range(first_layer, 0, last_layer, "first_layer");
    const Policy::Override entry{first_layer, last_layer, optional_format(keys, "keys"),
                                 optional_format(values, "values"), std::nullopt};
    if (!policy->experts.empty()) {
      fail(KVQ_E_ARGUMENT, "policy has a router, which chooses the formats of layers %d to %d too", first_layer,
           last_layer);
    }
    Policy changed = *policy;
    changed.overrides.push_back(entry);
    return make_owned<kvq_policy>(context->allocator, *context, std::move(changed));
  });
}

kvq_status kvq_policy_save(const kvq_policy* policy, char* buffer, size_t capacity, size_t* size, kvq_error* error) {
  return guarded(error, [&] {
    require(policy, "policy");
    require(size, "size");
    hand_over(io::write_policy(*policy), buffer, capacity, *size);
  });
}

kvq_status kvq_policy_describe(const kvq_policy* policy, kvq_policy_info* info, kvq_error* error) {
  return described(policy, "policy", info, error, [](const kvq_policy& of) {
    const Eviction& eviction = of.eviction;
    kvq_policy_info found{};
    found.eviction_budget = eviction.budget;
    found.eviction_window = eviction.budget > 0 ? eviction.window : 0;
    found.calibrates = of.calibrates() ? 1 : 0;
    return found;
  });
}

void kvq_policy_destroy(kvq_policy* policy) { destroy(policy); }
