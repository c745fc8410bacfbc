// The C++ runtime runs out of memory in the middle of a call, at every allocation in turn.
#include <doctest/doctest.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "failing_new.h"
#include "support/handles.h"
#include "support/random.h"
#include "support/router.h"

namespace runtime_memory_test {
namespace {

using Bytes = std::vector<std::byte>;
using Save = std::function<kvq_status(void* buffer, size_t capacity, size_t* size)>;
using Call = std::function<kvq_status(kvq_error* error)>;

/// Makes every allocation fail once; then the call succeeds.
void fail_each(const Call& call) {
  for (int64_t n = 1;; ++n) {
    REQUIRE_LT(n, 100000);
    auto error = kvq_test::initialised<kvq_error>();
    kvq_status status = KVQ_OK;
    bool failed = false;
    {
      const kvq_test::FailingNew failing(n);
      status = call(&error);
      failed = failing.failed();
    }
    if (!failed) {
      CHECK_EQ(status, KVQ_OK);
      return;
    }
    if (status != KVQ_E_MEMORY) FAIL_CHECK("allocation ", n, ": ", kvq_status_name(status), ", ", error.message);
  }
}

void save_with_failures(const Save& save) {
  size_t size = 0;
  REQUIRE_EQ(save(nullptr, 0, &size), KVQ_OK);
  Bytes expected(size);
  REQUIRE_EQ(save(expected.data(), size, &size), KVQ_OK);
  Bytes bytes(size);
  fail_each([&](kvq_error*) { return save(bytes.data(), bytes.size(), &size); });
  CHECK(bytes == expected);
}

kvq_test::Matrix quantized(kvq_context* context) {
  std::vector<float> weights(32 * 64);
  kvq_test::Random random(3);
  for (float& each : weights) each = static_cast<float>(random.normal());
  return kvq_test::Matrix::quantize(context, kvq_test::initialised<qp_quantize_options>(), weights, 32, 64);
}

}  // namespace

TEST_CASE("a codebook is saved, or memory has run out") {
  const kvq_test::Context context = kvq_test::make_context();
  const kvq_cache_options options = kvq_test::cache_options(2, 1, 8, 2);
  const kvq_test::Codebook codebook = kvq_test::Codebook::load(context, kvq_test::test_codebook(options, {}).file());
  save_with_failures([&](void* buffer, size_t capacity, size_t* size) {
    return kvq_codebook_save(codebook, buffer, capacity, size, nullptr);
  });
}

TEST_CASE("a router is saved, or memory has run out") {
  const kvq_test::Context context = kvq_test::make_context();
  const kvq_cache_options options = kvq_test::cache_options(2, 1, 8, 4);
  const kvq_test::Router router =
      kvq_test::Router::load(context, kvq_test::TestRouter(options, {"fp16", "int4", "int2"}).file());
  save_with_failures([&](void* buffer, size_t capacity, size_t* size) {
    return kvq_router_save(router, buffer, capacity, size, nullptr);
  });
}

TEST_CASE("matrices are saved, or memory has run out") {
  const kvq_test::Context context = kvq_test::make_context();
  const kvq_test::Matrix matrix = quantized(context);
  const qp_matrix* const matrices[] = {matrix, matrix};
  const char* const names[] = {"model.layers.0.self_attn.q_proj.weight", "caf\xC3\xA9 \"\\\n\x01"};
  save_with_failures([&](void* buffer, size_t capacity, size_t* size) {
    return qp_matrix_save(matrices, names, 2, buffer, capacity, size, nullptr);
  });
}

TEST_CASE("files and policies are read, or memory has run out") {
  const kvq_test::Context context = kvq_test::make_context();
  const kvq_cache_options options = kvq_test::cache_options(2, 1, 8, 2);
  const Bytes codebook_file = kvq_test::test_codebook(options, {}).file();
  const Bytes router_file = kvq_test::TestRouter(options, {"fp16", "int4"}).file();
  const std::string yaml =
      "version: 1\nkeys: int4+hadamard\nvalues: {format: int2}\nlayers:\n  - {range: [0, 0], keys: fp16}\n";
  fail_each([&](kvq_error* error) {
    kvq_codebook* codebook = nullptr;
    const kvq_status status = kvq_codebook_load(context, codebook_file.data(), codebook_file.size(), &codebook, error);
    kvq_codebook_destroy(codebook);
    return status;
  });
  fail_each([&](kvq_error* error) {
    kvq_router* router = nullptr;
    const kvq_status status = kvq_router_load(context, router_file.data(), router_file.size(), &router, error);
    kvq_router_destroy(router);
    return status;
  });
  fail_each([&](kvq_error* error) {
    kvq_policy* policy = nullptr;
    const kvq_status status = kvq_policy_load(context, yaml.data(), yaml.size(), &policy, error);
    kvq_policy_destroy(policy);
    return status;
  });
}

}  // namespace runtime_memory_test
