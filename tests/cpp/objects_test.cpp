#include <optional>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>

#include "model.h"
#include "support/codebook.h"
#include "support/router.h"

namespace objects_test {

TEST_CASE("objects own their handles: they move, and do not copy") {
  static_assert(!std::is_copy_constructible_v<kvq::Cache> && !std::is_copy_assignable_v<kvq::Cache>);
  static_assert(std::is_nothrow_move_constructible_v<kvq::Cache> && std::is_nothrow_move_assignable_v<kvq::Cache>);
  static_assert(std::is_convertible_v<const kvq::Cache&, kvq_cache*>);  // any number of threads may use one
  static_assert(std::is_convertible_v<kvq::Sequence&, kvq_sequence*>);
  static_assert(!std::is_convertible_v<const kvq::Sequence&, kvq_sequence*>);  // one thread at a time
  static_assert(std::is_convertible_v<const kvq::Sequence&, const kvq_sequence*>);
  static_assert(!std::is_convertible_v<kvq::Sequence, kvq_sequence*>);  // the object would be gone
  static_assert(!std::is_convertible_v<kvq::Sequence, const kvq_sequence*>);
  static_assert(!std::is_convertible_v<const kvq::Cache, kvq_cache*>);

  const kvq::Context context;
  kvq::Cache cache = small_cache(context);
  kvq_cache* const handle = cache;
  kvq::Cache moved = std::move(cache);
  CHECK(moved.get() == handle);
  moved = kvq::Cache(moved.release());
  CHECK(moved.get() == handle);
  CHECK(moved.describe().kv_heads == kKvHeads);
  moved.reset();
  CHECK(moved == nullptr);
}

TEST_CASE("an object that was moved from or reset is refused by name, whatever is called") {
  const kvq::Context context;
  kvq::Cache cache = small_cache(context);
  kvq::Sequence sequence(cache);
  sequence.reset();
  sequence.reset();
  const std::vector<float> x = tokens(1, 1);
  CHECK_FAILS(KVQ_E_ARGUMENT, "sequence is NULL", sequence.length(0));
  CHECK_FAILS(KVQ_E_ARGUMENT, "is NULL", sequence.append(0, 1, x, x));
  CHECK_FAILS(KVQ_E_ARGUMENT, "is NULL", sequence.truncate(0));
  CHECK_FAILS(KVQ_E_ARGUMENT, "is NULL", sequence.fork());
  CHECK_FAILS(KVQ_E_ARGUMENT, "is NULL", sequence.save());
  CHECK_FAILS(KVQ_E_ARGUMENT, "is NULL", sequence.usage());
  CHECK(sequence.cache() == nullptr);
  cache.reset();
  CHECK_FAILS(KVQ_E_ARGUMENT, "cache is NULL", cache.describe());
  CHECK_FAILS(KVQ_E_ARGUMENT, "cache is NULL", cache.usage());
  CHECK_FAILS(KVQ_E_ARGUMENT, "cache is NULL", kvq::Sequence(cache));
  CHECK(cache.context() == nullptr);
  CHECK_FAILS(KVQ_E_ARGUMENT, "context is NULL", kvq::Policy::load(nullptr, "fp16"));
}

TEST_CASE("temporary objects are arguments of calls") {
  const kvq::Context context;
  const kvq::Cache cache(context, small_options(), kvq::Policy::load(context, "int4"));
  CHECK(std::string(cache.describe_layer(0).formats) == "int4");
  kvq::checked(kvq_sequence_reserve, cache, kvq::Sequence(cache), 1);
  const kvq::Sequence sequence(kvq::Cache(kvq::Context(), small_options()));
  CHECK(sequence.length(0) == 0);
}

template <class... Objects>
constexpr bool empty_without_exceptions = (std::is_nothrow_default_constructible_v<Objects> && ...);

TEST_CASE("objects are empty by default, are refused by name, and take others") {
  static_assert(empty_without_exceptions<kvq::Policy, kvq::Codebook, kvq::Centres, kvq::Router, kvq::Cache,
                                         kvq::Sequence, kvq::Matrix>);
  struct Model {
    kvq::Policy policy;
    kvq::Cache cache;
    kvq::Sequence sequence;
  } model;
  const std::vector<float> x = tokens(1, 1);
  std::vector<float> out(queries(1, 1).size());
  CHECK(model.sequence == nullptr);
  CHECK(kvq::Sequence() == nullptr);
  CHECK_FAILS(KVQ_E_ARGUMENT, "policy is NULL", model.policy.describe());
  CHECK_FAILS(KVQ_E_ARGUMENT, "cache is NULL", model.cache.describe());
  CHECK_FAILS(KVQ_E_ARGUMENT, "is NULL", model.sequence.append(0, 1, x, x));
  CHECK_FAILS(KVQ_E_ARGUMENT, "cache is NULL", model.cache.attend(0, {.q = out, .output = out}));
  CHECK_FAILS(KVQ_E_ARGUMENT, "is NULL", kvq::Matrix().linear(x, 1, out));
  const kvq::Context context;
  model.policy = kvq::Policy::load(context, "int4");
  model.cache = kvq::Cache(context, small_options(), model.policy);
  model.sequence = kvq::Sequence(model.cache);
  fill(model.sequence, 3);
  CHECK(model.sequence.length(0) == 3);
}

TEST_CASE("objects die in any order, and what still lives works") {
  std::optional<kvq::Context> context(std::in_place);
  std::optional<kvq::Cache> cache(small_cache(*context));
  kvq::Sequence sequence(*cache);
  fill(sequence, 40);
  CHECK(sequence.cache() == cache->get());
  CHECK(cache->context() == context->get());
  context.reset();
  cache.reset();
  const kvq::Sequence fork = sequence.fork();
  sequence.reset();
  CHECK(fork.length(0) == 40);
}

TEST_CASE("the library is new enough, and says so") {
  kvq::require_version();
  CHECK(kvq::api_version() == KVQ_API_VERSION);
  CHECK(std::string(kvq::version_string()).find("1.") == 0);
  CHECK(kvq::scheme_bits("nuq-4") == 4.0);
  CHECK(kvq::scheme_bits("no scheme") == 0.0);
  CHECK(kvq::scheme_bits() == 0.0);
  const std::vector<std::string> schemes = kvq::scheme_names();
  CHECK(static_cast<int32_t>(schemes.size()) == kvq::scheme_count());
  CHECK(schemes.front() == kvq::scheme_name(0));
  CHECK(kvq::scheme_name(kvq::scheme_count()) == nullptr);
  const std::vector<std::string> sets = kvq::cpu_isa_names();
  CHECK(static_cast<int32_t>(sets.size()) == kvq::cpu_isa_count());
  CHECK(sets.back() == kvq::cpu_isa_name(kvq::cpu_isa_count() - 1));
}

TEST_CASE("structs come with their defaults") {
  CHECK(kvq::initialised<kvq_cache_options>().rope_base == 10000.0F);
  CHECK(kvq::initialised<qp_quantize_options>().scheme == std::string("nuq-4"));
  CHECK(kvq::initialised<kvq_usage>().struct_size == sizeof(kvq_usage));
}

TEST_CASE("contexts, policies and caches are made and described") {
  auto options = kvq::initialised<kvq_context_options>();
  options.n_threads = 2;
  const char* const isa = kvq::cpu_isa_name(kvq::cpu_isa_count() - 1);
  options.cpu_isa = isa;
  kvq::Context context(options);
  CHECK(context.describe().n_threads == 2);
  CHECK(context.describe().isa == std::string(isa));
  CHECK_FAILS(KVQ_E_UNSUPPORTED, "CPU", context.set_stream(nullptr));
  options.n_threads = 5000;
  CHECK_FAILS(KVQ_E_ARGUMENT, "5000", kvq::Context(options));

  const kvq::Policy plain = kvq::Policy::load(context, "int4");
  CHECK(plain.describe().eviction_budget == 0);
  const kvq::Policy policy = plain.with_eviction(context, "snapkv", 128);
  CHECK(policy.describe().eviction_budget == 128);
  CHECK_FAILS(KVQ_E_FORMAT, "int5", kvq::Policy::load(context, "int5"));
  CHECK_FAILS(KVQ_E_ARGUMENT, "magic", plain.with_eviction(context, "magic", 128));
  const kvq::Policy mixed = plain.with_layer(context, 1, 2, "gs2");
  CHECK(kvq::Policy::load(context, mixed.save()).save() == mixed.save());
  CHECK(mixed.save().ends_with("  - {range: [1, 2], keys: gs2}\n"));
  CHECK_FAILS(KVQ_E_ARGUMENT, "magic", plain.with_layer(context, 1, 2, {}, "magic"));
  CHECK_FAILS(KVQ_E_ARGUMENT, "method contains a NUL", plain.with_eviction(context, std::string("snap\0kv", 7), 128));

  const kvq::Cache cache(context, small_options(3), policy);
  CHECK(cache.describe().n_layers == 3);
  CHECK(cache.describe().eviction_budget == 128);
  CHECK(std::string(cache.describe_layer(2).formats) == "int4");
  CHECK(std::string(kvq::Cache(context, small_options()).describe_layer(0).formats) == "fp16");
  kvq_cache_options wrong = small_options();
  wrong.head_dim = 12;
  CHECK_FAILS(KVQ_E_ARGUMENT, "12", kvq::Cache(context, wrong, plain));
  CHECK_FAILS(KVQ_E_ARGUMENT, "codebook", kvq::Cache(context, small_options(), kvq::Policy::load(context, "commvq")));
}

TEST_CASE("a GPU is described, or refused with the reason") {
  const kvq::Error refused = failure_of([] {
    const kvq_device_info info = kvq::device_describe(KVQ_DEVICE_CUDA, 0);
    CHECK(info.n_devices > 0);
  });
  if (refused.status() != KVQ_OK) MESSAGE("no GPU: ", std::string(refused.what()));
  CHECK((refused.status() == KVQ_OK || refused.status() == KVQ_E_UNSUPPORTED));
  CHECK_FAILS(KVQ_E_UNSUPPORTED, "/nowhere.so", kvq::device_describe(KVQ_DEVICE_CUDA, 0, "/nowhere.so"));
}

TEST_CASE("the kind of a file is told from its bytes") {
  const kvq::Context context;
  const auto kind_of = [&](std::string_view text) { return context.file_type(std::as_bytes(std::span(text))); };
  CHECK(kind_of("version: 1\nkeys: gs2\nvalues: gs2\n") == KVQ_FILE_POLICY);
  CHECK(kind_of("once upon a time") == KVQ_FILE_UNKNOWN);
}

TEST_CASE("codebooks and routers are read, described, written as they were, and used") {
  const kvq::Context context;
  kvq_cache_options options = small_options();
  const kvq_test::TestCodebook made = kvq_test::test_codebook(options, {});
  const auto file = made.file();
  const kvq::Codebook codebook = kvq::Codebook::load(context, file);
  CHECK(codebook.describe().kv_heads == kKvHeads);
  CHECK(codebook.describe_layer(0).present == 1);
  CHECK(kvq::Codebook::load(context, codebook.save()).save() == codebook.save());
  options.codebook = codebook;
  kvq::Cache cache(context, options, kvq::Policy::load(context, "commvq"));
  kvq::Sequence coded(cache);
  fill(coded, 40);
  CHECK(coded.length(0) == 40);
  CHECK_FAILS(KVQ_E_FORMAT, "", kvq::Codebook::load(context, std::span(file).first(20)));
  CHECK_FAILS(KVQ_E_ARGUMENT, "layer", codebook.describe_layer(1));

  const kvq_test::TestRouter test_router(options, {"fp16", "int4"});
  const auto router_file = test_router.file();
  const kvq::Router router = kvq::Router::load(context, router_file);
  CHECK(router.describe().experts == std::string("fp16, int4"));
  CHECK(router.describe_group(0).first_layer == 0);
  CHECK(kvq::Router::load(context, router.save()).save() == router.save());
  CHECK_FAILS(KVQ_E_ARGUMENT, "group", router.describe_group(1));
}

}  // namespace objects_test
