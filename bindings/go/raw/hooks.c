/* Made by bindings/generate/generate.py from include/kvq.h; edit that instead. */
/* What the library calls: each calls the function that Go exports for it. */
#include "_cgo_export.h"

void* kvq_go_kvq_allocate_hook(void* user, size_t bytes, size_t alignment) {
  return (void*)kvqGoAllocate((uintptr_t)user, bytes, alignment);
}

void kvq_go_kvq_free_hook(void* user, void* pointer, size_t bytes, size_t alignment) {
  kvqGoFree((uintptr_t)user, (uintptr_t)pointer, bytes, alignment);
}

void kvq_go_kvq_log_hook(void* user, kvq_log_level level, const char* message) {
  kvqGoLog((uintptr_t)user, level, (char*)message);
}

int32_t kvq_go_kvq_parallel_for_hook(void* user, int32_t n, kvq_parallel_body body, void* argument) {
  return (int32_t)kvqGoParallelFor((uintptr_t)user, n, (uintptr_t)body, (uintptr_t)argument);
}

void kvq_go_kvq_released_hook(void* user) {
  kvqGoReleased((uintptr_t)user);
}

void* kvq_go_kvq_device_allocate_hook(void* user, size_t bytes, void* stream) {
  return (void*)kvqGoDeviceAllocate((uintptr_t)user, bytes, (uintptr_t)stream);
}

void kvq_go_kvq_device_free_hook(void* user, void* pointer, size_t bytes, void* stream) {
  kvqGoDeviceFree((uintptr_t)user, (uintptr_t)pointer, bytes, (uintptr_t)stream);
}

int32_t kvq_go_kvq_progress_hook(void* user, double done) {
  return (int32_t)kvqGoProgress((uintptr_t)user, done);
}
