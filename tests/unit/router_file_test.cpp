#include "io/trained_files.h"

#include <doctest/doctest.h>

#include <limits>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/float16.h"
#include "formats/router/router.h"
#include "support/allocator.h"
#include "support/damaged_files.h"
#include "support/random.h"

namespace router_file_test {
namespace {

using kvq::ModelRouter;
using kvq::RouterNetwork;
using kvq_test::Bytes;
using kvq_test::test_allocator;

RouterNetwork random_network(const kvq::RouterShape& shape, uint64_t seed) {
  RouterNetwork network(test_allocator());
  kvq_test::Random random(seed);
  kvq::for_each_router_array(shape, [&](const kvq::RouterArray& array) {
    kvq::Vector<float>& numbers = network.*array.numbers;
    numbers.resize(array.shape.elements());
    for (float& each : numbers) each = kvq::from_float16(kvq::to_float16(static_cast<float>(random.normal())));
  });
  return network;
}

ModelRouter random_router(int32_t head_dim = 8) {
  ModelRouter router(test_allocator());
  router.shape = {5, 2, head_dim, KVQ_ROPE_INTERLEAVED, 3, 3};
  for (const char* name : {"fp16", "int8/int4+hadamard", "int2"}) {
    router.experts.push_back(*kvq::parse_format_pair(name));
  }
  router.expert_bits.assign({16.0, 6.75, 0.1 + 2.9});
  router.method = kvq::RouterMethod::kPaper;
  router.lambda = 0.3;
  router.mean_bits = 4.0 / 3.0;
  router.tolerance = 1e-3;
  router.accuracy = 0.75;
  router.tokens = 49152;
  router.seed = UINT64_MAX;
  router.model_id = 0xFEDCBA9876543210U;
  router.note = "two texts, \"half\" each \xe2\x80\x93 \n";
  for (int32_t i = 0; i < router.shape.groups(); ++i) {
    kvq::GroupRouter& group = router.groups.emplace_back(test_allocator());
    group.network = random_network(router.shape, static_cast<uint64_t>(i));
    group.shares.assign({0.1, 0.2, 0.7});
    group.accuracy = 0.5 + 0.25 * i;
  }
  return router;
}

Bytes file_of(const ModelRouter& router) {
  const kvq::io::SafetensorsWriter file = kvq::io::router_file(test_allocator(), router);
  Bytes bytes(file.size());
  file.write(bytes);
  return bytes;
}

void read_checked(const Bytes& bytes) {
  const ModelRouter router = kvq::io::read_router(test_allocator(), bytes);
  kvq::check_router_shape(router.shape, KVQ_E_INTERNAL, "");
  kvq::check_router_experts(router, KVQ_E_INTERNAL, "");
  if (router.groups.size() != static_cast<size_t>(router.shape.groups())) kvq::fail(KVQ_E_INTERNAL, "groups");
  for (const kvq::GroupRouter& group : router.groups) {
    kvq::check_router_network(router.shape, group.network, 0, KVQ_E_INTERNAL);
  }
}

kvq_status status_of_reading(const Bytes& bytes, std::string* message) {
  return kvq_test::status_of(read_checked, bytes, message);
}

}  // namespace

TEST_CASE("routers are read back as they were written, and written again as the same bytes") {
  const ModelRouter router = random_router();
  const Bytes bytes = file_of(router);
  const ModelRouter again = kvq::io::read_router(test_allocator(), bytes);
  CHECK(again.shape == router.shape);
  CHECK(again.experts == router.experts);
  CHECK(again.expert_bits == router.expert_bits);
  CHECK(again.method == router.method);
  CHECK(again.lambda == router.lambda);
  CHECK(again.mean_bits == router.mean_bits);
  CHECK(again.tolerance == router.tolerance);
  CHECK(again.accuracy == router.accuracy);
  CHECK(again.tokens == router.tokens);
  CHECK(again.seed == router.seed);
  CHECK(again.model_id == router.model_id);
  CHECK(again.note == router.note);
  REQUIRE(again.groups.size() == 2);
  for (size_t i = 0; i < 2; ++i) {
    CHECK(again.groups[i].network.w1 == router.groups[i].network.w1);
    CHECK(again.groups[i].network.w2 == router.groups[i].network.w2);
    CHECK(again.groups[i].network.w3 == router.groups[i].network.w3);
    CHECK(again.groups[i].shares == router.groups[i].shares);
    CHECK(again.groups[i].accuracy == router.groups[i].accuracy);
  }
  CHECK(file_of(again) == bytes);
}

TEST_CASE("a network of three experts for heads of 128 takes the paper's 777 numbers") {
  const ModelRouter router = random_router(128);
  CHECK(kvq::router_bytes(router.shape) == 1554);
  const size_t size = file_of(router).size();
  CHECK(size > 2 * 1554);
  CHECK(size < 2 * 1554 + 2000);
}

TEST_CASE("a router file that is cut or changed anywhere is refused, or read as another router") {
  kvq_test::check_damaged(read_checked, file_of(random_router()));
}

TEST_CASE("fields of a router file that contradict each other or the tensors are refused by name") {
  const kvq_test::WrongFields check(read_checked, file_of(random_router()));
  check("kvq.router", "kvq.rooter", "type");
  check(R"("version":"1")", R"("version":"2")", "version 2", KVQ_E_MISMATCH);
  check(R"("version":"1")", R"("versiom":"1")", "version is missing");
  check(R"("n_layers":"5")", R"("n_layers":"0")", "n_layers is 0");
  check(R"("n_layers":"5")", R"("n_layers":"x")", "n_layers is 'x'");
  check(R"("n_layers":"5")", R"("n_layers":"7")", "the file has 6 tensors, its metadata describe 9");
  check(R"("n_layers":"5")", R"("n_layers":"3")", "the file has 6 tensors, its metadata describe 3");
  check(R"("kv_heads":"2")", R"("kv_heads":"0")", "kv_heads is 0");
  check(R"("head_dim":"8")", R"("head_dim":"9")", "head_dim is 9");
  check(R"("sharing":"3")", R"("sharing":"0")", "sharing is 0");
  check(R"("rope":"interleaved")", R"("rope":"interweaved")", "rope is 'interweaved'");
  check(R"("method":"paper")", R"("method":"caper")", "method is 'caper'");
  check("fp16, int8", "fp15, int8", "experts is 'fp15, int8/int4+hadamard, int2'");
  check("fp16, int8", "fp16; int8", "experts is");
  check(R"("fp16, int8/int4+hadamard, int2")", R"("fp16, fp16,               int2")", "experts");
  check(R"("expert_bits":"16 6.75 3")", R"("expert_bits":"16 6.7 30")", "int2 has 30 bits, more than");
  check(R"("expert_bits":"16 6.75 3")", R"("expert_bits":"16 6.7503")", "one number for each expert");
  check(R"("lambda":"0.3")", R"("lambda":"1.3")", "lambda is '1.3'");
  check(R"("accuracy":"0.75")", R"("accuracy":"-.75")", "accuracy is '-.75'");
  check(R"("tokens":"49152")", R"("tokens":"-9152")", "tokens is '-9152'");
  check(R"("groups.1.shares":"0.1 0.2 0.7")", R"("groups.1.shares":"0.1 0.2 1.7")", "groups.1.shares");
  check(R"("groups.1.shares":"0.1 0.2 0.7")", R"("groups.1.shares":"0.1 0.2,0.7")", "groups.1.shares");
  check(R"("groups.1.shares")", R"("groups.2.shares")", "groups.1.shares is missing");
  check(R"("groups.1.w1")", R"("groups.2.w1")", "groups.1.w1 is missing");
  check(R"("shape":[3,3])", R"("shape":[9,1])", "groups.0.w3: shape");
}

TEST_CASE("experts that are there twice, and numbers that cannot be used, are refused by name") {
  std::string message;
  ModelRouter router = random_router();
  router.experts[2] = router.experts[0];
  CHECK(status_of_reading(file_of(router), &message) == KVQ_E_FORMAT);
  CHECK_MESSAGE(message.find("fp16 occurs twice") != std::string::npos, message);
  router = random_router();
  router.experts.resize(1);
  router.shape.n_experts = 1;
  router.expert_bits.resize(1);
  for (kvq::GroupRouter& group : router.groups) {
    group.network = random_network(router.shape, 1);
    group.shares.resize(1);
  }
  CHECK(status_of_reading(file_of(router), &message) == KVQ_E_FORMAT);
  CHECK_MESSAGE(message.find("n_experts is 1, must be in [2, 8]") != std::string::npos, message);
  router = random_router();
  router.groups[1].network.w2[5] = std::numeric_limits<float>::quiet_NaN();
  CHECK(status_of_reading(file_of(router), &message) == KVQ_E_FORMAT);
  CHECK_MESSAGE(message.find("groups.1.w2: number 5 is nan") != std::string::npos, message);
  router = random_router();
  router.groups[0].network.w3[4] = 70000.0F;
  CHECK(status_of_reading(file_of(router), &message) == KVQ_E_FORMAT);
  CHECK_MESSAGE(message.find("groups.0.w3: number 4 is inf") != std::string::npos, message);
}

}  // namespace router_file_test
