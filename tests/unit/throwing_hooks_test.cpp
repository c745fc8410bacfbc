// C++ hooks that throw although they must not: each exception counts as the hook's failure and stops there.
#include "support/device.h"
#include "support/handles.h"
#include "support/random.h"
#include "unit/places.h"

#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <limits>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace throwing_hooks_test {
namespace {

using kvq_test::Cache;
using kvq_test::Context;
using kvq_test::Sequence;

/// An exception type unknown to the library.
struct Thrown {};

/// Hooks of one context, some of which throw.
struct Host {
  int64_t allocations_until_throw = -1;  // 1: the next one
  bool free_throws = false;
  bool released_throws = false;
  int64_t live_bytes = 0;
  int n_thrown = 0;
  int n_released = 0;

  [[noreturn]] void fail() {
    ++n_thrown;
    throw Thrown();
  }

  static void* allocate(void* user, size_t bytes, size_t alignment) {
    Host& host = *static_cast<Host*>(user);
    if (host.allocations_until_throw > 0 && --host.allocations_until_throw == 0) host.fail();
    host.live_bytes += static_cast<int64_t>(bytes);
    return ::operator new(bytes, std::align_val_t(alignment));
  }
  static void free(void* user, void* pointer, size_t bytes, size_t alignment) {
    Host& host = *static_cast<Host*>(user);
    host.live_bytes -= static_cast<int64_t>(bytes);
    ::operator delete(pointer, std::align_val_t(alignment));
    if (host.free_throws) host.fail();
  }
  static void log(void* user, kvq_log_level /*level*/, const char* /*message*/) { static_cast<Host*>(user)->fail(); }
  static void released(void* user) {
    Host& host = *static_cast<Host*>(user);
    ++host.n_released;
    if (host.released_throws) host.fail();
  }

  kvq_context_options options() {
    auto options = kvq_test::initialised<kvq_context_options>();
    options.allocate = allocate;
    options.free = free;
    options.allocator_user = this;
    options.released = released;
    options.released_user = this;
    return options;
  }
};

constexpr int32_t kKvHeads = 2;
constexpr int32_t kHeadDim = 16;
constexpr int32_t kTokens = 200;

Cache make_cache(kvq_context* context, const char* policy = "int4") {
  return kvq_test::make_cache(context, kvq_test::cache_options(4, kKvHeads, kHeadDim), policy);
}

std::vector<float> random_floats(size_t n, uint64_t seed) {
  kvq_test::Random random(seed);
  std::vector<float> numbers(n);
  for (float& each : numbers) each = static_cast<float>(random.normal());
  return numbers;
}

void append(kvq_sequence* sequence, int32_t n = kTokens) {
  const std::vector<float> k = random_floats(static_cast<size_t>(n) * kKvHeads * kHeadDim, 1);
  kvq_test::append(sequence, 0, n, k.data(), k.data());
}

/// Makes a hook throw at the first allocation of a call, then at later ones, until the call succeeds.
template <typename Call>
void throw_at_each_allocation(Host& host, kvq_context* context, const Call& call) {
  const auto counted = [context]() -> uint64_t {
    if (context == nullptr) return 0;
    kvq_context_info info{};
    info.struct_size = sizeof info;
    kvq_test::checked(kvq_context_describe, context, &info);
    return info.bytes;
  };
  int64_t n = 1;
  for (kvq_status status = KVQ_E_MEMORY; status != KVQ_OK; ++n) {
    REQUIRE_LT(n, 10000);
    const int64_t live = host.live_bytes;
    const uint64_t bytes = counted();
    auto error = kvq_test::initialised<kvq_error>();
    host.allocations_until_throw = n;
    status = call(&error);
    host.allocations_until_throw = -1;
    if (status == KVQ_OK) break;
    CHECK_EQ(status, KVQ_E_MEMORY);
    CHECK_NE(std::string(error.message).find("allocator"), std::string::npos);
    CHECK_EQ(host.live_bytes, live);
    CHECK_EQ(counted(), bytes);
  }
  CHECK_GT(n, 1);
}

}  // namespace

TEST_CASE("an allocation hook that throws has failed to allocate, and nothing is counted for it") {
  Host host;
  const kvq_context_options options = host.options();
  kvq_context* made = nullptr;
  throw_at_each_allocation(host, nullptr, [&](kvq_error* error) { return kvq_context_create(&options, &made, error); });
  {
    const Context context(made);
    const Cache cache = make_cache(context);
    kvq_sequence* sequence = nullptr;
    throw_at_each_allocation(host, context,
                             [&](kvq_error* error) { return kvq_sequence_create(cache, &sequence, error); });
    Sequence owner(sequence);
    append(sequence);
    kvq_sequence* fork = nullptr;
    throw_at_each_allocation(host, context,
                             [&](kvq_error* error) { return kvq_sequence_fork(cache, sequence, &fork, error); });
    kvq_sequence_destroy(fork);
  }
  CHECK_EQ(host.live_bytes, 0);
  CHECK_EQ(host.n_released, 1);
}

TEST_CASE("what a free hook throws is dropped: everything is given back and counted as such") {
  Host host;
  host.free_throws = true;
  {
    const Context context(host.options());
    const Cache cache = make_cache(context);
    Sequence sequence(cache);
    const uint64_t before = cache.usage().total_bytes;
    append(sequence);
    sequence.truncate(0);
    Sequence loaded = kvq_test::Sequence::load(cache, sequence.save());
    kvq_sequence* none = nullptr;
    CHECK_EQ(kvq_sequence_load(cache, "none", 4, &none, nullptr), KVQ_E_FORMAT);  // frees memory while it unwinds
    sequence.reset();
    CHECK_LE(cache.usage().total_bytes, before);
  }
  CHECK_GT(host.n_thrown, 10);
  CHECK_EQ(host.live_bytes, 0);
  CHECK_EQ(host.n_released, 1);
}

TEST_CASE("a context whose hooks throw at its birth and at its end comes and goes") {
  Host host;
  host.free_throws = true;
  host.released_throws = true;
  kvq_context_options options = host.options();
  options.log = Host::log;
  options.log_user = &host;
  kvq_context* context = nullptr;
  auto error = kvq_test::initialised<kvq_error>();
  REQUIRE_EQ(kvq_context_create(&options, &context, &error), KVQ_OK);
  CHECK_GT(host.n_thrown, 0);  // a new context logs its description
  const int n_thrown = host.n_thrown;
  kvq_context_destroy(context);
  CHECK_GT(host.n_thrown, n_thrown + 1);
  CHECK_EQ(host.n_released, 1);
  CHECK_EQ(host.live_bytes, 0);
}

namespace {

struct Loops {
  int n_done = 0;  // indices of each loop that run before the hook throws
  int n_thrown = 0;
};

int32_t loop_that_throws(void* user, int32_t n, kvq_parallel_body body, void* argument) {
  Loops& loops = *static_cast<Loops*>(user);
  // On another thread, as in a host's thread pool.
  std::thread worker([&] {
    for (int32_t i = 0; i < n && i < loops.n_done; ++i) body(argument, i);
  });
  worker.join();
  ++loops.n_thrown;
  throw std::runtime_error("the pool is gone");
}

struct Results {
  std::vector<float> output;
  kvq_test::Snapshot snapshot;
};

Results attend_and_save(const Context& context) {
  const Cache cache = make_cache(context, "int4+hadamard");
  Sequence sequence(cache);
  append(sequence, 900);
  constexpr int32_t kQueries = 16;
  const std::vector<float> q = random_floats(size_t{kQueries} * 4 * kHeadDim, 2);
  Results results{std::vector<float>(q.size()), sequence.save()};
  const kvq_sequence* list[] = {sequence};
  auto batch = kvq_test::initialised<kvq_attend_batch>();
  batch.n_sequences = 1;
  batch.sequences = list;
  batch.query_counts = &kQueries;
  batch.q = q.data();
  batch.output = results.output.data();
  kvq_test::attend(cache, 0, batch);
  return results;
}

}  // namespace

TEST_CASE("where a parallel hook throws the calling thread does what is left, and results are the same") {
  const Results expected = attend_and_save(kvq_test::make_context());
  for (const int n_done : {0, 1, 3, std::numeric_limits<int>::max()}) {
    CAPTURE(n_done);
    Loops loops;
    loops.n_done = n_done;
    auto options = kvq_test::initialised<kvq_context_options>();
    options.parallel_for = loop_that_throws;
    options.parallel_for_user = &loops;
    const Results results = attend_and_save(kvq_test::Context(options));
    CHECK_GT(loops.n_thrown, 0);
    CHECK(results.output == expected.output);
    CHECK(results.snapshot == expected.snapshot);
  }
}

namespace {

int32_t progress_that_throws(void* user, double /*done*/) {
  ++*static_cast<int*>(user);
  throw Thrown();
}

/// A call with this hook is cancelled; without it the call succeeds.
template <typename Call>
void require_cancelled(const Call& call) {
  int n_thrown = 0;
  auto error = kvq_test::initialised<kvq_error>();
  CHECK_EQ(call(progress_that_throws, &n_thrown, &error), KVQ_E_CANCELLED);
  CHECK_EQ(error.code, KVQ_E_CANCELLED);
  CHECK_EQ(n_thrown, 1);
  CHECK_EQ(call(nullptr, nullptr, &error), KVQ_OK);
}

}  // namespace

TEST_CASE("a progress hook that throws cancels") {
  const Context context = kvq_test::make_context();
  SUBCASE("the quantization of a matrix") {
    const std::vector<float> weights = random_floats(64 * 64, 3);
    require_cancelled([&](kvq_progress_hook hook, void* user, kvq_error* error) {
      auto options = kvq_test::initialised<qp_quantize_options>();
      options.progress = hook;
      options.progress_user = user;
      qp_matrix* matrix = nullptr;
      const kvq_status status = qp_quantize(context, &options, weights.data(), 64, 64, &matrix, error);
      CHECK_EQ(matrix == nullptr, status != KVQ_OK);
      qp_matrix_destroy(matrix);
      return status;
    });
  }
  SUBCASE("the training of codebooks") {
    auto options = kvq_test::initialised<kvq_codebook_trainer_options>();
    options.n_layers = 1;
    options.kv_heads = kKvHeads;
    options.head_dim = kHeadDim;
    options.key_stages = 2;
    options.key_codes = 8;
    kvq_codebook_trainer* trainer = nullptr;
    const std::vector<float> x = random_floats(size_t{kTokens} * kKvHeads * kHeadDim, 4);
    kvq_test::checked(kvq_codebook_trainer_create, context, &options, &trainer);
    kvq_test::checked(kvq_codebook_trainer_add, trainer, 0, kTokens, x.data(), x.data(), KVQ_F32);
    require_cancelled([&](kvq_progress_hook hook, void* user, kvq_error* error) {
      return kvq_codebook_trainer_run(trainer, 0, hook, user, error);
    });
    kvq_codebook_trainer_destroy(trainer);
  }
  SUBCASE("the training of routers") {
    const kvq_cache_options cache = kvq_test::cache_options(4, kKvHeads, kHeadDim);
    const kvq_test::Policy policy = kvq_test::Policy::load(context, "{version: 1, router: {experts: [fp16, int2]}}");
    auto options = kvq_test::initialised<kvq_router_trainer_options>();
    options.epochs = 2;
    options.mean_bits = 8.0;
    kvq_router_trainer* trainer = nullptr;
    const std::vector<float> q = random_floats(size_t{kTokens} * 4 * kHeadDim, 5);
    const std::vector<float> kv = random_floats(size_t{kTokens} * kKvHeads * kHeadDim, 6);
    kvq_test::checked(kvq_router_trainer_create, context, &cache, policy, &options, &trainer);
    kvq_test::checked(kvq_router_trainer_add, trainer, 0, kTokens, q.data(), kv.data(), kv.data(), KVQ_F32);
    require_cancelled([&](kvq_progress_hook hook, void* user, kvq_error* error) {
      return kvq_router_trainer_run(trainer, 0.0, hook, user, error);
    });
    kvq_router_trainer_destroy(trainer);
  }
}

namespace {

struct DeviceHost {
  bool allocate_throws = false;
  int live = 0;
  int n_thrown = 0;

  static void* allocate(void* user, size_t bytes, void* /*stream*/) {
    DeviceHost& host = *static_cast<DeviceHost*>(user);
    if (host.allocate_throws) {
      ++host.n_thrown;
      throw Thrown();
    }
    ++host.live;
    return ::operator new(bytes);
  }
  static void free(void* user, void* pointer, size_t /*bytes*/, void* /*stream*/) {
    DeviceHost& host = *static_cast<DeviceHost*>(user);
    --host.live;
    ::operator delete(pointer);
    ++host.n_thrown;
    throw Thrown();
  }
};

}  // namespace

TEST_CASE("device hooks that throw: no memory, or an exception that is dropped") {
  DeviceHost on_device;
  Host on_host;
  kvq_context_options options = on_host.options();
  options.device = KVQ_DEVICE_CUDA;
  const std::string plugin = pretended_device().string();
  options.plugin = plugin.c_str();
  options.device_allocate = DeviceHost::allocate;
  options.device_free = DeviceHost::free;
  options.device_allocator_user = &on_device;
  kvq_context* context = nullptr;
  auto error = kvq_test::initialised<kvq_error>();
  REQUIRE_EQ(kvq_context_create(&options, &context, &error), KVQ_OK);
  CHECK_EQ(on_device.live, 1);
  kvq_context_destroy(context);
  CHECK_EQ(on_device.live, 0);
  CHECK_EQ(on_device.n_thrown, 1);

  on_device.allocate_throws = true;
  CHECK_EQ(kvq_context_create(&options, &context, &error), KVQ_E_MEMORY);
  CHECK(context == nullptr);
  CHECK_EQ(on_device.n_thrown, 2);
  CHECK_EQ(on_host.live_bytes, 0);
}

}  // namespace throwing_hooks_test
