// Made by bindings/generate/generate.py from include/kvq.h; edit that instead.
/// \file kvq.hpp
///
/// kvq.h in C++20, header-only: handles that own, exceptions, spans.
///
/// Classes have the objects' names, methods those of the functions without the object's: kvq_sequence_truncate is
/// Sequence::truncate, kvq_cache_create a constructor, kvq_policy_load a static function. A sequence knows its cache,
/// so that kvq_append and kvq_compress are methods of it. An object converts to the pointer that kvq.h takes, and may
/// be empty (nullptr); what may be called from several threads at once is const.
///
/// - Failures throw Error. ::checked does so for any function of kvq.h.
/// - Structs are those of kvq.h; initialised<kvq_cache_options>() has the defaults.
/// - Sizes of spans are checked first. Spans of float are in the context's memory: of a CUDA context in device memory,
///   which the host may not touch. Methods with pointers and a kvq_dtype take other elements.
/// - Objects may be destroyed in any order.
#ifndef KVQ_HPP
#define KVQ_HPP

#include "kvq.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <memory>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

/// The namespace, for programs in which `kvq` is something else.
#ifndef KVQ_NAMESPACE
#define KVQ_NAMESPACE kvq
#endif

namespace KVQ_NAMESPACE {
inline namespace v1 {  // a static libkvq has classes of its own

/// What a call reports: its message is what(), in UTF-8.
class Error : public std::runtime_error {
 public:
  Error(kvq_status status, const std::string& message, int32_t backend_code = 0)
      : std::runtime_error(message), status_(status), backend_code_(backend_code) {}

  kvq_status status() const noexcept { return status_; }
  /// Name of the status, for example "KVQ_E_LIMIT".
  const char* name() const noexcept { return kvq_status_name(status_); }
  /// Code of the device's own library or of a hook, 0 if none.
  int32_t backend_code() const noexcept { return backend_code_; }

 private:
  kvq_status status_;
  int32_t backend_code_;
};

/// Calls `function(arguments..., error)`, any function of kvq.h that returns a status, and throws what it reports.
template <class... Parameters, class... Arguments>
void checked(kvq_status (*function)(Parameters...), Arguments&&... arguments) {
  kvq_error error;
  kvq_error_init(&error, sizeof(error));
  const kvq_status status = function(std::forward<Arguments>(arguments)..., &error);
  if (status != KVQ_OK) throw Error(status, error.message, error.backend_code);
}

/// Throws an Error if the loaded library is older than the header that the program was compiled with. Every Context
/// asks when it is created.
inline void require_version() {
  if (kvq_api_version() >= KVQ_API_VERSION) return;
  throw Error(KVQ_E_UNSUPPORTED, "libkvq " + std::string(kvq_version_string()) + " implements API version " +
                                     std::to_string(kvq_api_version()) + ", this program needs " +
                                     std::to_string(KVQ_API_VERSION));
}

/// A struct of kvq.h with its defaults, or one that the library fills with its `struct_size`.
template <class Struct>
Struct initialised() {
  Struct it{};
  it.struct_size = sizeof(it);
  return it;
}

template <>
inline kvq_error initialised() {
  kvq_error it;
  kvq_error_init(&it, sizeof(it));
  return it;
}

template <>
inline kvq_context_options initialised() {
  kvq_context_options it;
  kvq_context_options_init(&it, sizeof(it));
  return it;
}

template <>
inline kvq_cache_options initialised() {
  kvq_cache_options it;
  kvq_cache_options_init(&it, sizeof(it));
  return it;
}

template <>
inline kvq_append_batch initialised() {
  kvq_append_batch it;
  kvq_append_batch_init(&it, sizeof(it));
  return it;
}

template <>
inline kvq_compress_options initialised() {
  kvq_compress_options it;
  kvq_compress_options_init(&it, sizeof(it));
  return it;
}

template <>
inline kvq_attend_batch initialised() {
  kvq_attend_batch it;
  kvq_attend_batch_init(&it, sizeof(it));
  return it;
}

template <>
inline qp_quantize_options initialised() {
  qp_quantize_options it;
  qp_quantize_options_init(&it, sizeof(it));
  return it;
}

#ifdef KVQ_EXPERIMENTAL
template <>
inline kvq_codebook_trainer_options initialised() {
  kvq_codebook_trainer_options it;
  kvq_codebook_trainer_options_init(&it, sizeof(it));
  return it;
}
#endif

#ifdef KVQ_EXPERIMENTAL
template <>
inline kvq_centres_trainer_options initialised() {
  kvq_centres_trainer_options it;
  kvq_centres_trainer_options_init(&it, sizeof(it));
  return it;
}
#endif

#ifdef KVQ_EXPERIMENTAL
template <>
inline kvq_router_trainer_options initialised() {
  kvq_router_trainer_options it;
  kvq_router_trainer_options_init(&it, sizeof(it));
  return it;
}
#endif

#ifdef KVQ_EXPERIMENTAL
template <>
inline kvq_plan_problem initialised() {
  kvq_plan_problem it;
  kvq_plan_problem_init(&it, sizeof(it));
  return it;
}
#endif

#ifdef KVQ_EXPERIMENTAL
template <>
inline kvq_plan_fusion_options initialised() {
  kvq_plan_fusion_options it;
  kvq_plan_fusion_options_init(&it, sizeof(it));
  return it;
}
#endif

#ifdef KVQ_EXPERIMENTAL
template <>
inline kvq_plan_content initialised() {
  kvq_plan_content it;
  kvq_plan_content_init(&it, sizeof(it));
  return it;
}
#endif

namespace detail {

/// An owned handle, or none. Of most objects a `const` one gives a `const` pointer, for what several threads may do at
/// once; of those that any number of threads may use it gives the pointer itself.
template <class Handle, void (*destroy)(Handle*), class Viewed>
class Owned {
 public:
  using Pointer = Handle*;

  Owned(std::nullptr_t) noexcept {}
  /// Takes over what a function of kvq.h has made.
  explicit Owned(Handle* handle) noexcept : handle_(handle) {}
  Owned(Owned&& other) noexcept : handle_(other.release()) {}
  Owned& operator=(Owned&& other) noexcept {
    if (this != &other) reset(other.release());
    return *this;
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  ~Owned() { destroy(handle_); }

  Handle* get() noexcept { return handle_; }
  Viewed* get() const noexcept { return handle_; }
  operator Handle*() noexcept { return handle_; }
  operator Viewed*() const noexcept { return handle_; }

  /// Gives the handle up: the caller destroys it.
  [[nodiscard]] Handle* release() noexcept { return std::exchange(handle_, nullptr); }
  void reset(Handle* handle = nullptr) noexcept { destroy(std::exchange(handle_, handle)); }

 private:
  Handle* handle_ = nullptr;
};

/// What `create(arguments..., &handle, error)` makes.
template <class Object, class Create, class... Arguments>
Object made(Create create, Arguments... arguments) {
  typename Object::Pointer handle = nullptr;
  checked(create, arguments..., &handle);
  return Object(handle);
}

/// What `describe(arguments..., &it, error)` says.
template <class It, class Describe, class... Arguments>
It described(Describe describe, Arguments... arguments) {
  It it = initialised<It>();
  checked(describe, arguments..., &it);
  return it;
}

/// What `count(arguments..., &number, error)` says.
template <class Number, class Count, class... Arguments>
Number counted(Count count, Arguments... arguments) {
  Number number = 0;
  checked(count, arguments..., &number);
  return number;
}

/// What `save(arguments..., buffer, capacity, &size, error)` writes, bytes or text.
template <class Bytes = std::vector<std::byte>, class Save, class... Arguments>
Bytes saved(Save save, Arguments... arguments) {
  Bytes bytes;
  bytes.resize(counted<size_t>(save, arguments..., nullptr, size_t{0}));
  size_t size = 0;
  checked(save, arguments..., bytes.data(), bytes.size(), &size);
  return bytes;
}

/// `name_of(0)` to `name_of(n - 1)`.
inline std::vector<std::string> names(int32_t n, const char* (*name_of)(int32_t)) {
  std::vector<std::string> all;
  for (int32_t i = 0; i < n; ++i) all.emplace_back(name_of(i));
  return all;
}

/// Text for a C function, which would not see beyond a NUL.
inline const char* c_string(const std::string& text, const char* name) {
  if (text.find('\0') == std::string::npos) return text.c_str();
  throw Error(KVQ_E_ARGUMENT, std::string(name) + " contains a NUL");
}

inline const char* c_string_or_null(const std::string& text, const char* name) {
  return text.empty() ? nullptr : c_string(text, name);
}

/// Numbers of elements: what is too large for int64_t is its largest number, and negative ones are -1.
inline int64_t product(std::initializer_list<int64_t> factors) {
  int64_t all = 1;
  for (const int64_t factor : factors) {
    if (factor < 0) return -1;
    if (factor != 0 && all > std::numeric_limits<int64_t>::max() / factor) return std::numeric_limits<int64_t>::max();
    all *= factor;
  }
  return all;
}

inline int64_t sum(int64_t a, int64_t b) {
  if (a < 0 || b < 0) return -1;
  return a > std::numeric_limits<int64_t>::max() - b ? std::numeric_limits<int64_t>::max() : a + b;
}

/// Of an optional array: without it there is one of each.
inline int64_t sum(std::span<const int32_t> numbers, int32_t n) {
  if (numbers.empty()) return n;
  int64_t all = 0;
  for (const int32_t number : numbers) all = sum(all, number);
  return all;
}

inline std::string size_text(const char* name, size_t size, const std::string& expected) {
  return std::string(name) + " has " + std::to_string(size) + " elements instead of " + expected;
}

inline void require_size(const char* name, size_t size, int64_t expected, const char* meaning) {
  if (expected >= 0 && size == static_cast<uint64_t>(expected)) return;
  throw Error(KVQ_E_ARGUMENT, size_text(name, size, std::to_string(expected) + " (" + meaning + ")"));
}

inline void require_size_or_none(const char* name, size_t size, int64_t expected, const char* meaning) {
  if (size != 0) require_size(name, size, expected, meaning);
}

/// Of rows `[tokens, heads, channels]`: those of a dense tensor, or as many as the strides reach.
inline void require_rows(const char* name, size_t size, std::initializer_list<int64_t> shape, int64_t token_stride,
                         int64_t head_stride, const char* meaning) {
  if (token_stride == 0 && head_stride == 0) return require_size(name, size, product(shape), meaning);
  const int64_t tokens = shape.begin()[0], heads = shape.begin()[1], channels = shape.begin()[2];
  const int64_t of_head = head_stride != 0 ? head_stride : channels;
  const int64_t of_token = token_stride != 0 ? token_stride : product({heads, channels});
  const int64_t reach = sum(sum(product({tokens - 1, of_token}), product({heads - 1, of_head})), channels);
  if (reach < 0 || size >= static_cast<uint64_t>(reach)) return;  // the library names a stride that is negative
  throw Error(KVQ_E_ARGUMENT,
              size_text(name, size, "at least " + std::to_string(reach) + " (" + meaning + " with the strides)"));
}

/// The size of a list, as the C functions count.
inline int32_t count(const char* name, size_t size) {
  if (size <= static_cast<size_t>(std::numeric_limits<int32_t>::max())) return static_cast<int32_t>(size);
  throw Error(KVQ_E_ARGUMENT, size_text(name, size, "at most 2147483647"));
}

/// The pointer of an optional span: NULL if it is empty.
template <class T>
T* optional(std::span<T> span) {
  return span.empty() ? nullptr : span.data();
}

/// The C function that calls a function object of a HookState; after an exception it returns what means failure.
template <class Hook>
struct Trampoline;

/// Function objects that are called as C hooks, and the first exception that left one of them.
template <class Functions>
class HookState {
 public:
  explicit HookState(Functions of_host) : functions(std::move(of_host)) {}

  /// A function object as a hook, whose `user` is this; NULL if there is none.
  template <class Hook, auto member>
  Hook hook() const {
    return functions.*member ? &Trampoline<Hook>::template call<Functions, member> : nullptr;
  }

  void keep_exception() noexcept {
    const std::lock_guard lock(mutex_);
    if (!thrown_) thrown_ = std::current_exception();
  }
  /// Throws what was kept, once.
  void rethrow() {
    std::exception_ptr thrown;
    {
      const std::lock_guard lock(mutex_);
      thrown.swap(thrown_);
    }
    if (thrown) std::rethrow_exception(thrown);
  }

  Functions functions;

 private:
  std::mutex mutex_;
  std::exception_ptr thrown_;
};

template <class Result, class... Arguments>
struct Trampoline<Result (*)(void*, Arguments...)> {
  template <class Functions, std::function<Result(Arguments...)> Functions::*member>
  static Result call(void* user, Arguments... arguments) noexcept {
    auto& state = *static_cast<HookState<Functions>*>(user);
    try {
      return (state.functions.*member)(arguments...);
    } catch (...) {
      state.keep_exception();
    }
    if constexpr (std::is_integral_v<Result>) {
      return 1;
    } else {
      return Result();
    }
  }
};

/// The last hook of a context, after which its HookState goes.
template <class Functions>
void release_hooks(void* user) noexcept {
  const std::unique_ptr<HookState<Functions>> state(static_cast<HookState<Functions>*>(user));
  try {
    if (state->functions.released) state->functions.released();
  } catch (...) {  // nobody is left to be told
  }
}

template <class Function>
struct OneHook {
  Function function;
};

/// A hook for one call.
template <class Hook, class Function>
class CallHook {
 public:
  explicit CallHook(Function function) : state_({std::move(function)}) {}

  Hook hook() const { return state_.template hook<Hook, &OneHook<Function>::function>(); }
  void* user() { return &state_; }

  /// Runs `call`, which uses the hook. What that threw is thrown in place of the failure that came of it.
  template <class Call>
  void during(Call call) {
    try {
      call();
    } catch (const Error&) {
      state_.rethrow();
      throw;
    }
    state_.rethrow();
  }

 private:
  HookState<OneHook<Function>> state_;
};

}  // namespace detail

/// The pointers of objects, for the lists of batches.
template <class... Objects>
requires(sizeof...(Objects) > 0 &&
         requires(Objects & ... objects) { std::array{objects.get()...}; }) auto pointers(Objects&... objects) {
  return std::array{objects.get()...};
}

/// Of a container of objects.
template <class Objects>
requires requires(Objects& objects) { std::begin(objects)->get(); }
auto pointers(Objects&& objects) {
  std::vector<decltype(std::begin(objects)->get())> all;
  for (auto& object : objects) all.push_back(object.get());
  return all;
}

// kvq.h is the one that this was made from, or a newer one: its numbers, and the layout of every struct.
static_assert(KVQ_OK == 0);
static_assert(KVQ_E_ARGUMENT == -1);
static_assert(KVQ_E_MEMORY == -2);
static_assert(KVQ_E_LIMIT == -3);
static_assert(KVQ_E_STATE == -4);
static_assert(KVQ_E_FORMAT == -5);
static_assert(KVQ_E_MISMATCH == -6);
static_assert(KVQ_E_UNSUPPORTED == -7);
static_assert(KVQ_E_BACKEND == -8);
static_assert(KVQ_E_INTERNAL == -9);
static_assert(KVQ_E_CANCELLED == -10);
static_assert(KVQ_E_BUFFER_SIZE == -11);
static_assert(KVQ_F32 == 0);
static_assert(KVQ_F16 == 1);
static_assert(KVQ_BF16 == 2);
static_assert(KVQ_DEVICE_CPU == 0);
static_assert(KVQ_DEVICE_CUDA == 1);
static_assert(KVQ_ROPE_NONE == 0);
static_assert(KVQ_ROPE_HALF == 1);
static_assert(KVQ_ROPE_INTERLEAVED == 2);
static_assert(KVQ_LOG_ERROR == 0);
static_assert(KVQ_LOG_WARNING == 1);
static_assert(KVQ_LOG_INFO == 2);
static_assert(KVQ_PAGE_SLOTS == 32);
static_assert(KVQ_SCOPE_LAYER == 0);
static_assert(KVQ_SCOPE_HEAD == 1);
static_assert(KVQ_MAX_KEY_STAGES == 64);
static_assert(KVQ_MAX_EXPERTS == 8);
static_assert(KVQ_MAX_FUSED == 4);
static_assert(KVQ_FORMATS_SIZE == 256);
static_assert(KVQ_ROUTER_LABEL == 0);
static_assert(KVQ_ROUTER_PAPER == 1);
static_assert(QP_ROUNDING_LDLQ == 0);
static_assert(QP_ROUNDING_NEAREST == 1);

#ifdef KVQ_EXPERIMENTAL
static_assert(KVQ_VALUES_LEAST_SQUARES == 0);
static_assert(KVQ_VALUES_NETWORK == 1);
#endif

#ifdef KVQ_EXPERIMENTAL
static_assert(KVQ_PLAN_BYTES == 0);
static_assert(KVQ_PLAN_SECONDS == 1);
static_assert(KVQ_PLAN_LOSS == 2);
#endif
static_assert(sizeof(void*) != 8 || sizeof(kvq_error) == 268);
static_assert(sizeof(void*) != 8 || offsetof(kvq_error, struct_size) == 0);
static_assert(sizeof(void*) != 8 || offsetof(kvq_error, code) == 4);
static_assert(sizeof(void*) != 8 || offsetof(kvq_error, backend_code) == 8);
static_assert(sizeof(void*) != 8 || offsetof(kvq_error, message) == 12);
static_assert(sizeof(void*) != 8 || sizeof(kvq_context_options) == 152);
static_assert(sizeof(void*) != 8 || offsetof(kvq_context_options, struct_size) == 0);
static_assert(sizeof(void*) != 8 || offsetof(kvq_context_options, device) == 4);
static_assert(sizeof(void*) != 8 || offsetof(kvq_context_options, n_threads) == 8);
static_assert(sizeof(void*) != 8 || offsetof(kvq_context_options, reserved) == 12);
static_assert(sizeof(void*) != 8 || offsetof(kvq_context_options, max_bytes) == 16);
static_assert(sizeof(void*) != 8 || offsetof(kvq_context_options, cpu_isa) == 24);
static_assert(sizeof(void*) != 8 || offsetof(kvq_context_options, allocate) == 32);
static_assert(sizeof(void*) != 8 || offsetof(kvq_context_options, free) == 40);
static_assert(sizeof(void*) != 8 || offsetof(kvq_context_options, allocator_user) == 48);
static_assert(sizeof(void*) != 8 || offsetof(kvq_context_options, log) == 56);
static_assert(sizeof(void*) != 8 || offsetof(kvq_context_options, log_user) == 64);
static_assert(sizeof(void*) != 8 || offsetof(kvq_context_options, parallel_for) == 72);
static_assert(sizeof(void*) != 8 || offsetof(kvq_context_options, parallel_for_user) == 80);
static_assert(sizeof(void*) != 8 || offsetof(kvq_context_options, device_index) == 88);
static_assert(sizeof(void*) != 8 || offsetof(kvq_context_options, reserved2) == 92);
static_assert(sizeof(void*) != 8 || offsetof(kvq_context_options, plugin) == 96);
static_assert(sizeof(void*) != 8 || offsetof(kvq_context_options, stream) == 104);
static_assert(sizeof(void*) != 8 || offsetof(kvq_context_options, device_allocate) == 112);
static_assert(sizeof(void*) != 8 || offsetof(kvq_context_options, device_free) == 120);
static_assert(sizeof(void*) != 8 || offsetof(kvq_context_options, device_allocator_user) == 128);
static_assert(sizeof(void*) != 8 || offsetof(kvq_context_options, released) == 136);
static_assert(sizeof(void*) != 8 || offsetof(kvq_context_options, released_user) == 144);
static_assert(sizeof(void*) != 8 || sizeof(kvq_context_info) == 56);
static_assert(sizeof(void*) != 8 || offsetof(kvq_context_info, struct_size) == 0);
static_assert(sizeof(void*) != 8 || offsetof(kvq_context_info, device) == 4);
static_assert(sizeof(void*) != 8 || offsetof(kvq_context_info, n_threads) == 8);
static_assert(sizeof(void*) != 8 || offsetof(kvq_context_info, reserved) == 12);
static_assert(sizeof(void*) != 8 || offsetof(kvq_context_info, backend) == 16);
static_assert(sizeof(void*) != 8 || offsetof(kvq_context_info, isa) == 24);
static_assert(sizeof(void*) != 8 || offsetof(kvq_context_info, bytes) == 32);
static_assert(sizeof(void*) != 8 || offsetof(kvq_context_info, peak_bytes) == 40);
static_assert(sizeof(void*) != 8 || offsetof(kvq_context_info, max_bytes) == 48);
static_assert(sizeof(void*) != 8 || sizeof(kvq_device_info) == 152);
static_assert(sizeof(void*) != 8 || offsetof(kvq_device_info, struct_size) == 0);
static_assert(sizeof(void*) != 8 || offsetof(kvq_device_info, n_devices) == 4);
static_assert(sizeof(void*) != 8 || offsetof(kvq_device_info, name) == 8);
static_assert(sizeof(void*) != 8 || offsetof(kvq_device_info, compute_capability) == 136);
static_assert(sizeof(void*) != 8 || offsetof(kvq_device_info, driver_version) == 140);
static_assert(sizeof(void*) != 8 || offsetof(kvq_device_info, memory_bytes) == 144);
static_assert(sizeof(void*) != 8 || sizeof(kvq_policy_info) == 16);
static_assert(sizeof(void*) != 8 || offsetof(kvq_policy_info, struct_size) == 0);
static_assert(sizeof(void*) != 8 || offsetof(kvq_policy_info, eviction_budget) == 4);
static_assert(sizeof(void*) != 8 || offsetof(kvq_policy_info, eviction_window) == 8);
static_assert(sizeof(void*) != 8 || offsetof(kvq_policy_info, reserved) == 12);
static_assert(sizeof(void*) != 8 || sizeof(kvq_codebook_info) == 120);
static_assert(sizeof(void*) != 8 || offsetof(kvq_codebook_info, struct_size) == 0);
static_assert(sizeof(void*) != 8 || offsetof(kvq_codebook_info, n_layers) == 4);
static_assert(sizeof(void*) != 8 || offsetof(kvq_codebook_info, layers_present) == 8);
static_assert(sizeof(void*) != 8 || offsetof(kvq_codebook_info, kv_heads) == 12);
static_assert(sizeof(void*) != 8 || offsetof(kvq_codebook_info, head_dim) == 16);
static_assert(sizeof(void*) != 8 || offsetof(kvq_codebook_info, rope) == 20);
static_assert(sizeof(void*) != 8 || offsetof(kvq_codebook_info, key_stages) == 24);
static_assert(sizeof(void*) != 8 || offsetof(kvq_codebook_info, key_codes) == 28);
static_assert(sizeof(void*) != 8 || offsetof(kvq_codebook_info, key_group) == 32);
static_assert(sizeof(void*) != 8 || offsetof(kvq_codebook_info, key_norms) == 36);
static_assert(sizeof(void*) != 8 || offsetof(kvq_codebook_info, value_bits) == 40);
static_assert(sizeof(void*) != 8 || offsetof(kvq_codebook_info, value_scope) == 44);
static_assert(sizeof(void*) != 8 || offsetof(kvq_codebook_info, key_true_bits) == 48);
static_assert(sizeof(void*) != 8 || offsetof(kvq_codebook_info, value_true_bits) == 56);
static_assert(sizeof(void*) != 8 || offsetof(kvq_codebook_info, key_error) == 64);
static_assert(sizeof(void*) != 8 || offsetof(kvq_codebook_info, value_error) == 72);
static_assert(sizeof(void*) != 8 || offsetof(kvq_codebook_info, tokens) == 80);
static_assert(sizeof(void*) != 8 || offsetof(kvq_codebook_info, seed) == 88);
static_assert(sizeof(void*) != 8 || offsetof(kvq_codebook_info, model_id) == 96);
static_assert(sizeof(void*) != 8 || offsetof(kvq_codebook_info, bytes) == 104);
static_assert(sizeof(void*) != 8 || offsetof(kvq_codebook_info, note) == 112);
static_assert(sizeof(void*) != 8 || sizeof(kvq_codebook_layer_info) == 544);
static_assert(sizeof(void*) != 8 || offsetof(kvq_codebook_layer_info, struct_size) == 0);
static_assert(sizeof(void*) != 8 || offsetof(kvq_codebook_layer_info, present) == 4);
static_assert(sizeof(void*) != 8 || offsetof(kvq_codebook_layer_info, tokens) == 8);
static_assert(sizeof(void*) != 8 || offsetof(kvq_codebook_layer_info, key_error) == 16);
static_assert(sizeof(void*) != 8 || offsetof(kvq_codebook_layer_info, value_error) == 24);
static_assert(sizeof(void*) != 8 || offsetof(kvq_codebook_layer_info, key_stage_errors) == 32);
static_assert(sizeof(void*) != 8 || sizeof(kvq_centres_info) == 88);
static_assert(sizeof(void*) != 8 || offsetof(kvq_centres_info, struct_size) == 0);
static_assert(sizeof(void*) != 8 || offsetof(kvq_centres_info, n_layers) == 4);
static_assert(sizeof(void*) != 8 || offsetof(kvq_centres_info, layers_present) == 8);
static_assert(sizeof(void*) != 8 || offsetof(kvq_centres_info, kv_heads) == 12);
static_assert(sizeof(void*) != 8 || offsetof(kvq_centres_info, head_dim) == 16);
static_assert(sizeof(void*) != 8 || offsetof(kvq_centres_info, rope) == 20);
static_assert(sizeof(void*) != 8 || offsetof(kvq_centres_info, key_centres) == 24);
static_assert(sizeof(void*) != 8 || offsetof(kvq_centres_info, value_centres) == 28);
static_assert(sizeof(void*) != 8 || offsetof(kvq_centres_info, key_residual) == 32);
static_assert(sizeof(void*) != 8 || offsetof(kvq_centres_info, value_residual) == 40);
static_assert(sizeof(void*) != 8 || offsetof(kvq_centres_info, tokens) == 48);
static_assert(sizeof(void*) != 8 || offsetof(kvq_centres_info, seed) == 56);
static_assert(sizeof(void*) != 8 || offsetof(kvq_centres_info, model_id) == 64);
static_assert(sizeof(void*) != 8 || offsetof(kvq_centres_info, bytes) == 72);
static_assert(sizeof(void*) != 8 || offsetof(kvq_centres_info, note) == 80);
static_assert(sizeof(void*) != 8 || sizeof(kvq_centres_layer_info) == 32);
static_assert(sizeof(void*) != 8 || offsetof(kvq_centres_layer_info, struct_size) == 0);
static_assert(sizeof(void*) != 8 || offsetof(kvq_centres_layer_info, present) == 4);
static_assert(sizeof(void*) != 8 || offsetof(kvq_centres_layer_info, tokens) == 8);
static_assert(sizeof(void*) != 8 || offsetof(kvq_centres_layer_info, key_residual) == 16);
static_assert(sizeof(void*) != 8 || offsetof(kvq_centres_layer_info, value_residual) == 24);
static_assert(sizeof(void*) != 8 || sizeof(kvq_router_info) == 120);
static_assert(sizeof(void*) != 8 || offsetof(kvq_router_info, struct_size) == 0);
static_assert(sizeof(void*) != 8 || offsetof(kvq_router_info, n_layers) == 4);
static_assert(sizeof(void*) != 8 || offsetof(kvq_router_info, kv_heads) == 8);
static_assert(sizeof(void*) != 8 || offsetof(kvq_router_info, head_dim) == 12);
static_assert(sizeof(void*) != 8 || offsetof(kvq_router_info, rope) == 16);
static_assert(sizeof(void*) != 8 || offsetof(kvq_router_info, sharing) == 20);
static_assert(sizeof(void*) != 8 || offsetof(kvq_router_info, groups) == 24);
static_assert(sizeof(void*) != 8 || offsetof(kvq_router_info, n_experts) == 28);
static_assert(sizeof(void*) != 8 || offsetof(kvq_router_info, method) == 32);
static_assert(sizeof(void*) != 8 || offsetof(kvq_router_info, reserved) == 36);
static_assert(sizeof(void*) != 8 || offsetof(kvq_router_info, loss_weight) == 40);
static_assert(sizeof(void*) != 8 || offsetof(kvq_router_info, mean_bits) == 48);
static_assert(sizeof(void*) != 8 || offsetof(kvq_router_info, tolerance) == 56);
static_assert(sizeof(void*) != 8 || offsetof(kvq_router_info, accuracy) == 64);
static_assert(sizeof(void*) != 8 || offsetof(kvq_router_info, tokens) == 72);
static_assert(sizeof(void*) != 8 || offsetof(kvq_router_info, seed) == 80);
static_assert(sizeof(void*) != 8 || offsetof(kvq_router_info, model_id) == 88);
static_assert(sizeof(void*) != 8 || offsetof(kvq_router_info, bytes) == 96);
static_assert(sizeof(void*) != 8 || offsetof(kvq_router_info, experts) == 104);
static_assert(sizeof(void*) != 8 || offsetof(kvq_router_info, note) == 112);
static_assert(sizeof(void*) != 8 || sizeof(kvq_router_group_info) == 96);
static_assert(sizeof(void*) != 8 || offsetof(kvq_router_group_info, struct_size) == 0);
static_assert(sizeof(void*) != 8 || offsetof(kvq_router_group_info, first_layer) == 4);
static_assert(sizeof(void*) != 8 || offsetof(kvq_router_group_info, last_layer) == 8);
static_assert(sizeof(void*) != 8 || offsetof(kvq_router_group_info, reserved) == 12);
static_assert(sizeof(void*) != 8 || offsetof(kvq_router_group_info, mean_bits) == 16);
static_assert(sizeof(void*) != 8 || offsetof(kvq_router_group_info, accuracy) == 24);
static_assert(sizeof(void*) != 8 || offsetof(kvq_router_group_info, shares) == 32);
static_assert(sizeof(void*) != 8 || sizeof(kvq_cache_options) == 88);
static_assert(sizeof(void*) != 8 || offsetof(kvq_cache_options, struct_size) == 0);
static_assert(sizeof(void*) != 8 || offsetof(kvq_cache_options, n_layers) == 4);
static_assert(sizeof(void*) != 8 || offsetof(kvq_cache_options, q_heads) == 8);
static_assert(sizeof(void*) != 8 || offsetof(kvq_cache_options, kv_heads) == 12);
static_assert(sizeof(void*) != 8 || offsetof(kvq_cache_options, head_dim) == 16);
static_assert(sizeof(void*) != 8 || offsetof(kvq_cache_options, rope) == 20);
static_assert(sizeof(void*) != 8 || offsetof(kvq_cache_options, rotary_dim) == 24);
static_assert(sizeof(void*) != 8 || offsetof(kvq_cache_options, rope_base) == 28);
static_assert(sizeof(void*) != 8 || offsetof(kvq_cache_options, inv_freq) == 32);
static_assert(sizeof(void*) != 8 || offsetof(kvq_cache_options, scale) == 40);
static_assert(sizeof(void*) != 8 || offsetof(kvq_cache_options, reserved) == 44);
static_assert(sizeof(void*) != 8 || offsetof(kvq_cache_options, max_bytes) == 48);
static_assert(sizeof(void*) != 8 || offsetof(kvq_cache_options, model_id) == 56);
static_assert(sizeof(void*) != 8 || offsetof(kvq_cache_options, codebook) == 64);
static_assert(sizeof(void*) != 8 || offsetof(kvq_cache_options, router) == 72);
static_assert(sizeof(void*) != 8 || offsetof(kvq_cache_options, centres) == 80);
static_assert(sizeof(void*) != 8 || sizeof(kvq_cache_info) == 64);
static_assert(sizeof(void*) != 8 || offsetof(kvq_cache_info, struct_size) == 0);
static_assert(sizeof(void*) != 8 || offsetof(kvq_cache_info, n_layers) == 4);
static_assert(sizeof(void*) != 8 || offsetof(kvq_cache_info, q_heads) == 8);
static_assert(sizeof(void*) != 8 || offsetof(kvq_cache_info, kv_heads) == 12);
static_assert(sizeof(void*) != 8 || offsetof(kvq_cache_info, head_dim) == 16);
static_assert(sizeof(void*) != 8 || offsetof(kvq_cache_info, rope) == 20);
static_assert(sizeof(void*) != 8 || offsetof(kvq_cache_info, rotary_dim) == 24);
static_assert(sizeof(void*) != 8 || offsetof(kvq_cache_info, scale) == 28);
static_assert(sizeof(void*) != 8 || offsetof(kvq_cache_info, sink) == 32);
static_assert(sizeof(void*) != 8 || offsetof(kvq_cache_info, recent) == 36);
static_assert(sizeof(void*) != 8 || offsetof(kvq_cache_info, eviction_budget) == 40);
static_assert(sizeof(void*) != 8 || offsetof(kvq_cache_info, eviction_window) == 44);
static_assert(sizeof(void*) != 8 || offsetof(kvq_cache_info, max_bytes) == 48);
static_assert(sizeof(void*) != 8 || offsetof(kvq_cache_info, model_id) == 56);
static_assert(sizeof(void*) != 8 || sizeof(kvq_layer_info) == 264);
static_assert(sizeof(void*) != 8 || offsetof(kvq_layer_info, struct_size) == 0);
static_assert(sizeof(void*) != 8 || offsetof(kvq_layer_info, n_formats) == 4);
static_assert(sizeof(void*) != 8 || offsetof(kvq_layer_info, formats) == 8);
static_assert(sizeof(void*) != 8 || sizeof(kvq_append_batch) == 88);
static_assert(sizeof(void*) != 8 || offsetof(kvq_append_batch, struct_size) == 0);
static_assert(sizeof(void*) != 8 || offsetof(kvq_append_batch, n_sequences) == 4);
static_assert(sizeof(void*) != 8 || offsetof(kvq_append_batch, sequences) == 8);
static_assert(sizeof(void*) != 8 || offsetof(kvq_append_batch, token_counts) == 16);
static_assert(sizeof(void*) != 8 || offsetof(kvq_append_batch, positions) == 24);
static_assert(sizeof(void*) != 8 || offsetof(kvq_append_batch, k) == 32);
static_assert(sizeof(void*) != 8 || offsetof(kvq_append_batch, v) == 40);
static_assert(sizeof(void*) != 8 || offsetof(kvq_append_batch, dtype) == 48);
static_assert(sizeof(void*) != 8 || offsetof(kvq_append_batch, reserved) == 52);
static_assert(sizeof(void*) != 8 || offsetof(kvq_append_batch, k_token_stride) == 56);
static_assert(sizeof(void*) != 8 || offsetof(kvq_append_batch, k_head_stride) == 64);
static_assert(sizeof(void*) != 8 || offsetof(kvq_append_batch, v_token_stride) == 72);
static_assert(sizeof(void*) != 8 || offsetof(kvq_append_batch, v_head_stride) == 80);
static_assert(sizeof(void*) != 8 || sizeof(kvq_compress_options) == 24);
static_assert(sizeof(void*) != 8 || offsetof(kvq_compress_options, struct_size) == 0);
static_assert(sizeof(void*) != 8 || offsetof(kvq_compress_options, budget) == 4);
static_assert(sizeof(void*) != 8 || offsetof(kvq_compress_options, kept) == 8);
static_assert(sizeof(void*) != 8 || offsetof(kvq_compress_options, bytes_freed) == 16);
static_assert(sizeof(void*) != 8 || sizeof(kvq_attend_batch) == 112);
static_assert(sizeof(void*) != 8 || offsetof(kvq_attend_batch, struct_size) == 0);
static_assert(sizeof(void*) != 8 || offsetof(kvq_attend_batch, n_sequences) == 4);
static_assert(sizeof(void*) != 8 || offsetof(kvq_attend_batch, sequences) == 8);
static_assert(sizeof(void*) != 8 || offsetof(kvq_attend_batch, query_counts) == 16);
static_assert(sizeof(void*) != 8 || offsetof(kvq_attend_batch, query_positions) == 24);
static_assert(sizeof(void*) != 8 || offsetof(kvq_attend_batch, q) == 32);
static_assert(sizeof(void*) != 8 || offsetof(kvq_attend_batch, q_dtype) == 40);
static_assert(sizeof(void*) != 8 || offsetof(kvq_attend_batch, output_dtype) == 44);
static_assert(sizeof(void*) != 8 || offsetof(kvq_attend_batch, output) == 48);
static_assert(sizeof(void*) != 8 || offsetof(kvq_attend_batch, sliding_window) == 56);
static_assert(sizeof(void*) != 8 || offsetof(kvq_attend_batch, logit_softcap) == 60);
static_assert(sizeof(void*) != 8 || offsetof(kvq_attend_batch, q_token_stride) == 64);
static_assert(sizeof(void*) != 8 || offsetof(kvq_attend_batch, q_head_stride) == 72);
static_assert(sizeof(void*) != 8 || offsetof(kvq_attend_batch, output_token_stride) == 80);
static_assert(sizeof(void*) != 8 || offsetof(kvq_attend_batch, output_head_stride) == 88);
static_assert(sizeof(void*) != 8 || offsetof(kvq_attend_batch, lse) == 96);
static_assert(sizeof(void*) != 8 || offsetof(kvq_attend_batch, sinks) == 104);
static_assert(sizeof(void*) != 8 || sizeof(kvq_usage) == 96);
static_assert(sizeof(void*) != 8 || offsetof(kvq_usage, struct_size) == 0);
static_assert(sizeof(void*) != 8 || offsetof(kvq_usage, reserved) == 4);
static_assert(sizeof(void*) != 8 || offsetof(kvq_usage, scalars) == 8);
static_assert(sizeof(void*) != 8 || offsetof(kvq_usage, sealed_bytes) == 16);
static_assert(sizeof(void*) != 8 || offsetof(kvq_usage, fp16_bytes) == 24);
static_assert(sizeof(void*) != 8 || offsetof(kvq_usage, metadata_bytes) == 32);
static_assert(sizeof(void*) != 8 || offsetof(kvq_usage, workspace_bytes) == 40);
static_assert(sizeof(void*) != 8 || offsetof(kvq_usage, total_bytes) == 48);
static_assert(sizeof(void*) != 8 || offsetof(kvq_usage, plain_fp16_bytes) == 56);
static_assert(sizeof(void*) != 8 || offsetof(kvq_usage, sealed_pages) == 64);
static_assert(sizeof(void*) != 8 || offsetof(kvq_usage, fp16_pages) == 72);
static_assert(sizeof(void*) != 8 || offsetof(kvq_usage, shared_pages) == 80);
static_assert(sizeof(void*) != 8 || offsetof(kvq_usage, bits_per_scalar) == 88);
static_assert(sizeof(void*) != 8 || sizeof(qp_quantize_options) == 72);
static_assert(sizeof(void*) != 8 || offsetof(qp_quantize_options, struct_size) == 0);
static_assert(sizeof(void*) != 8 || offsetof(qp_quantize_options, dtype) == 4);
static_assert(sizeof(void*) != 8 || offsetof(qp_quantize_options, scheme) == 8);
static_assert(sizeof(void*) != 8 || offsetof(qp_quantize_options, seed) == 16);
static_assert(sizeof(void*) != 8 || offsetof(qp_quantize_options, hessian) == 24);
static_assert(sizeof(void*) != 8 || offsetof(qp_quantize_options, rounding) == 32);
static_assert(sizeof(void*) != 8 || offsetof(qp_quantize_options, reserved) == 36);
static_assert(sizeof(void*) != 8 || offsetof(qp_quantize_options, damping) == 40);
static_assert(sizeof(void*) != 8 || offsetof(qp_quantize_options, bias) == 48);
static_assert(sizeof(void*) != 8 || offsetof(qp_quantize_options, progress) == 56);
static_assert(sizeof(void*) != 8 || offsetof(qp_quantize_options, progress_user) == 64);
static_assert(sizeof(void*) != 8 || sizeof(qp_matrix_info) == 64);
static_assert(sizeof(void*) != 8 || offsetof(qp_matrix_info, struct_size) == 0);
static_assert(sizeof(void*) != 8 || offsetof(qp_matrix_info, has_bias) == 4);
static_assert(sizeof(void*) != 8 || offsetof(qp_matrix_info, rows) == 8);
static_assert(sizeof(void*) != 8 || offsetof(qp_matrix_info, columns) == 16);
static_assert(sizeof(void*) != 8 || offsetof(qp_matrix_info, bytes) == 24);
static_assert(sizeof(void*) != 8 || offsetof(qp_matrix_info, bits) == 32);
static_assert(sizeof(void*) != 8 || offsetof(qp_matrix_info, error) == 40);
static_assert(sizeof(void*) != 8 || offsetof(qp_matrix_info, proxy_error) == 48);
static_assert(sizeof(void*) != 8 || offsetof(qp_matrix_info, scheme) == 56);

#ifdef KVQ_EXPERIMENTAL
static_assert(sizeof(void*) != 8 || sizeof(kvq_codebook_trainer_options) == 88);
static_assert(sizeof(void*) != 8 || offsetof(kvq_codebook_trainer_options, struct_size) == 0);
static_assert(sizeof(void*) != 8 || offsetof(kvq_codebook_trainer_options, n_layers) == 4);
static_assert(sizeof(void*) != 8 || offsetof(kvq_codebook_trainer_options, kv_heads) == 8);
static_assert(sizeof(void*) != 8 || offsetof(kvq_codebook_trainer_options, head_dim) == 12);
static_assert(sizeof(void*) != 8 || offsetof(kvq_codebook_trainer_options, rope) == 16);
static_assert(sizeof(void*) != 8 || offsetof(kvq_codebook_trainer_options, key_stages) == 20);
static_assert(sizeof(void*) != 8 || offsetof(kvq_codebook_trainer_options, key_codes) == 24);
static_assert(sizeof(void*) != 8 || offsetof(kvq_codebook_trainer_options, key_group) == 28);
static_assert(sizeof(void*) != 8 || offsetof(kvq_codebook_trainer_options, key_norms) == 32);
static_assert(sizeof(void*) != 8 || offsetof(kvq_codebook_trainer_options, value_bits) == 36);
static_assert(sizeof(void*) != 8 || offsetof(kvq_codebook_trainer_options, value_scope) == 40);
static_assert(sizeof(void*) != 8 || offsetof(kvq_codebook_trainer_options, key_rounds) == 44);
static_assert(sizeof(void*) != 8 || offsetof(kvq_codebook_trainer_options, value_rounds) == 48);
static_assert(sizeof(void*) != 8 || offsetof(kvq_codebook_trainer_options, value_method) == 52);
static_assert(sizeof(void*) != 8 || offsetof(kvq_codebook_trainer_options, seed) == 56);
static_assert(sizeof(void*) != 8 || offsetof(kvq_codebook_trainer_options, model_id) == 64);
static_assert(sizeof(void*) != 8 || offsetof(kvq_codebook_trainer_options, max_bytes) == 72);
static_assert(sizeof(void*) != 8 || offsetof(kvq_codebook_trainer_options, note) == 80);
#endif

#ifdef KVQ_EXPERIMENTAL
static_assert(sizeof(void*) != 8 || sizeof(kvq_centres_trainer_options) == 64);
static_assert(sizeof(void*) != 8 || offsetof(kvq_centres_trainer_options, struct_size) == 0);
static_assert(sizeof(void*) != 8 || offsetof(kvq_centres_trainer_options, n_layers) == 4);
static_assert(sizeof(void*) != 8 || offsetof(kvq_centres_trainer_options, kv_heads) == 8);
static_assert(sizeof(void*) != 8 || offsetof(kvq_centres_trainer_options, head_dim) == 12);
static_assert(sizeof(void*) != 8 || offsetof(kvq_centres_trainer_options, rope) == 16);
static_assert(sizeof(void*) != 8 || offsetof(kvq_centres_trainer_options, key_centres) == 20);
static_assert(sizeof(void*) != 8 || offsetof(kvq_centres_trainer_options, value_centres) == 24);
static_assert(sizeof(void*) != 8 || offsetof(kvq_centres_trainer_options, rounds) == 28);
static_assert(sizeof(void*) != 8 || offsetof(kvq_centres_trainer_options, seed) == 32);
static_assert(sizeof(void*) != 8 || offsetof(kvq_centres_trainer_options, model_id) == 40);
static_assert(sizeof(void*) != 8 || offsetof(kvq_centres_trainer_options, max_bytes) == 48);
static_assert(sizeof(void*) != 8 || offsetof(kvq_centres_trainer_options, note) == 56);
#endif

#ifdef KVQ_EXPERIMENTAL
static_assert(sizeof(void*) != 8 || sizeof(kvq_router_trainer_options) == 64);
static_assert(sizeof(void*) != 8 || offsetof(kvq_router_trainer_options, struct_size) == 0);
static_assert(sizeof(void*) != 8 || offsetof(kvq_router_trainer_options, method) == 4);
static_assert(sizeof(void*) != 8 || offsetof(kvq_router_trainer_options, sharing) == 8);
static_assert(sizeof(void*) != 8 || offsetof(kvq_router_trainer_options, epochs) == 12);
static_assert(sizeof(void*) != 8 || offsetof(kvq_router_trainer_options, mean_bits) == 16);
static_assert(sizeof(void*) != 8 || offsetof(kvq_router_trainer_options, loss_weight) == 24);
static_assert(sizeof(void*) != 8 || offsetof(kvq_router_trainer_options, learning_rate) == 32);
static_assert(sizeof(void*) != 8 || offsetof(kvq_router_trainer_options, seed) == 40);
static_assert(sizeof(void*) != 8 || offsetof(kvq_router_trainer_options, max_bytes) == 48);
static_assert(sizeof(void*) != 8 || offsetof(kvq_router_trainer_options, note) == 56);
#endif

#ifdef KVQ_EXPERIMENTAL
static_assert(sizeof(void*) != 8 || sizeof(kvq_plan_problem) == 80);
static_assert(sizeof(void*) != 8 || offsetof(kvq_plan_problem, struct_size) == 0);
static_assert(sizeof(void*) != 8 || offsetof(kvq_plan_problem, goal) == 4);
static_assert(sizeof(void*) != 8 || offsetof(kvq_plan_problem, n_choices) == 8);
static_assert(sizeof(void*) != 8 || offsetof(kvq_plan_problem, reserved) == 12);
static_assert(sizeof(void*) != 8 || offsetof(kvq_plan_problem, option_counts) == 16);
static_assert(sizeof(void*) != 8 || offsetof(kvq_plan_problem, bytes) == 24);
static_assert(sizeof(void*) != 8 || offsetof(kvq_plan_problem, seconds) == 32);
static_assert(sizeof(void*) != 8 || offsetof(kvq_plan_problem, loss) == 40);
static_assert(sizeof(void*) != 8 || offsetof(kvq_plan_problem, max_bytes) == 48);
static_assert(sizeof(void*) != 8 || offsetof(kvq_plan_problem, max_seconds) == 56);
static_assert(sizeof(void*) != 8 || offsetof(kvq_plan_problem, max_loss) == 64);
static_assert(sizeof(void*) != 8 || offsetof(kvq_plan_problem, tolerance) == 72);
#endif

#ifdef KVQ_EXPERIMENTAL
static_assert(sizeof(void*) != 8 || sizeof(kvq_plan_costs) == 40);
static_assert(sizeof(void*) != 8 || offsetof(kvq_plan_costs, struct_size) == 0);
static_assert(sizeof(void*) != 8 || offsetof(kvq_plan_costs, reserved) == 4);
static_assert(sizeof(void*) != 8 || offsetof(kvq_plan_costs, bytes) == 8);
static_assert(sizeof(void*) != 8 || offsetof(kvq_plan_costs, seconds) == 16);
static_assert(sizeof(void*) != 8 || offsetof(kvq_plan_costs, loss) == 24);
static_assert(sizeof(void*) != 8 || offsetof(kvq_plan_costs, bound) == 32);
#endif

#ifdef KVQ_EXPERIMENTAL
static_assert(sizeof(void*) != 8 || sizeof(kvq_plan_fusion_options) == 48);
static_assert(sizeof(void*) != 8 || offsetof(kvq_plan_fusion_options, struct_size) == 0);
static_assert(sizeof(void*) != 8 || offsetof(kvq_plan_fusion_options, n_members) == 4);
static_assert(sizeof(void*) != 8 || offsetof(kvq_plan_fusion_options, n_schemes) == 8);
static_assert(sizeof(void*) != 8 || offsetof(kvq_plan_fusion_options, n_groups) == 12);
static_assert(sizeof(void*) != 8 || offsetof(kvq_plan_fusion_options, groups) == 16);
static_assert(sizeof(void*) != 8 || offsetof(kvq_plan_fusion_options, bytes) == 24);
static_assert(sizeof(void*) != 8 || offsetof(kvq_plan_fusion_options, loss) == 32);
static_assert(sizeof(void*) != 8 || offsetof(kvq_plan_fusion_options, seconds) == 40);
#endif

#ifdef KVQ_EXPERIMENTAL
static_assert(sizeof(void*) != 8 || sizeof(kvq_plan_fusion_info) == 16);
static_assert(sizeof(void*) != 8 || offsetof(kvq_plan_fusion_info, struct_size) == 0);
static_assert(sizeof(void*) != 8 || offsetof(kvq_plan_fusion_info, n_members) == 4);
static_assert(sizeof(void*) != 8 || offsetof(kvq_plan_fusion_info, n_groupings) == 8);
static_assert(sizeof(void*) != 8 || offsetof(kvq_plan_fusion_info, reserved) == 12);
#endif

#ifdef KVQ_EXPERIMENTAL
static_assert(sizeof(void*) != 8 || sizeof(kvq_plan_grouping_info) == 64);
static_assert(sizeof(void*) != 8 || offsetof(kvq_plan_grouping_info, struct_size) == 0);
static_assert(sizeof(void*) != 8 || offsetof(kvq_plan_grouping_info, reserved) == 4);
static_assert(sizeof(void*) != 8 || offsetof(kvq_plan_grouping_info, bytes) == 8);
static_assert(sizeof(void*) != 8 || offsetof(kvq_plan_grouping_info, seconds) == 16);
static_assert(sizeof(void*) != 8 || offsetof(kvq_plan_grouping_info, loss) == 24);
static_assert(sizeof(void*) != 8 || offsetof(kvq_plan_grouping_info, groups) == 32);
static_assert(sizeof(void*) != 8 || offsetof(kvq_plan_grouping_info, schemes) == 48);
#endif

#ifdef KVQ_EXPERIMENTAL
static_assert(sizeof(void*) != 8 || sizeof(kvq_plan_content) == 64);
static_assert(sizeof(void*) != 8 || offsetof(kvq_plan_content, struct_size) == 0);
static_assert(sizeof(void*) != 8 || offsetof(kvq_plan_content, n_matrices) == 4);
static_assert(sizeof(void*) != 8 || offsetof(kvq_plan_content, names) == 8);
static_assert(sizeof(void*) != 8 || offsetof(kvq_plan_content, schemes) == 16);
static_assert(sizeof(void*) != 8 || offsetof(kvq_plan_content, policy) == 24);
static_assert(sizeof(void*) != 8 || offsetof(kvq_plan_content, bytes) == 32);
static_assert(sizeof(void*) != 8 || offsetof(kvq_plan_content, seconds) == 40);
static_assert(sizeof(void*) != 8 || offsetof(kvq_plan_content, loss) == 48);
static_assert(sizeof(void*) != 8 || offsetof(kvq_plan_content, note) == 56);
#endif

#ifdef KVQ_EXPERIMENTAL
static_assert(sizeof(void*) != 8 || sizeof(kvq_plan_info) == 48);
static_assert(sizeof(void*) != 8 || offsetof(kvq_plan_info, struct_size) == 0);
static_assert(sizeof(void*) != 8 || offsetof(kvq_plan_info, n_matrices) == 4);
static_assert(sizeof(void*) != 8 || offsetof(kvq_plan_info, has_policy) == 8);
static_assert(sizeof(void*) != 8 || offsetof(kvq_plan_info, reserved) == 12);
static_assert(sizeof(void*) != 8 || offsetof(kvq_plan_info, bytes) == 16);
static_assert(sizeof(void*) != 8 || offsetof(kvq_plan_info, seconds) == 24);
static_assert(sizeof(void*) != 8 || offsetof(kvq_plan_info, loss) == 32);
static_assert(sizeof(void*) != 8 || offsetof(kvq_plan_info, note) == 40);
#endif

#ifdef KVQ_EXPERIMENTAL
static_assert(sizeof(void*) != 8 || sizeof(kvq_plan_matrix_info) == 24);
static_assert(sizeof(void*) != 8 || offsetof(kvq_plan_matrix_info, struct_size) == 0);
static_assert(sizeof(void*) != 8 || offsetof(kvq_plan_matrix_info, reserved) == 4);
static_assert(sizeof(void*) != 8 || offsetof(kvq_plan_matrix_info, name) == 8);
static_assert(sizeof(void*) != 8 || offsetof(kvq_plan_matrix_info, scheme) == 16);
#endif

/// Name of a status code, for example "KVQ_E_LIMIT"; "unknown status" for other numbers.
inline const char* status_name(kvq_status status) { return kvq_status_name(status); }

/// The ::KVQ_API_VERSION that the loaded library implements: it has everything that a header of this or a smaller
/// number declares, apart from experimental parts.
inline int32_t api_version() { return kvq_api_version(); }

/// Version of the loaded library, "major.minor.patch".
inline const char* version_string() { return kvq_version_string(); }

/// Ask whether contexts can be created on a device, and on what.
/// \param device ::KVQ_DEVICE_CUDA.
/// \param index as kvq_context_options::device_index.
/// \param plugin as kvq_context_options::plugin.
/// \throws Error: KVQ_E_ARGUMENT; KVQ_E_UNSUPPORTED with the reason: no plug-in library, one of another version, a
/// library it needs is missing (its name), no driver, a driver too old, no such device.
inline kvq_device_info device_describe(kvq_device device, int32_t index, const std::string& plugin = {}) {
  return detail::described<kvq_device_info>(kvq_device_describe, device, index,
                                            detail::c_string_or_null(plugin, "plugin"));
}

/// Number of CPU instruction sets that this build has kernels for and this machine can run.
inline int32_t cpu_isa_count() { return kvq_cpu_isa_count(); }

/// Name of instruction set `index`, best first ("amx", "avx512vnni", "avx512", "avx2", "baseline"). "amx" is
/// "avx512vnni" with products of tiles for linear layers on five rows and more. Where a processor has tiles, the first
/// call that looks for instruction sets asks Linux to let this process use them; alternate signal stacks that are set
/// up later must then have room for them (AT_MINSIGSTKSZ).
/// \returns NULL if `index` is out of range.
inline const char* cpu_isa_name(int32_t index) { return kvq_cpu_isa_name(index); }

/// All names of ::kvq_cpu_isa_name.
inline std::vector<std::string> cpu_isa_names() { return detail::names(kvq_cpu_isa_count(), kvq_cpu_isa_name); }

/// Number of schemes that qp_quantize_options::scheme may name.
inline int32_t scheme_count() { return qp_scheme_count(); }

/// "nuq-4", "vq-2.5", "tcq-2.75", "tcx-3", "fp16", …: a family and the bits of a weight.
///
/// - `nuq`: every weight is one of 2^bits levels. 1, 2, 3, 4, 5, 6 and 8 bits.
/// - `vq`: every pair of weights is one of 4^bits points. 1.5 to 5 bits in steps of a half.
/// - `tcq`: pairs on a path through a trellis of 65 536 states, levels from a table. 1.5 to 5 bits in steps of a
///   quarter; odd quarters write half of each row in a quarter bit less and half in a quarter bit more.
/// - `tcx`: single weights on such a path, of 256 levels: less error and faster. 1.5 to 5 bits in steps of a half.
/// - `fp16`: the weights as they are, rounded to FP16 and not rotated.
/// \returns NULL if `index` is out of range.
inline const char* scheme_name(int32_t index) { return qp_scheme_name(index); }

/// All names of ::qp_scheme_name.
inline std::vector<std::string> scheme_names() { return detail::names(qp_scheme_count(), qp_scheme_name); }

/// Bits of a weight in a scheme, without scales and signs; 0 for a name that is no scheme.
inline double scheme_bits(const std::string& name = {}) {
  return qp_scheme_bits(detail::c_string_or_null(name, "name"));
}

/// Allocate `bytes` (> 0) aligned to `alignment` (a power of two), or return NULL. Called from any thread, also from
/// several at once. Like all hooks it may not use the context or what was made from it.
using AllocateHook = std::function<void*(size_t bytes, size_t alignment)>;

/// Free what ::kvq_allocate_hook returned, with the same `bytes` and `alignment`. Called from any thread, also from
/// several at once.
using FreeHook = std::function<void(void* pointer, size_t bytes, size_t alignment)>;

/// One message, NUL-terminated, without newline, valid until the hook returns. Called from any thread, also from
/// several at once.
using LogHook = std::function<void(kvq_log_level level, const char* message)>;

/// Run `body(argument, i)` once for every i in [0, n), on any threads in any order, and return when all that began are
/// done. Results do not depend on the order or on the number of threads. Loops too short to be shared do not get here.
/// Called from the thread of the call that needs it, so from several at once if these use the context at once.
/// \returns 0; anything else, or fewer calls of `body` than n, says that the hook could not do it all: the calling
/// thread then does what is left.
using ParallelForHook = std::function<int32_t(int32_t n, kvq_parallel_body body, void* argument)>;

/// The last call of a context's hooks: none is used any more, and their `user` may go. Called by the thread that
/// destroys the context or the last object made from it; may use other contexts. Not called where a context could not
/// be created.
using ReleasedHook = std::function<void()>;

/// Allocate `bytes` (> 0) of device memory aligned to 256 bytes, or return NULL. The memory is used in the order of
/// `stream`, the context's stream at that time. Called from the thread of the call that needs it.
using DeviceAllocateHook = std::function<void*(size_t bytes, void* stream)>;

/// Free what ::kvq_device_allocate_hook returned, once the work issued to `stream` so far is done: the hook may not
/// give it to another stream before.
using DeviceFreeHook = std::function<void(void* pointer, size_t bytes, void* stream)>;

/// Told how far a long call has come, and asked whether to go on. Called now and then from the calling thread; may not
/// use the objects of the call.
/// \returns 0 to go on, anything else to end the call with ::KVQ_E_CANCELLED.
using ProgressHook = std::function<int32_t(double done)>;

/// The hooks of ::kvq_context_options as function objects, those that are set. They live until `released` was called.
/// One that throws has failed, as its C hook fails: no memory, or work that the library then does itself.
struct Hooks {
  AllocateHook allocate = {};
  FreeHook free = {};
  LogHook log = {};
  ParallelForHook parallel_for = {};
  DeviceAllocateHook device_allocate = {};
  DeviceFreeHook device_free = {};
  ReleasedHook released = {};
};

/// Memory, threads, limits and device shared by any number of caches.
class Context : public detail::Owned<kvq_context, kvq_context_destroy, kvq_context> {
 public:
  using Owned::Owned;

  /// Create a context.
  /// \param options the defaults if it is left out.
  /// \throws Error: KVQ_E_ARGUMENT; KVQ_E_UNSUPPORTED (device or instruction set not available here, with the reason);
  /// KVQ_E_MEMORY; KVQ_E_LIMIT; KVQ_E_BACKEND (a thread could not be started, or the device failed).
  explicit Context(const kvq_context_options& options = initialised<kvq_context_options>()) : Owned(create(options)) {}

  /// With function objects as hooks. `released` is taken from `hooks`.
  Context(kvq_context_options options, Hooks hooks) : Owned(nullptr) {
    auto state = std::make_unique<detail::HookState<Hooks>>(std::move(hooks));
    if (state->functions.allocate) {
      options.allocate = state->hook<kvq_allocate_hook, &Hooks::allocate>();
      options.allocator_user = state.get();
    }
    if (state->functions.free) {
      options.free = state->hook<kvq_free_hook, &Hooks::free>();
      options.allocator_user = state.get();
    }
    if (state->functions.log) {
      options.log = state->hook<kvq_log_hook, &Hooks::log>();
      options.log_user = state.get();
    }
    if (state->functions.parallel_for) {
      options.parallel_for = state->hook<kvq_parallel_for_hook, &Hooks::parallel_for>();
      options.parallel_for_user = state.get();
    }
    if (state->functions.device_allocate) {
      options.device_allocate = state->hook<kvq_device_allocate_hook, &Hooks::device_allocate>();
      options.device_allocator_user = state.get();
    }
    if (state->functions.device_free) {
      options.device_free = state->hook<kvq_device_free_hook, &Hooks::device_free>();
      options.device_allocator_user = state.get();
    }
    options.released = &detail::release_hooks<Hooks>;
    options.released_user = state.get();
    reset(create(options));
    hooks_ = state.release();
  }

  /// Throws, once, the first exception that one of the Hooks threw.
  void rethrow() {
    if (get() != nullptr && hooks_ != nullptr) hooks_->rethrow();
  }

  /// Describe a context.
  /// \throws Error: KVQ_E_ARGUMENT.
  kvq_context_info describe() const { return detail::described<kvq_context_info>(kvq_context_describe, get()); }

  /// Issue later calls of a CUDA context to another stream, ordered after everything issued before.
  /// \param stream cudaStream_t, NULL for the legacy default stream. It must live until another one is set or the
  /// context is gone.
  /// \throws Error: KVQ_E_ARGUMENT; KVQ_E_UNSUPPORTED (a CPU context); KVQ_E_BACKEND.
  /// \par Threads: exclusive use of `context`.
  void set_stream(void* stream) { checked(kvq_context_set_stream, get(), stream); }

#ifdef KVQ_EXPERIMENTAL
  /// Write what ::qp_tune measured and what ::qp_tuning_load read, as a text: a line for each device, scheme and shape.
  /// \throws Error: KVQ_E_ARGUMENT; KVQ_E_BUFFER_SIZE (nothing is written); KVQ_E_UNSUPPORTED (a CPU context);
  /// KVQ_E_MEMORY; KVQ_E_LIMIT.
  std::string tuning_save() const { return detail::saved<std::string>(qp_tuning_save, get()); }
#endif

#ifdef KVQ_EXPERIMENTAL
  /// Go by what was measured before. What was measured on another device or by another version of the library is kept
  /// for ::qp_tuning_save and not used.
  /// \param text as ::qp_tuning_save wrote it.
  /// \throws Error: KVQ_E_ARGUMENT; KVQ_E_FORMAT (the message names the line); KVQ_E_MISMATCH (a text of another
  /// version); KVQ_E_UNSUPPORTED (a CPU context); KVQ_E_MEMORY; KVQ_E_LIMIT. Nothing is taken over on failure.
  void tuning_load(std::string_view text) const { checked(qp_tuning_load, get(), text.data(), text.size()); }
#endif

 private:
  static kvq_context* create(const kvq_context_options& options) {
    require_version();
    return detail::made<Owned>(kvq_context_create, &options).release();
  }

  detail::HookState<Hooks>* hooks_ = nullptr;
};

/// Which format pages are sealed in, per layer, how many stay FP16, and which tokens are evicted. Immutable.
class Policy : public detail::Owned<kvq_policy, kvq_policy_destroy, const kvq_policy> {
 public:
  using Owned::Owned;

  /// Read a policy from YAML, or from the short form of one or two formats.
  ///
  /// The short form is the name of a format for keys and values of all layers, or two with a slash, KEYS/VALUES, and
  /// optionally `+METHOD:BUDGET` of eviction at the end, like `gs2`, `gt2/gt1`, `int4+adasnap:128`. The formats:
  ///
  /// - `gs4`, `gs3`, `gs2`, `gs1`: gain-shape pages. Codes of 4 to 1 bits after a Hadamard rotation, and a gain of 8
  ///   bits for each token and side, chosen so that what is decoded is unbiased. Keys are encoded relative to the mean
  ///   of their page's, which a page has in 8 bits, and values as they are; with `+nocentre` keys, too. Nothing is
  ///   trained for these two. With `+centres` a side is encoded relative to the nearest of its head's trained centres,
  ///   which ::kvq_cache_options has, those of keys turned by RoPE to where the key is; a page then has a byte for each
  ///   token that says which, unless there is but one.
  /// - `gt3`, `gt2`, `gt1`: the same with codes of 3 to 1 bits that are a path through a trellis of 64 states: their
  ///   error is a quarter to a half smaller, and they take longer to encode and to attend to.
  /// - `fp16`; `int8`, `int4`, `int3`, `int2`: integers with a scale and a minimum for each channel of a page's keys
  ///   and for each token and group of channels of values; optionally with `+hadamard`, encoded after a Hadamard
  ///   rotation.
  /// - `commvq`: codes of a codebook that was trained for the model.
  ///
  /// The long form:
  ///
  ///     version: 1
  ///     keys: int4+hadamard            # a format name, or a map:
  ///     values: {format: int2, hadamard: false, group: 32}
  ///     sink: 1                        # first pages that stay FP16
  ///     recent: 1                      # newest pages that stay FP16, the open one included
  ///     layers:                        # later entries win
  ///       - {range: [0, 1], keys: fp16, values: int8}
  ///       - {range: [2, 3], keys: {format: gs2, centres: none}}   # or page, trained: +nocentre, nothing, +centres
  ///     centres: page                  # of all gain-shape formats, of experts too, that do not say it themselves
  ///     commvq:                        # for the format commvq, which needs a codebook
  ///       beam: 4                      # sums of codes kept while a key is encoded, 1 to 16
  ///       flips: 100                   # bits of a value's code flipped to lower its error, at most
  ///       attention: auto              # or tables, rebuild, decode
  ///
  ///     eviction: {method: adasnap, budget: 128}   # what kvq_compress does, see there
  ///
  /// and instead of `keys`, `values` and `layers`, for pages that each get a format of their own:
  ///
  ///     router:                        # needs a router that was trained for these experts
  ///       experts: [fp16, int4, int2]  # 2 to 8 formats, those with more bits first; int8/int4: keys/values
  ///       votes: layer                 # tokens of all heads choose together; or head
  ///
  /// `group` is the number of channels that share a scale in an integer value page (32, 64 or 128). Defaults: fp16,
  /// recent 1, centres page, beam 1, as many flips as help, attention auto; sink 1 if any page gets gain-shape codes of
  /// three bits or fewer, else 0: models give their first tokens much attention.
  ///
  /// `attention` says how the CPU attends to keys with codes; results are the same but for rounding. `tables`: products
  /// of each query with all codes, which are then summed for each token; `rebuild`: keys summed up from their codes
  /// once for all queries of a KV head; `decode`: keys and values decoded one by one, tens of times slower, for
  /// comparison; `auto` takes the faster of the first two.
  /// \param yaml text, not necessarily NUL-terminated; at most 1 MiB, nested at most 16 deep.
  /// \throws Error: KVQ_E_ARGUMENT; KVQ_E_FORMAT (with the line); KVQ_E_MEMORY; KVQ_E_LIMIT.
  static Policy load(kvq_context* context, std::string_view yaml) {
    return detail::made<Policy>(kvq_policy_load, context, yaml.data(), yaml.size());
  }

  /// A policy that evicts tokens and otherwise says what another one says.
  /// \param method name of a method, see ::kvq_compress.
  /// \param budget tokens of a KV head that stay, on average.
  /// \throws Error: KVQ_E_ARGUMENT (also: an unknown method, a budget smaller than the window); KVQ_E_MEMORY;
  /// KVQ_E_LIMIT.
  Policy with_eviction(kvq_context* context, const std::string& method, int32_t budget) const {
    return detail::made<Policy>(kvq_policy_with_eviction, context, get(), detail::c_string(method, "method"), budget);
  }

  /// A policy whose layers `first_layer` to `last_layer` are stored in other formats and that otherwise says what
  /// another one says.
  /// \param first_layer 0 … `last_layer`.
  /// \param last_layer at most 65535; creating a cache with fewer layers fails.
  /// \param keys name of a format, see ::kvq_policy_load; empty: as before.
  /// \param values the same for values.
  /// \throws Error: KVQ_E_ARGUMENT (also: the name of no format, a policy with a router); KVQ_E_MEMORY; KVQ_E_LIMIT.
  Policy with_layer(kvq_context* context, int32_t first_layer, int32_t last_layer, const std::string& keys = {},
                    const std::string& values = {}) const {
    return detail::made<Policy>(kvq_policy_with_layer, context, get(), first_layer, last_layer,
                                detail::c_string_or_null(keys, "keys"), detail::c_string_or_null(values, "values"));
  }

  /// Write a policy in the long form, which ::kvq_policy_load reads: the same is then said of every layer. Reading and
  /// writing again gives the same bytes.
  /// \throws Error: KVQ_E_ARGUMENT; KVQ_E_BUFFER_SIZE (nothing is written); KVQ_E_UNSUPPORTED (so many layers differ
  /// that the text would be longer than can be read); KVQ_E_MEMORY; KVQ_E_LIMIT.
  std::string save() const { return detail::saved<std::string>(kvq_policy_save, get()); }

  /// Describe a policy.
  /// \throws Error: KVQ_E_ARGUMENT.
  kvq_policy_info describe() const { return detail::described<kvq_policy_info>(kvq_policy_describe, get()); }
};

/// CommVQ codebooks for the layers of one model. Immutable; caches that use it share it. Files are in the safetensors
/// format and hold about half of kvq_codebook_info::bytes.
class Codebook : public detail::Owned<kvq_codebook, kvq_codebook_destroy, const kvq_codebook> {
 public:
  using Owned::Owned;

  /// Read codebooks from a file in memory. Every byte is checked; saving the result again gives the same bytes.
  /// \param buffer bytes of a file written by ::kvq_codebook_save.
  /// \throws Error: KVQ_E_ARGUMENT; KVQ_E_FORMAT (damaged, truncated, or no codebook; the message names the tensor or
  /// field); KVQ_E_MISMATCH (a file of another version); KVQ_E_MEMORY; KVQ_E_LIMIT.
  static Codebook load(kvq_context* context, std::span<const std::byte> buffer) {
    return detail::made<Codebook>(kvq_codebook_load, context, buffer.data(), buffer.size());
  }

  /// Write codebooks as a file. The same codebooks give the same bytes.
  /// \throws Error: KVQ_E_ARGUMENT; KVQ_E_BUFFER_SIZE (nothing is written); KVQ_E_MEMORY; KVQ_E_LIMIT.
  std::vector<std::byte> save() const { return detail::saved(kvq_codebook_save, get()); }

  /// Describe codebooks.
  /// \throws Error: KVQ_E_ARGUMENT.
  kvq_codebook_info describe() const { return detail::described<kvq_codebook_info>(kvq_codebook_describe, get()); }

  /// Describe one layer of codebooks.
  /// \throws Error: KVQ_E_ARGUMENT.
  kvq_codebook_layer_info describe_layer(int32_t layer) const {
    return detail::described<kvq_codebook_layer_info>(kvq_codebook_describe_layer, get(), layer);
  }
};

/// Centres of the keys and values of one model, for the formats gs and gt: a vector is stored relative to the nearest
/// centre of its head. Immutable; caches that use them share them. Files are in the safetensors format and hold half of
/// kvq_centres_info::bytes.
class Centres : public detail::Owned<kvq_centres, kvq_centres_destroy, const kvq_centres> {
 public:
  using Owned::Owned;

  /// Read centres from a file in memory. Every byte is checked; saving the result again gives the same bytes.
  /// \param buffer bytes of a file written by ::kvq_centres_save.
  /// \throws Error: KVQ_E_ARGUMENT; KVQ_E_FORMAT (damaged, truncated, or no centres; the message names the tensor or
  /// field); KVQ_E_MISMATCH (a file of another version); KVQ_E_MEMORY; KVQ_E_LIMIT.
  static Centres load(kvq_context* context, std::span<const std::byte> buffer) {
    return detail::made<Centres>(kvq_centres_load, context, buffer.data(), buffer.size());
  }

  /// Write centres as a file. The same centres give the same bytes.
  /// \throws Error: KVQ_E_ARGUMENT; KVQ_E_BUFFER_SIZE (nothing is written); KVQ_E_MEMORY; KVQ_E_LIMIT.
  std::vector<std::byte> save() const { return detail::saved(kvq_centres_save, get()); }

  /// Describe centres.
  /// \throws Error: KVQ_E_ARGUMENT.
  kvq_centres_info describe() const { return detail::described<kvq_centres_info>(kvq_centres_describe, get()); }

  /// Describe one layer of centres.
  /// \throws Error: KVQ_E_ARGUMENT.
  kvq_centres_layer_info describe_layer(int32_t layer) const {
    return detail::described<kvq_centres_layer_info>(kvq_centres_describe_layer, get(), layer);
  }
};

/// Routers for the layers of one model (MoQAE): small networks that choose the format of every page by the keys in it,
/// before RoPE. Immutable; caches that use it share it. Files are in the safetensors format.
class Router : public detail::Owned<kvq_router, kvq_router_destroy, const kvq_router> {
 public:
  using Owned::Owned;

  /// Read routers from a file in memory. Every byte is checked; saving the result again gives the same bytes.
  /// \param buffer bytes of a file written by ::kvq_router_save.
  /// \throws Error: KVQ_E_ARGUMENT; KVQ_E_FORMAT (damaged, truncated, or no router; the message names the tensor or
  /// field); KVQ_E_MISMATCH (a file of another version); KVQ_E_MEMORY; KVQ_E_LIMIT.
  static Router load(kvq_context* context, std::span<const std::byte> buffer) {
    return detail::made<Router>(kvq_router_load, context, buffer.data(), buffer.size());
  }

  /// Write routers as a file. The same routers give the same bytes.
  /// \throws Error: KVQ_E_ARGUMENT; KVQ_E_BUFFER_SIZE (nothing is written); KVQ_E_MEMORY; KVQ_E_LIMIT.
  std::vector<std::byte> save() const { return detail::saved(kvq_router_save, get()); }

  /// Describe routers.
  /// \throws Error: KVQ_E_ARGUMENT.
  kvq_router_info describe() const { return detail::described<kvq_router_info>(kvq_router_describe, get()); }

  /// Describe one group of layers.
  /// \param group 0 … groups − 1.
  /// \throws Error: KVQ_E_ARGUMENT.
  kvq_router_group_info describe_group(int32_t group) const {
    return detail::described<kvq_router_group_info>(kvq_router_describe_group, get(), group);
  }
};

/// Tokens for one layer of several sequences. Rows of `k` and `v`, a token's, follow sequence by sequence. Tensors are
/// of floats; ::kvq_append_batch takes other elements too.
struct AppendBatch {
  /// All of this cache, none twice.
  std::span<kvq_sequence* const> sequences = {};
  /// Each ≥ 1; empty (default): one token each.
  std::span<const int32_t> token_counts = {};
  /// As for ::kvq_append; empty (default): consecutive in each sequence.
  std::span<const int32_t> positions = {};
  /// As for ::kvq_append.
  std::span<const float> k = {};
  /// As for ::kvq_append.
  std::span<const float> v = {};
  /// Elements from a token's keys to the next one's, not negative; 0 (default): dense, as many as its heads take. The
  /// channels of a head are always neighbours, and rows need no more alignment than their elements.
  int64_t k_token_stride = 0;
  /// Elements from a head to the next one, not negative; 0 (default): dense, head_dim.
  int64_t k_head_stride = 0;
  /// As for keys.
  int64_t v_token_stride = 0;
  /// As for keys.
  int64_t v_head_stride = 0;
};

namespace detail {
inline kvq_append_batch c_struct(const AppendBatch& batch, const kvq_cache_info& cache) {
  const int32_t n = detail::count("sequences", batch.sequences.size());
  if (n == 0) throw Error(KVQ_E_ARGUMENT, "sequences is empty");
  const int64_t total = detail::sum(batch.token_counts, n);
  detail::require_size_or_none("token_counts", batch.token_counts.size(), n, "as many as sequences");
  detail::require_size_or_none("positions", batch.positions.size(), total, "sum(token_counts)");
  detail::require_rows("k", batch.k.size(), {total, cache.kv_heads, cache.head_dim}, batch.k_token_stride,
                       batch.k_head_stride, "sum(token_counts) * cache.kv_heads * cache.head_dim");
  detail::require_rows("v", batch.v.size(), {total, cache.kv_heads, cache.head_dim}, batch.v_token_stride,
                       batch.v_head_stride, "sum(token_counts) * cache.kv_heads * cache.head_dim");
  kvq_append_batch it = initialised<kvq_append_batch>();
  it.n_sequences = n;
  it.sequences = batch.sequences.data();
  it.token_counts = detail::optional(batch.token_counts);
  it.positions = detail::optional(batch.positions);
  it.k = batch.k.data();
  it.v = batch.v.data();
  it.k_token_stride = batch.k_token_stride;
  it.k_head_stride = batch.k_head_stride;
  it.v_token_stride = batch.v_token_stride;
  it.v_head_stride = batch.v_head_stride;
  return it;
}
}  // namespace detail

/// Queries of one or several sequences, and where their results go. Tensors are of floats; ::kvq_attend_batch takes
/// other elements too.
struct AttendBatch {
  /// All of this cache; the same one may occur repeatedly.
  std::span<const kvq_sequence* const> sequences = {};
  /// Each ≥ 1; empty (default): one query each.
  std::span<const int32_t> query_counts = {};
  /// ≥ 0; empty (default): the last `query_counts[i]` tokens of each sequence, so append before attending.
  std::span<const int32_t> query_positions = {};
  /// `[total queries, q_heads, head_dim]`, before RoPE unless the cache was made with ::KVQ_ROPE_NONE. Finite, as its
  /// logits are: what comes of others means nothing.
  std::span<const float> q = {};
  /// `[total queries, q_heads, head_dim]`; from the first row to the last, its memory may not overlap that of `q` or
  /// `sinks`.
  std::span<float> output = {};
  /// A query at position p sees positions > p − window; 0 (default): all.
  int32_t sliding_window = 0;
  /// cap·tanh(logit / cap); 0 (default): none.
  float logit_softcap = 0;
  /// Elements from a query's row to the next one's, not negative; 0 (default): dense, as many as its heads take. The
  /// channels of a head are always neighbours, and rows need no more alignment than their elements.
  int64_t q_token_stride = 0;
  /// Elements from a head to the next one, not negative; 0 (default): dense, head_dim.
  int64_t q_head_stride = 0;
  /// As for queries. No two rows may overlap: all heads of a query lie before the next query's (token stride ≥ (q_heads
  /// − 1) · head stride + head_dim), or all queries of a head before the next head's. What is between is left alone.
  int64_t output_token_stride = 0;
  /// As for queries.
  int64_t output_head_stride = 0;
  /// `[total queries, q_heads]` receives the natural logarithm of the sum of exp of the logits, after scale and cap,
  /// sinks included; -infinity for a query that sees nothing and has no sink. Results over parts of a context merge by
  /// it, where one part alone has the sinks: Σᵢ exp(lseᵢ − lse) · outputᵢ with lse = log Σᵢ exp lseᵢ. It may not
  /// overlap `q`, `output` or `sinks`. empty (default): skip.
  std::span<float> lse = {};
  /// `[q_heads]` learned logits: each adds exp(sink) to the softmax denominator of its head and nothing to the sum of
  /// values; neither scaled nor capped; -infinity is none; NaN and +infinity are refused on a CPU. empty (default):
  /// none.
  std::span<const float> sinks = {};
};

namespace detail {
inline kvq_attend_batch c_struct(const AttendBatch& batch, const kvq_cache_info& cache) {
  const int32_t n = detail::count("sequences", batch.sequences.size());
  if (n == 0) throw Error(KVQ_E_ARGUMENT, "sequences is empty");
  const int64_t total = detail::sum(batch.query_counts, n);
  detail::require_size_or_none("query_counts", batch.query_counts.size(), n, "as many as sequences");
  detail::require_size_or_none("query_positions", batch.query_positions.size(), total, "sum(query_counts)");
  detail::require_rows("q", batch.q.size(), {total, cache.q_heads, cache.head_dim}, batch.q_token_stride,
                       batch.q_head_stride, "sum(query_counts) * cache.q_heads * cache.head_dim");
  detail::require_rows("output", batch.output.size(), {total, cache.q_heads, cache.head_dim}, batch.output_token_stride,
                       batch.output_head_stride, "sum(query_counts) * cache.q_heads * cache.head_dim");
  detail::require_size_or_none("lse", batch.lse.size(), detail::product({total, cache.q_heads}),
                               "sum(query_counts) * cache.q_heads");
  detail::require_size_or_none("sinks", batch.sinks.size(), cache.q_heads, "cache.q_heads");
  kvq_attend_batch it = initialised<kvq_attend_batch>();
  it.n_sequences = n;
  it.sequences = batch.sequences.data();
  it.query_counts = detail::optional(batch.query_counts);
  it.query_positions = detail::optional(batch.query_positions);
  it.q = batch.q.data();
  it.output = batch.output.data();
  it.sliding_window = batch.sliding_window;
  it.logit_softcap = batch.logit_softcap;
  it.q_token_stride = batch.q_token_stride;
  it.q_head_stride = batch.q_head_stride;
  it.output_token_stride = batch.output_token_stride;
  it.output_head_stride = batch.output_head_stride;
  it.lse = detail::optional(batch.lse);
  it.sinks = detail::optional(batch.sinks);
  return it;
}
}  // namespace detail

/// The attention layers of one model; owns the page formats and the work space of ::kvq_attend.
class Cache : public detail::Owned<kvq_cache, kvq_cache_destroy, kvq_cache> {
 public:
  using Owned::Owned;

  /// Create a cache.
  /// \param policy of this or another context; NULL: fp16.
  /// \throws Error: KVQ_E_ARGUMENT (also: the policy needs a codebook, centres or a router and there is none);
  /// KVQ_E_MISMATCH (a codebook, centres or router for another model, with the difference); KVQ_E_UNSUPPORTED (a format
  /// that the context's device does not compute with; formats of which some need a codebook and others centres);
  /// KVQ_E_MEMORY; KVQ_E_LIMIT.
  Cache(kvq_context* context, const kvq_cache_options& options, const kvq_policy* policy = nullptr)
      : Owned(detail::made<Owned>(kvq_cache_create, context, &options, policy)) {}

  /// Describe a cache.
  /// \throws Error: KVQ_E_ARGUMENT.
  kvq_cache_info describe() const { return detail::described<kvq_cache_info>(kvq_cache_describe, get()); }

  /// Describe a layer of a cache.
  /// \throws Error: KVQ_E_ARGUMENT.
  kvq_layer_info describe_layer(int32_t layer) const {
    return detail::described<kvq_layer_info>(kvq_cache_describe_layer, get(), layer);
  }

  /// The context that a cache was created from, which lives as long as the cache does.
  /// \returns NULL for NULL.
  kvq_context* context() const { return kvq_cache_context(get()); }

  /// Append tokens to one layer of several sequences: to all of them, or to none.
  ///
  /// Strides reach tokens and heads in tensors of any layout, such as queries, keys and values in one: `k` then points
  /// to the first key, and `k_token_stride` is (q_heads + 2 · kv_heads) · head_dim. What is stored is what ::kvq_append
  /// stores. A batch shares the work on all sequences among threads, and on a GPU takes one launch (in a CUDA graph one
  /// for each sequence).
  /// \throws Error: as ::kvq_append; KVQ_E_ARGUMENT also if a sequence occurs twice, or an offset by the strides is too
  /// large. Messages count tokens over all sequences.
  /// \par Threads: exclusive use of these sequences; others of the cache may be used concurrently.
  void append(int32_t layer, const kvq_append_batch& batch) const {
    checked(kvq_append_sequences, get(), layer, &batch);
  }

  /// The same with spans.
  void append(int32_t layer, const AppendBatch& batch) const {
    const kvq_append_batch c_batch = detail::c_struct(batch, describe());
    checked(kvq_append_sequences, get(), layer, &c_batch);
  }

  /// Attention of a batch of queries over one layer.
  ///
  /// `output = softmax(scale · q·kᵀ) v` for every query head, where query head h reads KV head h / (q_heads / kv_heads)
  /// and a query at position p sees the tokens at positions ≤ p. A query that sees no token gives zeros, with a sink
  /// too. Accumulation is in FP32. On a CPU the result is the same, bit for bit, for any number of threads and any
  /// composition of the batch; on a GPU it is the same for the same batch. Allocates only when a batch needs more work
  /// space than any before it, more calls come at once than ever before, or the policy evicts.
  ///
  /// Relative to exact attention over the decoded pages, the error is rounding of FP32 for FP16 pages. On instruction
  /// sets with int8 dot products ("avx512vnni", "amx") integer pages multiply 16-bit (INT8) or 8-bit (INT4, INT3, INT2)
  /// fixed-point queries and probabilities, whose error stays well below that of the format itself; select "avx512" or
  /// "avx2" in ::kvq_context_options for FP32 products. On a GPU queries, probabilities and their products with a
  /// page's scales are rounded to FP16.
  /// \throws Error: KVQ_E_ARGUMENT; KVQ_E_STATE (a CUDA graph is captured, see ::kvq_sequence_reserve); KVQ_E_MEMORY;
  /// KVQ_E_LIMIT (work space); KVQ_E_BACKEND.
  /// \par Threads: any number of calls on a cache at once; the sequences are only read, but for what kvq_compress
  /// judges by: if the policy evicts, exclusive use of the sequences.
  void attend(int32_t layer, const kvq_attend_batch& batch) const { checked(kvq_attend, get(), layer, &batch); }

  /// The same with spans.
  void attend(int32_t layer, const AttendBatch& batch) const {
    const kvq_attend_batch c_batch = detail::c_struct(batch, describe());
    checked(kvq_attend, get(), layer, &c_batch);
  }

  /// Bytes used by one sequence, or by the whole cache with shared pages counted once.
  /// \throws Error: KVQ_E_ARGUMENT; KVQ_E_BACKEND.
  /// \par Threads: read-only for one sequence; exclusive use of all sequences when `sequence` is NULL.
  kvq_usage usage() const { return detail::described<kvq_usage>(kvq_cache_usage, get(), nullptr); }

  /// What ::kvq_cache_usage would say of the whole cache if it held nothing but new sequences, to the byte. Computed
  /// from sizes: no page is made, and what the cache holds now does not matter.
  ///
  /// Each sequence is one for which ::kvq_sequence_reserve made pages for `tokens` tokens, and to every layer of which
  /// these were then appended: at consecutive positions, up to ::KVQ_PAGE_SLOTS at once or all at once. With `queries`,
  /// ::kvq_attend was then called for each layer, with `queries` queries of each sequence in one batch and without
  /// sinks; calls of several threads at once take a work space each.
  /// \param sequences ≥ 1.
  /// \param tokens of each sequence, ≥ 0.
  /// \param queries of each sequence, ≥ 0; 0: nothing is attended to.
  /// \throws Error: KVQ_E_ARGUMENT (NULL; a number out of range; more pages or queries than are counted);
  /// KVQ_E_UNSUPPORTED (a router chooses the formats of pages, so nobody knows their sizes before; `queries` above 0 on
  /// a CUDA context, whose work space depends on the device); KVQ_E_MEMORY; KVQ_E_LIMIT.
  kvq_usage predict_usage(int32_t sequences, int32_t tokens, int32_t queries) const {
    return detail::described<kvq_usage>(kvq_cache_predict_usage, get(), sequences, tokens, queries);
  }
};

/// The pages of one conversation. Belongs to the cache that made it.
class Sequence : public detail::Owned<kvq_sequence, kvq_sequence_destroy, const kvq_sequence> {
 public:
  using Owned::Owned;

  /// Create an empty sequence.
  /// \throws Error: KVQ_E_ARGUMENT; KVQ_E_MEMORY; KVQ_E_LIMIT.
  /// \par Threads: any number of sequences of one cache may be created, used and destroyed concurrently.
  explicit Sequence(kvq_cache* cache) : Owned(detail::made<Owned>(kvq_sequence_create, cache)) {}

  /// Create a sequence that starts with everything `parent` holds. Pages are shared until one side changes them.
  /// \throws Error: KVQ_E_ARGUMENT (NULL, or `parent` belongs to another cache); KVQ_E_MEMORY; KVQ_E_LIMIT.
  /// \par Threads: `parent` may be read concurrently.
  Sequence fork() const { return detail::made<Sequence>(kvq_sequence_fork, cache(), get()); }

  /// Drop tokens from the end of every layer, so that each layer keeps the first `length` tokens.
  ///
  /// Exact while the cut lies in an FP16 page or on a page border (a multiple of ::KVQ_PAGE_SLOTS). A cut inside a
  /// sealed page is refused: keep `recent: 2` or more pages in FP16 to be able to roll back at least 32 tokens. On a
  /// border, a page that had been sealed stays sealed.
  /// \param length 0 … the shortest layer's length.
  /// \throws Error: KVQ_E_ARGUMENT (negative or beyond the length); KVQ_E_STATE (inside a sealed page; the message
  /// gives the nearest lengths that work; or evicted tokens had gaps in their positions); KVQ_E_MEMORY, KVQ_E_LIMIT (a
  /// shared page had to be copied).
  /// \par Threads: exclusive use of `sequence`.
  void truncate(int32_t length) { checked(kvq_sequence_truncate, cache(), get(), length); }

  /// The cache that a sequence belongs to, which lives as long as the sequence does.
  /// \returns NULL for NULL.
  kvq_cache* cache() const { return kvq_sequence_cache(get()); }

  /// Make pages ahead, so that every layer has room for `tokens` more tokens.
  ///
  /// Appends then take these pages: while there is room, no append of up to ::KVQ_PAGE_SLOTS tokens allocates page
  /// memory, and on a CPU the pages of a head lie next to each other from the start. On a GPU this is what a CUDA graph
  /// needs:
  ///
  ///     kvq_context_set_stream(context, stream);
  ///     kvq_attend(…)                                  // once with the graph's batch: it allocates its work space
  ///     kvq_sequence_reserve(cache, sequence, 4096, …);
  ///     cudaStreamBeginCapture(stream, …);
  ///     kvq_append(…, 1, k, v, …); kvq_attend(…);      // of every layer
  ///     cudaStreamEndCapture(stream, &graph);
  ///
  /// Every launch of the graph appends one token more and attends to all: lengths, positions and page tables live on
  /// the device. While a stream is captured, kvq_append takes at most ::KVQ_PAGE_SLOTS tokens and no positions,
  /// kvq_attend takes no query positions, and other functions of the sequence may not be called. Afterwards they may:
  /// each first waits for the context's stream to learn how far the graph has come, so launch graphs on it, or let it
  /// wait for them. A launch without room appends nothing, and a later call on the context returns KVQ_E_LIMIT. A graph
  /// stays valid until kvq_sequence_reserve is called again, or something it refers to is destroyed. Forks of a
  /// sequence with pages made ahead copy its open pages. Layers with a codebook's codes cannot be captured, nor can
  /// attention where a policy evicts by what queries look at: these calls return KVQ_E_UNSUPPORTED.
  /// \param tokens ≥ 0, per layer; 0 gives back the pages that are left.
  /// \throws Error: KVQ_E_ARGUMENT (NULL; a sequence of another cache; negative, or more than a layer can hold);
  /// KVQ_E_STATE (a stream is captured); KVQ_E_UNSUPPORTED (above 0 where a router chooses the formats); KVQ_E_MEMORY;
  /// KVQ_E_LIMIT; KVQ_E_BACKEND.
  /// \par Threads: exclusive use of `sequence`.
  void reserve(int32_t tokens) { checked(kvq_sequence_reserve, cache(), get(), tokens); }

  /// Number of tokens that `layer` has pages for, made by ::kvq_sequence_reserve. Truncating makes room again, except
  /// for pages that a fork still holds.
  /// \throws Error: KVQ_E_ARGUMENT; KVQ_E_BACKEND.
  int32_t room(int32_t layer) const { return detail::counted<int32_t>(kvq_sequence_room, get(), layer); }

  /// Number of tokens appended to `layer`, evicted ones included.
  /// \throws Error: KVQ_E_ARGUMENT; KVQ_E_BACKEND.
  int32_t length(int32_t layer) const { return detail::counted<int32_t>(kvq_sequence_length, get(), layer); }

  /// Number of tokens that a KV head of `layer` holds: what eviction has left. ::kvq_sequence_decode tells their
  /// positions.
  /// \param kv_head 0 … kv_heads − 1.
  /// \throws Error: KVQ_E_ARGUMENT; KVQ_E_BACKEND.
  int32_t slots(int32_t layer, int32_t kv_head) const {
    return detail::counted<int32_t>(kvq_sequence_slots, get(), layer, kv_head);
  }

  /// Write a snapshot of a sequence.
  /// \throws Error: KVQ_E_ARGUMENT; KVQ_E_BUFFER_SIZE (nothing is written); KVQ_E_BACKEND.
  /// \par Threads: `sequence` may be read concurrently.
  std::vector<std::byte> save() const { return detail::saved(kvq_sequence_save, cache(), get()); }

  /// Make a sequence from a snapshot. Every byte is checked; saving the result again gives the same bytes.
  /// \param buffer what ::kvq_sequence_save wrote.
  /// \throws Error: KVQ_E_ARGUMENT; KVQ_E_FORMAT (damaged or truncated); KVQ_E_MISMATCH (another model, shape, policy
  /// format or version; tokens were evicted, which the cache's policy never does); KVQ_E_MEMORY; KVQ_E_LIMIT;
  /// KVQ_E_BACKEND.
  /// \par Threads: see ::kvq_sequence_create.
  static Sequence load(kvq_cache* cache, std::span<const std::byte> buffer) {
    return detail::made<Sequence>(kvq_sequence_load, cache, buffer.data(), buffer.size());
  }

  /// Append tokens to one layer of a sequence, from dense tensors.
  ///
  /// Fills the layer's open page; a full page is sealed (encoded in its final format) when it leaves the newest
  /// `recent` pages, that is when the next token arrives. Either all `n` tokens are appended or none.
  /// \param n number of tokens, ≥ 1.
  /// \param k keys `[n, kv_heads, head_dim]`, before RoPE unless the cache was made with ::KVQ_ROPE_NONE; of a CUDA
  /// context read in stream order. Finite, magnitude at most 65504 (FP16) after rotation, in layers stored with
  /// `+hadamard` or in gain-shape pages after that rotation too.
  /// \param v values, same shape and rules.
  /// \param positions original positions, ≥ 0, strictly increasing and beyond the layer's last one; empty: consecutive.
  /// \throws Error: KVQ_E_ARGUMENT (NULL, shape, dtype, position, value not representable: a CUDA context stores the
  /// nearest representable number, 0 for NaN, and a later call reports it); KVQ_E_STATE (a CUDA graph is captured or
  /// lives, see ::kvq_sequence_reserve; the layer takes the formats of its pages from another one, which would hold
  /// fewer tokens: append to layers in their order); KVQ_E_LIMIT; KVQ_E_MEMORY; KVQ_E_BACKEND.
  /// \par Threads: exclusive use of `sequence`; other sequences of the cache may be appended to, attended to, saved and
  /// so on concurrently.
  void append(int32_t layer, int32_t n, std::span<const float> k, std::span<const float> v,
              std::span<const int32_t> positions = {}) {
    const kvq_cache_info cache_info = detail::described<kvq_cache_info>(kvq_cache_describe, cache());
    detail::require_size("k", k.size(), detail::product({n, cache_info.kv_heads, cache_info.head_dim}),
                         "n * cache.kv_heads * cache.head_dim");
    detail::require_size("v", v.size(), detail::product({n, cache_info.kv_heads, cache_info.head_dim}),
                         "n * cache.kv_heads * cache.head_dim");
    detail::require_size_or_none("positions", positions.size(), n, "n");
    checked(kvq_append, cache(), get(), layer, n, k.data(), v.data(), KVQ_F32, detail::optional(positions));
  }

  /// The same with tensors of other elements, whose sizes are not checked.
  void append(int32_t layer, int32_t n, const void* k, const void* v, kvq_dtype dtype,
              std::span<const int32_t> positions = {}) {
    detail::require_size_or_none("positions", positions.size(), n, "n");
    checked(kvq_append, cache(), get(), layer, n, k, v, dtype, detail::optional(positions));
  }

  /// Decode stored keys and values, for inspection and tests. Not fast.
  /// \param kv_head 0 … kv_heads − 1.
  /// \param begin first slot of the head's list.
  /// \param n slots from there on, ≥ 1.
  /// \param k receives `[n, head_dim]` keys as attention sees them (after RoPE); empty: skip.
  /// \param v receives `[n, head_dim]` values; empty: skip.
  /// \param positions receives original positions; empty: skip.
  /// \throws Error: KVQ_E_ARGUMENT; KVQ_E_MEMORY; KVQ_E_LIMIT; KVQ_E_BACKEND.
  /// \par Threads: `sequence` may be read concurrently.
  void decode(int32_t layer, int32_t kv_head, int32_t begin, int32_t n, std::span<float> k = {},
              std::span<float> v = {}, std::span<int32_t> positions = {}) const {
    const kvq_cache_info cache_info = detail::described<kvq_cache_info>(kvq_cache_describe, cache());
    detail::require_size_or_none("k", k.size(), detail::product({n, cache_info.head_dim}), "n * cache.head_dim");
    detail::require_size_or_none("v", v.size(), detail::product({n, cache_info.head_dim}), "n * cache.head_dim");
    detail::require_size_or_none("positions", positions.size(), n, "n");
    checked(kvq_sequence_decode, cache(), get(), layer, kv_head, begin, n, detail::optional(k), detail::optional(v),
            detail::optional(positions));
  }

  /// Evict tokens as the `eviction` of the cache's policy says, at a moment of the caller's choice: after a prompt, and
  /// again when a conversation has grown.
  ///
  /// Tokens are judged by the queries that kvq_attend has seen: by the last `window` of them (of a prompt, if this
  /// follows it), or by all. A policy names one of the papers' methods and a budget, the tokens that a KV head keeps on
  /// average:
  ///
  ///     eviction:
  ///       method: adasnap  # streaming: the first and the newest tokens (StreamingLLM)
  ///                        # h2o: most attention from all queries (H2O)
  ///                        # snapkv: most attention from the newest queries (SnapKV)
  ///                        # pyramid: the same, more in the first layers and less in the last (PyramidKV)
  ///                        # adasnap, adapyramid: and heads share a layer's budget as they need it (Ada-KV)
  ///       budget: 128      # the window included; or a share of the tokens that were appended, like 25%
  ///
  /// or the parts of a method: `score` (window, streaming, mass), `layers` (uniform, pyramid) and `heads` (uniform,
  /// adaptive, reserved, together: the same tokens for all heads, as CommVQ values of scope layer need). Further:
  /// `window` (32) newest tokens that are always kept; `kernel` (7, odd) and `pooling` (max, mean) of scores along
  /// positions; `group` (mean, max) of the query heads of a KV head; `first` (4) tokens for streaming; `alpha` (0.5),
  /// from 0, which splits freely, to 1, uniformly; with `reserved` the part of the budget that every head has for
  /// itself; `beta` (20): the last layer of a pyramid keeps budget / beta.
  ///
  /// What stays keeps its positions and moves to new, dense pages in the policy's formats; forks keep what they have.
  /// Nothing happens to layers that hold no more than their budget. Lengths of sequences still count the evicted
  /// tokens, and kvq_sequence_truncate drops what lies beyond the position. What has been observed is not part of a
  /// snapshot: after kvq_sequence_load, attend before compressing.
  /// \param options the defaults if it is left out.
  /// \throws Error: KVQ_E_ARGUMENT (also: a budget smaller than the window); KVQ_E_STATE (the policy has no eviction, a
  /// layer is empty, no query has been observed or more than `window` tokens have come since, pages have been made
  /// ahead); KVQ_E_MEMORY; KVQ_E_LIMIT.
  /// \par Threads: exclusive use of `sequence`.
  void compress(const kvq_compress_options& options = initialised<kvq_compress_options>()) {
    checked(kvq_compress, cache(), get(), &options);
  }

  /// Bytes used by one sequence, or by the whole cache with shared pages counted once.
  /// \throws Error: KVQ_E_ARGUMENT; KVQ_E_BACKEND.
  /// \par Threads: read-only for one sequence; exclusive use of all sequences when `sequence` is NULL.
  kvq_usage usage() const { return detail::described<kvq_usage>(kvq_cache_usage, cache(), get()); }
};

/// A linear layer y = x·Wᵀ + b on weights of 1 to 8 bits: NUQ, VQ and TCQ of Q-Palette, and trellises of single
/// weights. Immutable; may be used by several threads at once.
///
/// Inputs are rotated before a matrix sees them: random signs, then a Hadamard matrix. Matrices whose options have the
/// same `seed` and that have the same number of columns share the rotation, which ::qp_linear_shared does once.
class Matrix : public detail::Owned<qp_matrix, qp_matrix_destroy, const qp_matrix> {
 public:
  using Owned::Owned;

  /// Write a matrix in few bits. The result depends on the arguments alone, not on threads or instruction sets.
  /// \param w weights `[rows, columns]` of `options->dtype`.
  /// \param rows outputs of the layer, from 1 to 2^24.
  /// \param columns its inputs, a multiple of 64 from 64 to 2^20.
  /// \throws Error: KVQ_E_ARGUMENT (shape, dtype, a scheme that does not exist, weights, bias or Hessian that are not
  /// finite, a Hessian that is not symmetric or, damped, not positive definite); KVQ_E_CANCELLED; KVQ_E_MEMORY;
  /// KVQ_E_LIMIT. Rows of zeros stay zeros.
  static Matrix quantize(kvq_context* context, const qp_quantize_options& options, std::span<const float> w,
                         int64_t rows, int64_t columns, ProgressHook progress = {}) {
    qp_quantize_options with = options;
    with.dtype = KVQ_F32;
    detail::CallHook<kvq_progress_hook, ProgressHook> told(std::move(progress));
    if (told.hook() != nullptr) {
      with.progress = told.hook();
      with.progress_user = told.user();
    }
    detail::require_size("w", w.size(), detail::product({rows, columns}), "rows * columns");
    Matrix result = nullptr;
    told.during([&] { result = detail::made<Matrix>(qp_quantize, context, &with, w.data(), rows, columns); });
    return result;
  }

  /// The same with tensors of other elements, whose sizes are not checked.
  static Matrix quantize(kvq_context* context, const qp_quantize_options& options, const void* w, int64_t rows,
                         int64_t columns) {
    return detail::made<Matrix>(qp_quantize, context, &options, w, rows, columns);
  }

  /// Rows of the matrix that ::qp_linear multiplies by, in the order of the original.
  /// \param w receives `[rows, columns]` floats.
  /// \throws Error: KVQ_E_ARGUMENT (NULL, rows beyond the last one); KVQ_E_MEMORY; KVQ_E_LIMIT.
  void dequantize(int64_t first_row, int64_t rows, std::span<float> w) const {
    const qp_matrix_info matrix_info = detail::described<qp_matrix_info>(qp_matrix_describe, get());
    detail::require_size("w", w.size(), detail::product({rows, matrix_info.columns}), "rows * matrix.columns");
    checked(qp_matrix_dequantize, get(), first_row, rows, w.data());
  }

  /// y = x·Wᵀ + b.
  ///
  /// Inputs are rotated in FP32 and, but for `fp16`, rounded to integers of 8 bits with a scale for every 256 of them;
  /// products are summed exactly within these and in FP32 beyond, in the same order on every processor: a row of `y`
  /// depends on its row of `x` alone. Allocates nothing once a batch of this size has been seen.
  /// \param x `[batch, columns]` of `dtype`.
  /// \param batch rows of `x` and `y`, at least 1.
  /// \param y receives `[batch, rows]` of `dtype`; may not overlap `x`.
  /// \throws Error: KVQ_E_ARGUMENT; KVQ_E_UNSUPPORTED (the context's device does not multiply by packed matrices);
  /// KVQ_E_MEMORY; KVQ_E_LIMIT. NaN or infinity in a row of `x` makes its row of `y` NaN.
  /// \par Threads: any, on the same matrix too.
  void linear(std::span<const float> x, int32_t batch, std::span<float> y) const {
    const qp_matrix_info matrix_info = detail::described<qp_matrix_info>(qp_matrix_describe, get());
    detail::require_size("x", x.size(), detail::product({batch, matrix_info.columns}), "batch * matrix.columns");
    detail::require_size("y", y.size(), detail::product({batch, matrix_info.rows}), "batch * matrix.rows");
    checked(qp_linear, get(), x.data(), batch, y.data(), KVQ_F32);
  }

  /// The same with tensors of other elements, whose sizes are not checked.
  void linear(const void* x, int32_t batch, void* y, kvq_dtype dtype) const {
    checked(qp_linear, get(), x, batch, y, dtype);
  }

  /// Several matrices on the same inputs in one call: y[i] = x·Wᵢᵀ + bᵢ, the same numbers as one by one. Schemes and
  /// numbers of rows may differ.
  /// \param matrices of one context, with the same columns and, those that rotate, the same signs.
  /// \param x as for ::qp_linear.
  /// \param y outputs, `[batch, rows of matrix i]` each, in the context's memory, apart from each other and from `x`.
  /// \throws Error: as ::qp_linear; KVQ_E_MISMATCH (matrices that do not share their inputs).
  /// \par Threads: any, on the same matrices too.
  static void linear_shared(std::span<const qp_matrix* const> matrices, const void* x, int32_t batch,
                            std::span<void* const> y, kvq_dtype dtype) {
    detail::require_size("y", y.size(), static_cast<int64_t>(matrices.size()), "as many as matrices");
    checked(qp_linear_shared, matrices.data(), detail::count("matrices", matrices.size()), x, batch, y.data(), dtype);
  }

  /// Describe a matrix.
  /// \throws Error: KVQ_E_ARGUMENT.
  qp_matrix_info describe() const { return detail::described<qp_matrix_info>(qp_matrix_describe, get()); }

  /// Write matrices as a safetensors file; docs/weights.md has its layout. The same matrices give the same bytes.
  /// \param names different names, each a string of up to 200 bytes.
  /// \throws Error: KVQ_E_ARGUMENT (NULL; names); KVQ_E_BUFFER_SIZE (nothing is written); KVQ_E_MEMORY; KVQ_E_LIMIT.
  static std::vector<std::byte> save(std::span<const qp_matrix* const> matrices, std::span<const char* const> names) {
    detail::require_size("names", names.size(), static_cast<int64_t>(matrices.size()), "as many as matrices");
    return detail::saved(qp_matrix_save, matrices.data(), names.data(), detail::count("matrices", matrices.size()));
  }

  /// The same for this one alone.
  std::vector<std::byte> save(const std::string& name) const {
    const qp_matrix* const it = get();
    const char* const text = detail::c_string(name, "name");
    return save(std::span(&it, 1), std::span(&text, 1));
  }

  /// Read one matrix from a safetensors file in memory, which may hold other tensors and matrices too.
  /// \param buffer bytes of the file.
  /// \param name as given to ::qp_matrix_save.
  /// \throws Error: KVQ_E_ARGUMENT (NULL, no matrix of that name); KVQ_E_FORMAT (damaged, truncated, sizes that do not
  /// fit together; the message names the tensor or field); KVQ_E_MISMATCH (a file of another version); KVQ_E_MEMORY;
  /// KVQ_E_LIMIT.
  static Matrix load(kvq_context* context, std::span<const std::byte> buffer, const std::string& name) {
    return detail::made<Matrix>(qp_matrix_load, context, buffer.data(), buffer.size(), detail::c_string(name, "name"));
  }

  /// How large a matrix will be, before there is one.
  /// \param scheme as in qp_quantize_options.
  /// \param rows as for ::qp_quantize.
  /// \param columns as for ::qp_quantize.
  /// \param has_bias 1 or 0.
  /// \param allocated receives by how much kvq_context_info::bytes of a CPU context grows with such a matrix, by
  /// ::qp_quantize or ::qp_matrix_load: padding and the object included; unchanged on failure. empty: not wanted.
  /// \throws Error: KVQ_E_ARGUMENT (NULL, a scheme that does not exist, shape, `has_bias`).
  static uint64_t predict_bytes(const std::string& scheme, int64_t rows, int64_t columns, int32_t has_bias,
                                uint64_t* allocated = nullptr) {
    uint64_t found = 0;
    checked(qp_matrix_predict_bytes, detail::c_string(scheme, "scheme"), rows, columns, has_bias, &found, allocated);
    return found;
  }

#ifdef KVQ_EXPERIMENTAL
  /// Measure which of a device's kernels are the fastest for calls of ::qp_linear_shared like this one, instead of
  /// going by an estimate, which was made on an H100. It holds for all matrices of the context of the same schemes and
  /// shapes, with exactly this batch; what is known already is not measured again.
  ///
  /// Another kernel adds numbers up in another order, so that the last bits may change, now and from one measurement to
  /// the next: keep what was measured (::qp_tuning_save) where results are to stay the same.
  ///
  /// Takes tenths of a second, waits for the context's stream and for measurements, and meanwhile allocates inputs,
  /// outputs and as many copies of the codes as twice the device's L2 cache holds. Not while a graph is captured.
  /// \param matrices as for ::qp_linear_shared.
  /// \param batch rows, at least 1. Calls of more than 1024 go in pieces of so many, which are measured.
  /// \throws Error: KVQ_E_ARGUMENT; KVQ_E_MISMATCH (matrices that do not share their inputs); KVQ_E_UNSUPPORTED (a CPU
  /// context, a stream that is captured); KVQ_E_MEMORY; KVQ_E_LIMIT; KVQ_E_BACKEND.
  static void tune(std::span<const qp_matrix* const> matrices, int32_t batch) {
    checked(qp_tune, matrices.data(), detail::count("matrices", matrices.size()), batch);
  }
#endif
};

#ifdef KVQ_EXPERIMENTAL
/// Trains codebooks from keys and values that the caller's engine computed on some texts.
///
///     kvq_codebook_trainer_create(context, &options, &trainer, &error);
///     for every text, for every layer: kvq_codebook_trainer_add(trainer, layer, n, k, v, KVQ_BF16, &error);
///     for every layer:                 kvq_codebook_trainer_run(trainer, layer, hook, user, &error);
///     kvq_codebook_trainer_result(trainer, &codebook, &error);
///
/// Layers are independent: where memory is short, add and run a few at a time. Mix the texts that the model will see,
/// and take tens of thousands of tokens: what matters most is that codes meet in use what they were trained on.
class CodebookTrainer
    : public detail::Owned<kvq_codebook_trainer, kvq_codebook_trainer_destroy, const kvq_codebook_trainer> {
 public:
  CodebookTrainer(std::nullptr_t) noexcept : Owned(nullptr) {}

  /// Create a trainer. It works on the device of the context; networks of values, on the host.
  /// \throws Error: KVQ_E_ARGUMENT; KVQ_E_MEMORY; KVQ_E_LIMIT.
  CodebookTrainer(kvq_context* context, const kvq_codebook_trainer_options& options)
      : Owned(detail::made<Owned>(kvq_codebook_trainer_create, context, &options)),
        head_dim_(options.head_dim),
        kv_heads_(options.kv_heads) {}

  /// Take over finished layers of an earlier, unfinished result. Tokens already added to these layers are dropped.
  /// \param codebook of the trainer's context, of the same shape, seed, model and note.
  /// \throws Error: KVQ_E_ARGUMENT (also: of another context); KVQ_E_MISMATCH (with the difference).
  /// \par Threads: exclusive use of `trainer`.
  void resume(const kvq_codebook* codebook) { checked(kvq_codebook_trainer_resume, get(), codebook); }

  /// Add tokens to a layer that is not finished. They are kept as FP16 until the layer is.
  /// \param n number of tokens, ≥ 1.
  /// \param k keys before RoPE, `[n, kv_heads, head_dim]`; finite, magnitude at most 65504. empty is allowed without
  /// codes for keys.
  /// \param v values, same shape and rules.
  /// \throws Error: KVQ_E_ARGUMENT; KVQ_E_STATE (the layer is finished); KVQ_E_MEMORY; KVQ_E_LIMIT.
  /// \par Threads: exclusive use of `trainer`.
  void add(int32_t layer, int32_t n, std::span<const float> k = {}, std::span<const float> v = {}) {
    detail::require_size_or_none("k", k.size(), detail::product({n, kv_heads_, head_dim_}),
                                 "n * trainer.kv_heads * trainer.head_dim");
    detail::require_size_or_none("v", v.size(), detail::product({n, kv_heads_, head_dim_}),
                                 "n * trainer.kv_heads * trainer.head_dim");
    checked(kvq_codebook_trainer_add, get(), layer, n, detail::optional(k), detail::optional(v), KVQ_F32);
  }

  /// The same with tensors of other elements, whose sizes are not checked.
  void add(int32_t layer, int32_t n, const void* k, const void* v, kvq_dtype dtype) {
    checked(kvq_codebook_trainer_add, get(), layer, n, k, v, dtype);
  }

  /// Train one layer on the tokens added to it, and drop them. Takes minutes for a large model; uses the threads of the
  /// context. The result depends on the options, the tokens and the kind of device alone.
  /// \param progress it may not use `trainer`. NULL: not called.
  /// \throws Error: KVQ_E_ARGUMENT (also: too few tokens); KVQ_E_STATE (the layer is finished, or has no tokens);
  /// KVQ_E_CANCELLED; KVQ_E_MEMORY; KVQ_E_LIMIT. After a failure the layer has its tokens still.
  /// \par Threads: exclusive use of `trainer`.
  void run(int32_t layer, ProgressHook progress = {}) {
    detail::CallHook<kvq_progress_hook, ProgressHook> told(std::move(progress));
    told.during([&] { checked(kvq_codebook_trainer_run, get(), layer, told.hook(), told.user()); });
  }

  /// The same with a C hook.
  void run(int32_t layer, kvq_progress_hook progress, void* user) {
    checked(kvq_codebook_trainer_run, get(), layer, progress, user);
  }

  /// The codebooks of the layers finished so far. They share memory with the trainer and outlive it.
  /// \throws Error: KVQ_E_ARGUMENT; KVQ_E_MEMORY; KVQ_E_LIMIT.
  Codebook result() const { return detail::made<Codebook>(kvq_codebook_trainer_result, get()); }

 private:
  int32_t head_dim_ = 0;
  int32_t kv_heads_ = 0;
};
#endif

#ifdef KVQ_EXPERIMENTAL
/// Trains centres from keys and values that the caller's engine computed on some texts.
///
///     kvq_centres_trainer_create(context, &options, &trainer, &error);
///     for every text, for every layer: kvq_centres_trainer_add(trainer, layer, n, k, v, KVQ_BF16, &error);
///     for every layer:                 kvq_centres_trainer_run(trainer, layer, hook, user, &error);
///     kvq_centres_trainer_result(trainer, &centres, &error);
///
/// Layers are independent: where memory is short, add and run a few at a time. Mix the texts that the model will see,
/// and take some hundred tokens for each centre of a head.
class CentresTrainer
    : public detail::Owned<kvq_centres_trainer, kvq_centres_trainer_destroy, const kvq_centres_trainer> {
 public:
  CentresTrainer(std::nullptr_t) noexcept : Owned(nullptr) {}

  /// Create a trainer. It works on the device of the context.
  /// \throws Error: KVQ_E_ARGUMENT; KVQ_E_MEMORY; KVQ_E_LIMIT.
  CentresTrainer(kvq_context* context, const kvq_centres_trainer_options& options)
      : Owned(detail::made<Owned>(kvq_centres_trainer_create, context, &options)),
        head_dim_(options.head_dim),
        kv_heads_(options.kv_heads) {}

  /// Add tokens to a layer that is not finished. They are kept as FP16 until the layer is.
  /// \param n number of tokens, ≥ 1.
  /// \param k keys before RoPE, `[n, kv_heads, head_dim]`; finite, magnitude at most 65504. empty is allowed without
  /// centres for keys.
  /// \param v values, same shape and rules.
  /// \throws Error: KVQ_E_ARGUMENT; KVQ_E_STATE (the layer is finished); KVQ_E_MEMORY; KVQ_E_LIMIT.
  /// \par Threads: exclusive use of `trainer`.
  void add(int32_t layer, int32_t n, std::span<const float> k = {}, std::span<const float> v = {}) {
    detail::require_size_or_none("k", k.size(), detail::product({n, kv_heads_, head_dim_}),
                                 "n * trainer.kv_heads * trainer.head_dim");
    detail::require_size_or_none("v", v.size(), detail::product({n, kv_heads_, head_dim_}),
                                 "n * trainer.kv_heads * trainer.head_dim");
    checked(kvq_centres_trainer_add, get(), layer, n, detail::optional(k), detail::optional(v), KVQ_F32);
  }

  /// The same with tensors of other elements, whose sizes are not checked.
  void add(int32_t layer, int32_t n, const void* k, const void* v, kvq_dtype dtype) {
    checked(kvq_centres_trainer_add, get(), layer, n, k, v, dtype);
  }

  /// Train one layer on the tokens added to it, and drop them. Uses the threads of the context. The result depends on
  /// the options and the tokens alone.
  /// \param progress it may not use `trainer`. NULL: not called.
  /// \throws Error: KVQ_E_ARGUMENT (also: fewer tokens than centres); KVQ_E_STATE (the layer is finished, or has no
  /// tokens); KVQ_E_CANCELLED; KVQ_E_MEMORY; KVQ_E_LIMIT. After a failure the layer has its tokens still.
  /// \par Threads: exclusive use of `trainer`.
  void run(int32_t layer, ProgressHook progress = {}) {
    detail::CallHook<kvq_progress_hook, ProgressHook> told(std::move(progress));
    told.during([&] { checked(kvq_centres_trainer_run, get(), layer, told.hook(), told.user()); });
  }

  /// The same with a C hook.
  void run(int32_t layer, kvq_progress_hook progress, void* user) {
    checked(kvq_centres_trainer_run, get(), layer, progress, user);
  }

  /// The centres of the layers finished so far. They share memory with the trainer and outlive it.
  /// \throws Error: KVQ_E_ARGUMENT; KVQ_E_MEMORY; KVQ_E_LIMIT.
  Centres result() const { return detail::made<Centres>(kvq_centres_trainer_result, get()); }

 private:
  int32_t head_dim_ = 0;
  int32_t kv_heads_ = 0;
};
#endif

#ifdef KVQ_EXPERIMENTAL
/// Trains routers from queries, keys and values that the caller's engine computed on some texts.
///
///     kvq_router_trainer_create(context, &cache_options, policy, &options, &trainer, &error);
///     for every text, for every layer: kvq_router_trainer_add(trainer, layer, n, q, k, v, KVQ_BF16, &error);
///     kvq_router_trainer_run(trainer, loss, hook, user, &error);
///     kvq_router_trainer_result(trainer, &router, &error);
///
/// Texts should be as long as those that the model will see, a few thousand tokens each, and tens of thousands
/// together: how much a page matters depends on what comes after it.
class RouterTrainer : public detail::Owned<kvq_router_trainer, kvq_router_trainer_destroy, const kvq_router_trainer> {
 public:
  RouterTrainer(std::nullptr_t) noexcept : Owned(nullptr) {}

  /// Create a trainer.
  /// \param context computes on the CPU.
  /// \param cache what a cache of the model would be made with: its shape, RoPE, scale and `model_id`, and a codebook
  /// if an expert is commvq.
  /// \param policy with a router's experts, those with more bits first; `votes` and the effort for commvq are used too.
  /// \throws Error: KVQ_E_ARGUMENT; KVQ_E_MISMATCH (a codebook for another model); KVQ_E_UNSUPPORTED (the context
  /// computes on a GPU); KVQ_E_MEMORY; KVQ_E_LIMIT.
  RouterTrainer(kvq_context* context, const kvq_cache_options& cache, const kvq_policy* policy,
                const kvq_router_trainer_options& options)
      : Owned(detail::made<Owned>(kvq_router_trainer_create, context, &cache, policy, &options)),
        head_dim_(cache.head_dim),
        kv_heads_(cache.kv_heads),
        q_heads_(cache.q_heads) {}

  /// Add one text to a layer. Every layer needs the same texts in the same order; layers may come in any order. For
  /// labels this stores the text in every format and compares the attention of some of its queries, which takes most of
  /// the time of training. Only keys of the first layer of each group are kept, as FP16.
  /// \param n tokens of the text, ≥ 1, at positions 0, 1, …. Pages are judged by the quarter of the text's tokens that
  /// follows them, so the first page and those in the last quarter are not learned from: a text of fewer than 85 tokens
  /// teaches nothing.
  /// \param q queries before RoPE, `[n, q_heads, head_dim]`; finite. empty is allowed for ::KVQ_ROUTER_PAPER.
  /// \param k keys before RoPE, `[n, kv_heads, head_dim]`, as for kvq_append.
  /// \param v values, same shape and rules; empty is allowed for ::KVQ_ROUTER_PAPER.
  /// \throws Error: KVQ_E_ARGUMENT (also: another length than in other layers); KVQ_E_STATE (the training is done);
  /// KVQ_E_MEMORY; KVQ_E_LIMIT.
  /// \par Threads: exclusive use of `trainer`.
  void add(int32_t layer, int32_t n, std::span<const float> q, std::span<const float> k,
           std::span<const float> v = {}) {
    detail::require_size_or_none("q", q.size(), detail::product({n, q_heads_, head_dim_}),
                                 "n * trainer.q_heads * trainer.head_dim");
    detail::require_size("k", k.size(), detail::product({n, kv_heads_, head_dim_}),
                         "n * trainer.kv_heads * trainer.head_dim");
    detail::require_size_or_none("v", v.size(), detail::product({n, kv_heads_, head_dim_}),
                                 "n * trainer.kv_heads * trainer.head_dim");
    checked(kvq_router_trainer_add, get(), layer, n, detail::optional(q), k.data(), detail::optional(v), KVQ_F32);
  }

  /// The same with tensors of other elements, whose sizes are not checked.
  void add(int32_t layer, int32_t n, const void* q, const void* k, const void* v, kvq_dtype dtype) {
    checked(kvq_router_trainer_add, get(), layer, n, q, k, v, dtype);
  }

  /// Train the routers of all layers on the texts added, and drop them. Uses the threads of the context. The result
  /// depends on the options and the texts alone.
  /// \param loss for ::KVQ_ROUTER_PAPER: the model's mean negative log-likelihood of a token of the texts (natural
  /// logarithm), above 0. Ignored for labels.
  /// \param progress it may not use `trainer`. NULL: not called.
  /// \throws Error: KVQ_E_ARGUMENT; KVQ_E_STATE (the training is done; a layer lacks texts that another one has; no
  /// text is long enough; the training diverged); KVQ_E_CANCELLED; KVQ_E_MEMORY; KVQ_E_LIMIT. After a failure the texts
  /// are there still.
  /// \par Threads: exclusive use of `trainer`.
  void run(double loss, ProgressHook progress = {}) {
    detail::CallHook<kvq_progress_hook, ProgressHook> told(std::move(progress));
    told.during([&] { checked(kvq_router_trainer_run, get(), loss, told.hook(), told.user()); });
  }

  /// The same with a C hook.
  void run(double loss, kvq_progress_hook progress, void* user) {
    checked(kvq_router_trainer_run, get(), loss, progress, user);
  }

  /// The routers, after ::kvq_router_trainer_run. They outlive the trainer.
  /// \throws Error: KVQ_E_ARGUMENT; KVQ_E_STATE (not trained yet); KVQ_E_MEMORY; KVQ_E_LIMIT.
  Router result() const { return detail::made<Router>(kvq_router_trainer_result, get()); }

 private:
  int32_t head_dim_ = 0;
  int32_t kv_heads_ = 0;
  int32_t q_heads_ = 0;
};
#endif

#ifdef KVQ_EXPERIMENTAL
/// All ways to group matrices that read the same inputs and to write them: for engines whose kernels fuse only equal
/// schemes. Those that another one beats in bytes, seconds and loss are left out; the others are the options of one
/// choice for ::kvq_plan_solve. Immutable.
class PlanFusion : public detail::Owned<kvq_plan_fusion, kvq_plan_fusion_destroy, const kvq_plan_fusion> {
 public:
  using Owned::Owned;

  /// Find the groupings.
  /// \throws Error: KVQ_E_ARGUMENT; KVQ_E_MEMORY; KVQ_E_LIMIT.
  PlanFusion(kvq_context* context, const kvq_plan_fusion_options& options)
      : Owned(detail::made<Owned>(kvq_plan_fusion_create, context, &options)) {}

  /// Describe groupings.
  /// \throws Error: KVQ_E_ARGUMENT.
  kvq_plan_fusion_info describe() const {
    return detail::described<kvq_plan_fusion_info>(kvq_plan_fusion_describe, get());
  }

  /// Describe one grouping.
  /// \param index 0 … n_groupings − 1, those with the smallest loss first.
  /// \throws Error: KVQ_E_ARGUMENT.
  kvq_plan_grouping_info describe_grouping(int32_t index) const {
    return detail::described<kvq_plan_grouping_info>(kvq_plan_fusion_describe_grouping, get(), index);
  }
};
#endif

#ifdef KVQ_EXPERIMENTAL
/// What a planner decided, as a file: the scheme of each matrix and how caches store pages. Immutable.
class Plan : public detail::Owned<kvq_plan, kvq_plan_destroy, const kvq_plan> {
 public:
  using Owned::Owned;

  /// Make a plan.
  /// \throws Error: KVQ_E_ARGUMENT; KVQ_E_MEMORY; KVQ_E_LIMIT.
  Plan(kvq_context* context, const kvq_plan_content& content)
      : Owned(detail::made<Owned>(kvq_plan_create, context, &content)) {}

  /// Take one option of every choice, so that the goal is as small as possible and the limits hold.
  ///
  /// With one limit this takes milliseconds for hundreds of choices with dozens of options, with two below a second.
  /// \param chosen receives the number of each choice's option, from 0.
  /// \throws Error: KVQ_E_ARGUMENT; KVQ_E_LIMIT (no plan keeps the limits; the message says what is missing, and the
  /// goal ::KVQ_PLAN_BYTES finds the smallest plan); KVQ_E_MEMORY.
  static kvq_plan_costs solve(kvq_context* context, const kvq_plan_problem& problem, std::span<int32_t> chosen) {
    return detail::described<kvq_plan_costs>(kvq_plan_solve, context, &problem, chosen.data(),
                                             detail::count("chosen", chosen.size()));
  }

  /// The bits that each matrix would get if codes were as good as codes of Gaussian numbers can be: an error of 2^(−2b)
  /// with b bits a weight. What is lost then is a lower bound for every plan (Q-Palette, theorem 3.1).
  /// \param weights numbers in each, above 0.
  /// \param sensitivities loss of each at a relative squared error of 1, not negative.
  /// \param least_bits of a weight, at least 0.
  /// \param total_bits of all weights, at least `least_bits` each.
  /// \param bits receives the bits of a weight of each matrix.
  /// \throws Error: KVQ_E_ARGUMENT.
  static double rates(std::span<const double> weights, std::span<const double> sensitivities, double least_bits,
                      double total_bits, std::span<double> bits) {
    detail::require_size("sensitivities", sensitivities.size(), static_cast<int64_t>(weights.size()),
                         "as many as weights");
    detail::require_size("bits", bits.size(), static_cast<int64_t>(weights.size()), "as many as weights");
    return detail::counted<double>(kvq_plan_rates, detail::count("weights", weights.size()), weights.data(),
                                   sensitivities.data(), least_bits, total_bits, bits.data());
  }

  /// Read a plan from YAML:
  ///
  ///     version: 1
  ///     note: "..."                                    # optional
  ///     expected: {bytes: 1000, seconds: 0.01, loss: 0.02}  # optional
  ///     weights:                                       # optional
  ///       "model.layers.0.mlp.up_proj": tcx-3
  ///     cache: {keys: gs3, values: gs2}                # a policy, optional
  /// \param yaml text, not necessarily NUL-terminated; at most 64 MiB.
  /// \throws Error: KVQ_E_ARGUMENT; KVQ_E_FORMAT (with the line); KVQ_E_MEMORY; KVQ_E_LIMIT.
  static Plan load(kvq_context* context, std::string_view yaml) {
    return detail::made<Plan>(kvq_plan_load, context, yaml.data(), yaml.size());
  }

  /// Write a plan as YAML. The same plan gives the same text.
  /// \throws Error: KVQ_E_ARGUMENT; KVQ_E_BUFFER_SIZE (nothing is written); KVQ_E_MEMORY; KVQ_E_LIMIT.
  std::string save() const { return detail::saved<std::string>(kvq_plan_save, get()); }

  /// Describe a plan.
  /// \throws Error: KVQ_E_ARGUMENT.
  kvq_plan_info describe() const { return detail::described<kvq_plan_info>(kvq_plan_describe, get()); }

  /// Describe one matrix of a plan.
  /// \param index 0 … n_matrices − 1, in the order of the plan.
  /// \throws Error: KVQ_E_ARGUMENT.
  kvq_plan_matrix_info describe_matrix(int32_t index) const {
    return detail::described<kvq_plan_matrix_info>(kvq_plan_describe_matrix, get(), index);
  }

  /// The scheme that a plan gives a matrix; NULL if it does not name it.
  const char* scheme(const std::string& name = {}) const {
    return kvq_plan_scheme(get(), detail::c_string_or_null(name, "name"));
  }

  /// The policy of a plan.
  /// \throws Error: KVQ_E_ARGUMENT; KVQ_E_STATE (the plan says nothing of caches); KVQ_E_MEMORY; KVQ_E_LIMIT.
  Policy policy() const { return detail::made<Policy>(kvq_plan_policy, get()); }
};
#endif

}  // namespace v1
}  // namespace KVQ_NAMESPACE

#endif  // KVQ_HPP
