#include "api/boundary.h"
#include "api/handles.h"
#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/dispatch/isa.h"
#include "backend/plugin_loader.h"
#include "io/file_kind.h"

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

kvq_context_options default_context_options() {
  kvq_context_options options{};
  options.n_threads = 1;
  return options;
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

void* device_allocate(void* user, size_t bytes, void* stream) {
  const auto& hooks = *static_cast<const DeviceHooks*>(user);
  try {
    return hooks.allocate(hooks.user, bytes, stream);
  } catch (...) {
    return nullptr;
  }
}

void device_free(void* user, void* pointer, size_t bytes, void* stream) {
  const auto& hooks = *static_cast<const DeviceHooks*>(user);
  try {
    hooks.free(hooks.user, pointer, bytes, stream);
  } catch (...) {  // released all the same
  }
}

/// `hooks` must outlive the backend.
Owned<Backend> make_backend(const kvq_context_options& options, Allocator& allocator, Parallel& parallel,
                            DeviceHooks& hooks) {
  if (options.device == KVQ_DEVICE_CPU) {
    return make_owned<cpu::CpuBackend>(allocator, allocator, cpu::find_table(options.cpu_isa), parallel);
  }
  const bool hooked = hooks.allocate != nullptr;
  const DeviceOptions device{.index = options.device_index,
                             .stream = options.stream,
                             .allocate = hooked ? device_allocate : nullptr,
                             .free = hooked ? device_free : nullptr,
                             .user = &hooks,
                             .isa = options.cpu_isa};
  return load_cuda_plugin(options.plugin).make_backend(allocator, device);
}

}  // namespace

kvq_context::kvq_context(const kvq_context_options& options, const AllocatorHooks& hooks)
    : allocator(hooks, options.max_bytes, sizeof(kvq_context)),
      device(options.device),
      log_hook(options.log),
      log_user(options.log_user),
      released(options.released),
      released_user(options.released_user),
      parallel(options.parallel_for != nullptr ? 1 : options.n_threads, options.parallel_for,
               options.parallel_for_user),
      device_hooks{options.device_allocate, options.device_free, options.device_allocator_user},
      backend(make_backend(options, allocator, parallel, device_hooks)) {}

void kvq_context::log(kvq_log_level level, const char* message) const noexcept {
  if (log_hook == nullptr) return;
  try {
    log_hook(log_user, level, message);
  } catch (...) {  // an exception of a log hook changes nothing
  }
}

void kvq::api::release(kvq_context* context) noexcept {
  if (!context->holders.drop()) return;
  Allocator last(context->allocator.hooks(), 0);
  const kvq_released_hook released = context->released;
  void* const user = context->released_user;
  context->~kvq_context();
  last.release(context, sizeof(kvq_context), alignof(kvq_context));
  try {
    if (released != nullptr) released(user);
  } catch (...) {  // no caller is left to report to
  }
}

void kvq_context_options_init(kvq_context_options* options, size_t size) {
  init_struct(options, size, default_context_options());
}

kvq_status kvq_context_create(const kvq_context_options* options, kvq_context** result, kvq_error* error) {
  if (result != nullptr) *result = nullptr;
  return guarded(error, [&] {
    require(result, "result");
    const kvq_context_options chosen = read_optional_struct(options, default_context_options(), "options");
    check_options(chosen);
    // The context contains its own allocator, so its memory comes directly from the hooks.
    const AllocatorHooks hooks = hooks_of(chosen);
    Allocator first(hooks, chosen.max_bytes);
    void* memory = first.allocate(sizeof(kvq_context), alignof(kvq_context));
    try {
      *result = new (memory) kvq_context(chosen, hooks);
    } catch (...) {
      first.release(memory, sizeof(kvq_context), alignof(kvq_context));
      throw;
    }
    char message[96];
    std::snprintf(message, sizeof(message), "kvq %s: backend %s, instruction set %s, %d threads", KVQ_VERSION_STRING,
                  (*result)->backend->name(), (*result)->backend->isa(), (*result)->parallel.n_threads());
    (*result)->log(KVQ_LOG_INFO, message);
  });
}

void kvq_context_destroy(kvq_context* context) {
  if (context != nullptr) release(context);
}

kvq_status kvq_context_describe(const kvq_context* context, kvq_context_info* info, kvq_error* error) {
  return guarded(error, [&] {
    require(context, "context");
    kvq_context_info found{};
    found.device = context->device;
    found.n_threads = context->parallel.n_threads();
    found.backend = context->backend->name();
    found.isa = context->backend->isa();
    found.bytes = context->allocator.bytes();
    found.peak_bytes = context->allocator.peak_bytes();
    found.max_bytes = context->allocator.limit();
    write_struct(info, found, "info");
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

kvq_status kvq_device_describe(kvq_device device, int32_t index, const char* plugin, kvq_device_info* info,
                               kvq_error* error) {
  return guarded(error, [&] {
    require_range(device, KVQ_DEVICE_CUDA, KVQ_DEVICE_CUDA, "device");
    require_range(index, 0, INT32_MAX, "index");
    require_struct(info, sizeof(uint32_t), "info");
    kvq_device_info found{};
    load_cuda_plugin(plugin).describe_device(index, found);
    write_struct(info, found, "info");
  });
}

kvq_status kvq_file_type(kvq_context* context, const void* data, size_t size, kvq_file_kind* kind, kvq_error* error) {
  return guarded(error, [&] {
    require(context, "context");
    require(data, "data");
    require(kind, "kind");
    *kind = io::file_kind(context->allocator, {static_cast<const std::byte*>(data), size});
  });
}
