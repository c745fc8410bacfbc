/// Failure of a call; what() is its message in UTF-8.
class Error : public std::runtime_error {
 public:
  Error(kvq_status status, const std::string& message, int32_t backend_code = 0)
      : std::runtime_error(message), status_(status), backend_code_(backend_code) {}

  kvq_status status() const noexcept { return status_; }
  /// Return the name of the status, for example "KVQ_E_LIMIT".
  const char* name() const noexcept { return kvq_status_name(status_); }
  /// Return the error code of the device's library or of a hook; 0 if none.
  int32_t backend_code() const noexcept { return backend_code_; }

 private:
  kvq_status status_;
  int32_t backend_code_;
};

namespace detail {

/// Where hooks of calls on this thread leave the first exception that they throw; NULL outside of calls.
inline constinit thread_local std::exception_ptr* thrown_in_call = nullptr;

/// Call `function(arguments..., error)`, and keep how it failed until `raise`.
class Outcome {
 public:
  template <class... Parameters, class... Arguments>
  explicit Outcome(kvq_status (*function)(Parameters...), Arguments&&... arguments) {
    kvq_error_init(&error_, sizeof(error_));
    std::exception_ptr* const outer = std::exchange(thrown_in_call, &thrown_);
    status_ = function(arguments..., &error_);  // lvalues: temporary objects live until the call has returned
    thrown_in_call = outer;
  }
  Outcome(const Outcome&) = delete;
  Outcome& operator=(const Outcome&) = delete;

  bool succeeded() const noexcept { return status_ == KVQ_OK; }
  /// Throw the exception of a hook, or an Error if the call failed.
  void raise() const {
    if (thrown_) std::rethrow_exception(thrown_);
    if (status_ != KVQ_OK) throw Error(status_, error_.message, error_.backend_code);
  }

 private:
  kvq_error error_;
  kvq_status status_ = KVQ_OK;
  std::exception_ptr thrown_;
};

}  // namespace detail

/// Call `function(arguments..., error)`, any function of kvq.h that returns a status. Throw the exception of a hook
/// that ran on this thread, or an Error if the call failed.
template <class... Parameters, class... Arguments>
void checked(kvq_status (*function)(Parameters...), Arguments&&... arguments) {
  detail::Outcome(function, arguments...).raise();
}

/// Throw an Error if the loaded library is older than the header that the program was compiled with. Creating a
/// Context calls this.
inline void require_version() {
  if (kvq_api_version() >= KVQ_API_VERSION) return;
  throw Error(KVQ_E_UNSUPPORTED, "libkvq " + std::string(kvq_version_string()) + " implements API version " +
                                     std::to_string(kvq_api_version()) + ", this program needs " +
                                     std::to_string(KVQ_API_VERSION));
}

/// Return a struct of kvq.h with its defaults; a struct that the library fills gets only its `struct_size`.
template <class Struct>
Struct initialised() {
  Struct it{};
  it.struct_size = sizeof(it);
  return it;
}

namespace detail {

/// Owns a handle, or none. A `const` object gives a `const` pointer, for the functions that several threads may call at
/// once; objects that any number of threads may use give the plain pointer.
template <class Handle, void (*destroy)(Handle*), class Viewed>
class Owned {
 public:
  using Pointer = Handle*;

  Owned() noexcept = default;
  Owned(std::nullptr_t) noexcept {}
  /// Take ownership of a handle that a function of kvq.h returned.
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
  operator Handle*() & noexcept { return handle_; }
  operator Viewed*() const& noexcept { return handle_; }
  operator Handle*() && = delete;  // the pointer would outlive its object
  operator Viewed*() const&& = delete;

  friend bool operator==(const Owned& object, std::nullptr_t) noexcept { return object.handle_ == nullptr; }

  /// Give up the handle; the caller destroys it.
  [[nodiscard]] Handle* release() noexcept { return std::exchange(handle_, nullptr); }
  void reset(Handle* handle = nullptr) noexcept { destroy(std::exchange(handle_, handle)); }

 private:
  Handle* handle_ = nullptr;
};

/// Parameter of a call: a pointer of kvq.h, or that of an object, which may be temporary.
template <class Handle>
class Borrowed {
 public:
  Borrowed(Handle* pointer) noexcept : pointer_(pointer) {}
  template <class Object>
  requires requires(Object& object) { static_cast<Handle*>(object.get()); }
  Borrowed(Object&& object) noexcept : pointer_(object.get()) {}

  operator Handle*() const noexcept { return pointer_; }

 private:
  Handle* pointer_;
};

/// Return the object that `create(arguments..., &handle, error)` creates.
template <class Object, class Create, class... Arguments>
Object made(Create create, Arguments... arguments) {
  typename Object::Pointer handle = nullptr;
  const Outcome outcome(create, arguments..., &handle);
  Object object(handle);  // destroyed if a hook has thrown
  outcome.raise();
  return object;
}

/// Return the struct that `describe(arguments..., &it, error)` fills.
template <class It, class Describe, class... Arguments>
It described(Describe describe, Arguments... arguments) {
  It it = initialised<It>();
  checked(describe, arguments..., &it);
  return it;
}

/// Return the number that `count(arguments..., &number, error)` gets.
template <class Number, class Count, class... Arguments>
Number counted(Count count, Arguments... arguments) {
  Number number = 0;
  checked(count, arguments..., &number);
  return number;
}

/// Return the bytes or text that `save(arguments..., buffer, capacity, &size, error)` writes.
template <class Bytes = std::vector<std::byte>, class Save, class... Arguments>
Bytes saved(Save save, Arguments... arguments) {
  Bytes bytes;
  bytes.resize(counted<size_t>(save, arguments..., nullptr, size_t{0}));
  size_t size = 0;
  checked(save, arguments..., bytes.data(), bytes.size(), &size);
  return bytes;
}

/// Return `name_of(0)` to `name_of(n - 1)`.
inline std::vector<std::string> names(int32_t n, const char* (*name_of)(int32_t)) {
  std::vector<std::string> all;
  for (int32_t i = 0; i < n; ++i) all.emplace_back(name_of(i));
  return all;
}

/// Return text as a C string; refuse a NUL inside, where a C function would stop reading.
inline const char* c_string(const std::string& text, const char* name) {
  if (text.find('\0') == std::string::npos) return text.c_str();
  throw Error(KVQ_E_ARGUMENT, std::string(name) + " contains a NUL");
}

inline const char* c_string_or_null(const std::string& text, const char* name) {
  return text.empty() ? nullptr : c_string(text, name);
}

/// Multiply numbers of elements, saturating at the largest int64_t; -1 if a factor is negative.
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

/// Add up an optional array of `n` numbers, each 1 if the array is empty.
inline int64_t sum(std::span<const int32_t> numbers, int32_t n) {
  if (numbers.empty()) return n;
  int64_t all = 0;
  for (const int32_t number : numbers) all = sum(all, number);
  return all;
}

/// Words of 32 bits for `bits` bits.
inline int64_t words(int64_t bits) { return bits < 0 ? -1 : (bits + 31) / 32; }

inline std::string size_text(const char* name, size_t size, const std::string& expected) {
  return std::string(name) + " has " + std::to_string(size) + " elements instead of " + expected;
}

/// Refuse an empty object, whose sizes are unknown.
inline void require_object(const void* handle, const char* name) {
  if (handle == nullptr) throw Error(KVQ_E_ARGUMENT, std::string(name) + " is NULL");
}

inline void require_size(const char* name, size_t size, int64_t expected, const char* meaning) {
  if (expected >= 0 && size == static_cast<uint64_t>(expected)) return;
  throw Error(KVQ_E_ARGUMENT, size_text(name, size, std::to_string(expected) + " (" + meaning + ")"));
}

inline void require_size_or_none(const char* name, size_t size, int64_t expected, const char* meaning) {
  if (size != 0) require_size(name, size, expected, meaning);
}

/// Require the size of rows `[tokens, heads, channels]`: exact if dense, else at least the extent of the strides.
inline void require_rows(const char* name, size_t size, std::initializer_list<int64_t> shape, int64_t token_stride,
                         int64_t head_stride, const char* meaning) {
  if (token_stride == 0 && head_stride == 0) return require_size(name, size, product(shape), meaning);
  const int64_t tokens = shape.begin()[0], heads = shape.begin()[1], channels = shape.begin()[2];
  const int64_t of_head = head_stride != 0 ? head_stride : channels;
  const int64_t of_token = token_stride != 0 ? token_stride : product({heads, channels});
  const int64_t reach = sum(sum(product({tokens - 1, of_token}), product({heads - 1, of_head})), channels);
  if (reach < 0 || size >= static_cast<uint64_t>(reach)) return;  // the library reports a negative stride
  throw Error(KVQ_E_ARGUMENT,
              size_text(name, size, "at least " + std::to_string(reach) + " (" + meaning + " with the strides)"));
}

inline void require_rows_or_none(const char* name, size_t size, std::initializer_list<int64_t> shape,
                                 int64_t token_stride, int64_t head_stride, const char* meaning) {
  if (size != 0) require_rows(name, size, shape, token_stride, head_stride, meaning);
}

/// Return the size of a list as an int32_t, which the C functions take.
inline int32_t count(const char* name, size_t size) {
  if (size <= static_cast<size_t>(std::numeric_limits<int32_t>::max())) return static_cast<int32_t>(size);
  throw Error(KVQ_E_ARGUMENT, size_text(name, size, "at most 2147483647"));
}

/// Return the pointer of an optional span; NULL if it is empty.
template <class T>
T* optional(std::span<T> span) {
  return span.empty() ? nullptr : span.data();
}

/// Loop body of kvq.h as a function object.
class ParallelBody {
 public:
  ParallelBody(kvq_parallel_body body, void* argument) noexcept : body_(body), argument_(argument) {}

  void operator()(int32_t index) const { body_(argument_, index); }

 private:
  kvq_parallel_body body_;
  void* argument_;
};

/// C function that calls a function object of a HookState; after an exception it returns the hook's failure value.
template <class Hook>
struct Trampoline;

/// Function objects that are called as C hooks, and the first exception of a hook that ran outside of calls.
template <class Functions>
class HookState {
 public:
  explicit HookState(Functions of_host) : functions(std::move(of_host)) {}

  /// Return the hook that calls a function object, with `this` as its `user`; NULL if the function object is empty.
  template <class Hook, auto member>
  Hook hook() const {
    return functions.*member ? &Trampoline<Hook>::template call<Functions, member> : nullptr;
  }

  /// Keep the current exception: for the call that this thread is in, else until rethrow().
  void keep_exception() noexcept {
    if (thrown_in_call != nullptr) {
      if (!*thrown_in_call) *thrown_in_call = std::current_exception();
      return;
    }
    const std::lock_guard lock(mutex_);
    if (!thrown_) thrown_ = std::current_exception();
  }
  /// Rethrow the kept exception, once.
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
  template <class Functions, auto member>
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

template <>
struct Trampoline<kvq_parallel_for_hook> {
  template <class Functions, auto member>
  static int32_t call(void* user, int32_t n, kvq_parallel_body body, void* argument) noexcept {
    auto& state = *static_cast<HookState<Functions>*>(user);
    try {
      (state.functions.*member)(n, ParallelBody(body, argument));
      return 0;
    } catch (...) {
      state.keep_exception();
      return 1;
    }
  }
};

/// Last hook of a context; deletes its HookState.
template <class Functions>
void release_hooks(void* user) noexcept {
  const std::unique_ptr<HookState<Functions>> state(static_cast<HookState<Functions>*>(user));
  try {
    if (state->functions.released) state->functions.released();
  } catch (...) {  // no call is left to rethrow from
  }
}

template <class Function>
struct OneHook {
  Function function;
};

/// Hook for the duration of one call.
template <class Hook, class Function>
class CallHook {
 public:
  explicit CallHook(Function function) : state_({std::move(function)}) {}

  Hook hook() const { return state_.template hook<Hook, &OneHook<Function>::function>(); }
  void* user() { return &state_; }

 private:
  HookState<OneHook<Function>> state_;
};

}  // namespace detail

/// Return the pointers of objects, for the lists of batches.
template <class... Objects>
requires(sizeof...(Objects) > 0 &&
         requires(Objects & ... objects) { std::array{objects.get()...}; }) auto pointers(Objects&... objects) {
  return std::array{objects.get()...};
}

/// Return the pointers of a container of objects.
template <class Objects>
requires requires(Objects& objects) { std::begin(objects)->get(); }
auto pointers(Objects&& objects) {
  std::vector<decltype(std::begin(objects)->get())> all;
  for (auto& object : objects) all.push_back(object.get());
  return all;
}
