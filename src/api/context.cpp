#include "api/boundary.h"
#include "api/handles.h"
#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/dispatch/isa.h"
#include "backend/plugin_loader.h"

#include <cstdio>
#include <new>

using namespace kvq;
using namespace kvq::api;

namespace {

constexpr int32_t kMaxThreads = 1024;

template <typename Allocate, typename Free>
void require_both_or_none(Allocate allocate, const char* allocate_name, Free free, const char* free_name) {
  if ((allocate == nullptr) == (free == nullptr)) return;
  fail(KVQ_E_ARGUMENT, "options->%s is NULL but options->%s is not: give both hooks or none",
       allocate == nullptr ? allocate_name : free_name, allocate == nullptr ? free_name : allocate_name);
}

void check_options(const kvq_context_options& options) {
  require_range(options.device, KVQ_DEVICE_CPU, KVQ_DEVICE_CUDA, "options->device");
  if (options.parallel_for == nullptr) require_range(options.n_threads, 1, kMaxThreads, "options->n_threads");
  require_range(options.reserved, 0, 0, "options->reserved");
  require_both_or_none(options.allocate, "allocate", options.free, "free");
  require_range(options.reserved2, 0, 0, "options->reserved2");
  require_both_or_none(options.device_allocate, "device_allocate", options.device_free, "device_free");
  if (options.device == KVQ_DEVICE_CUDA) require_range(options.device_index, 0, INT32_MAX, "options->device_index");
}

AllocatorHooks hooks_of(const kvq_context_options& options) {
  return {options.allocate, options.free, options.allocator_user};
}

Owned<Backend> make_backend(const kvq_context_options& options, Allocator& allocator, Parallel& parallel) {
  if (options.device == KVQ_DEVICE_CPU) {
    return make_owned<cpu::CpuBackend>(allocator, allocator, cpu::find_table(options.cpu_isa), parallel);
  }
  const DeviceOptions device{.index = options.device_index,
                             .stream = options.stream,
                             .allocate = options.device_allocate,
                             .free = options.device_free,
                             .user = options.device_allocator_user};
  return load_cuda_plugin(options.plugin).make_backend(allocator, device);
}

}  // namespace

kvq_context::kvq_context(const kvq_context_options& options, const AllocatorHooks& hooks)
    : allocator(hooks, options.max_bytes, sizeof(kvq_context)),
      parallel(options.parallel_for != nullptr ? 1 : options.n_threads, options.parallel_for,
               options.parallel_for_user),
      backend(make_backend(options, allocator, parallel)),
      device(options.device),
      log_hook(options.log),
      log_user(options.log_user) {}

void kvq_context_options_init(kvq_context_options* options) {
  if (options == nullptr) return;
  *options = kvq_context_options{};
  options->struct_size = sizeof(kvq_context_options);
  options->n_threads = 1;
}

kvq_status kvq_context_create(const kvq_context_options* options, kvq_context** out, kvq_error* error) {
  if (out != nullptr) *out = nullptr;
  return guarded(error, [&] {
    require(out, "out");
    kvq_context_options chosen;
    kvq_context_options_init(&chosen);
    if (options != nullptr) {
      require_struct(options, "options");
      chosen = *options;
    }
    check_options(chosen);
    // The context holds its own allocator, so its own memory is asked for before that exists.
    const AllocatorHooks hooks = hooks_of(chosen);
    Allocator first(hooks, chosen.max_bytes);
    void* memory = first.allocate(sizeof(kvq_context), alignof(kvq_context));
    try {
      *out = new (memory) kvq_context(chosen, hooks);
    } catch (...) {
      first.release(memory, sizeof(kvq_context), alignof(kvq_context));
      throw;
    }
    char message[96];
    std::snprintf(message, sizeof(message), "kvq %s: backend %s, instruction set %s, %d threads", KVQ_VERSION_STRING,
                  (*out)->backend->name(), (*out)->backend->isa(), (*out)->parallel.n_threads());
    (*out)->log(KVQ_LOG_INFO, message);
  });
}

void kvq_context_destroy(kvq_context* context) {
  if (context == nullptr) return;
  Allocator last(context->allocator.hooks(), 0);
  context->~kvq_context();
  last.release(context, sizeof(kvq_context), alignof(kvq_context));
}

kvq_status kvq_context_describe(const kvq_context* context, kvq_context_info* info, kvq_error* error) {
  return guarded(error, [&] {
    require(context, "context");
    require_struct(info, "info");
    info->device = context->device;
    info->n_threads = context->parallel.n_threads();
    info->backend = context->backend->name();
    info->isa = context->backend->isa();
    info->bytes = context->allocator.bytes();
    info->peak_bytes = context->allocator.peak_bytes();
    info->max_bytes = context->allocator.limit();
  });
}

kvq_status kvq_context_set_stream(kvq_context* context, void* stream, kvq_error* error) {
  return guarded(error, [&] {
    require(context, "context");
    context->backend->set_stream(stream);
  });
}

int32_t kvq_cpu_isa_count(void) { return static_cast<int32_t>(cpu::available_tables().size()); }

const char* kvq_cpu_isa_name(int32_t index) {
  if (index < 0 || index >= kvq_cpu_isa_count()) return nullptr;
  return cpu::available_tables()[static_cast<size_t>(index)]->name;
}
