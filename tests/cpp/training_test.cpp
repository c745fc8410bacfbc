#include <algorithm>
#include <stdexcept>

#include "model.h"

namespace training_test {
namespace {

constexpr int32_t kTokens = 200;

kvq_codebook_trainer_options codebook_options() {
  auto options = kvq::initialised<kvq_codebook_trainer_options>();
  options.n_layers = 2;
  options.kv_heads = kKvHeads;
  options.head_dim = kHeadDim;
  options.key_stages = 2;
  options.key_codes = 4;
  options.key_rounds = 1;
  options.value_rounds = 1;
  return options;
}

int32_t cancel(void* user, double) {
  ++*static_cast<int*>(user);
  return 1;
}

}  // namespace

TEST_CASE("an empty trainer is refused by name, before its sizes are compared") {
  const std::vector<float> x = tokens(1, 1);
  kvq::CodebookTrainer codebooks;
  kvq::CentresTrainer centres;
  kvq::RouterTrainer routers;
  CHECK_FAILS(KVQ_E_ARGUMENT, "trainer is NULL", codebooks.add(0, 1, x, x));
  CHECK_FAILS(KVQ_E_ARGUMENT, "trainer is NULL", centres.add(0, 1, x, x));
  CHECK_FAILS(KVQ_E_ARGUMENT, "trainer is NULL", routers.add(0, 1, queries(1, 1), x, x));
  CHECK_FAILS(KVQ_E_ARGUMENT, "trainer is NULL", routers.run(1.0));
  CHECK_FAILS(KVQ_E_ARGUMENT, "plan is NULL", kvq::Plan().describe());
}

TEST_CASE("codebooks are trained, taken up again, and used") {
  const kvq::Context context;
  const std::vector<float> k = tokens(kTokens, 1), v = tokens(kTokens, 2);
  kvq::CodebookTrainer trainer(context, codebook_options());
  CHECK_FAILS(KVQ_E_ARGUMENT, "k has 31 elements instead of 6400 (n * trainer.kv_heads * trainer.head_dim)",
              trainer.add(0, kTokens, std::span(k).first(31), v));
  trainer.add(0, kTokens, k, v);
  int calls = 0;
  CHECK_FAILS(KVQ_E_CANCELLED, "", trainer.run(0, cancel, &calls));
  CHECK(calls == 1);
  CHECK_THROWS_WITH_AS(trainer.run(0, [](double) -> int32_t { throw std::out_of_range("enough"); }), "enough",
                       std::out_of_range);
  trainer.run(0);
  CHECK_FAILS(KVQ_E_STATE, "layer", trainer.run(0));

  kvq::CodebookTrainer second(context, codebook_options());
  second.resume(trainer.result());
  CHECK(second.result().describe().layers_present == 1);
  second.add(1, kTokens, k.data(), v.data(), KVQ_F32);
  double last = 0.0;
  second.run(1, [&](double done) {
    last = done;
    return 0;
  });
  CHECK(last > 0.0);
  const kvq::Codebook codebook = second.result();
  CHECK(codebook.describe().layers_present == 2);
  kvq_cache_options options = small_options(2);
  options.codebook = codebook;
  const kvq::Cache cache(context, options, kvq::Policy::load(context, "commvq"));
  kvq::Sequence sequence(cache);
  fill(sequence, 40);
  CHECK(sequence.length(0) == 40);
}

TEST_CASE("centres are trained, written, read, and given to caches") {
  const kvq::Context context;
  const std::vector<float> k = tokens(kTokens, 1), v = tokens(kTokens, 2);
  auto options = kvq::initialised<kvq_centres_trainer_options>();
  options.n_layers = 2;
  options.kv_heads = kKvHeads;
  options.head_dim = kHeadDim;
  options.key_centres = 4;
  options.value_centres = 1;
  kvq::CentresTrainer trainer(context, options);
  for (int32_t layer = 0; layer < 2; ++layer) trainer.add(layer, kTokens, k, v);
  int calls = 0;
  CHECK_FAILS(KVQ_E_CANCELLED, "", trainer.run(0, cancel, &calls));
  CHECK(calls == 1);
  trainer.run(0);
  CHECK(trainer.result().describe().layers_present == 1);
  trainer.run(1, [](double) { return 0; });
  const kvq::Centres centres = trainer.result();
  CHECK(centres.describe().key_centres == 4);
  CHECK(centres.describe_layer(1).key_residual < 1.0);
  CHECK_FAILS(KVQ_E_ARGUMENT, "layer", centres.describe_layer(2));
  CHECK(kvq::Centres::load(context, centres.save()).save() == centres.save());
  kvq_cache_options cache_options = small_options(2);
  cache_options.centres = centres;
  const kvq::Cache cache(context, cache_options, kvq::Policy::load(context, "int4"));
  CHECK(cache.describe().n_layers == 2);
}

TEST_CASE("scales are found by weights or queries, read, and given to caches") {
  constexpr int32_t kHidden = 8;
  const kvq::Context context;
  const auto numbers = [](int32_t rows, uint64_t seed) {
    std::vector<float> all = tokens(rows * kHidden, seed);
    all.resize(static_cast<size_t>(rows) * kHidden);
    return all;
  };
  const std::vector<float> q = numbers(kQueryHeads * kHeadDim, 1), k = numbers(kKvHeads * kHeadDim, 2);
  auto options = kvq::initialised<kvq_centres_trainer_options>();
  options.n_layers = 1;
  options.kv_heads = kKvHeads;
  options.head_dim = kHeadDim;
  options.key_centres = options.value_centres = 0;
  options.key_scales = options.value_scales = 1;
  kvq::CentresTrainer trainer(context, options);
  auto weights = kvq::initialised<kvq_attention_weights>();
  weights.q_heads = kQueryHeads;
  weights.hidden_size = kHidden;
  weights.q_proj = weights.o_proj = q.data();
  weights.k_proj = weights.v_proj = k.data();
  CHECK_FAILS(KVQ_E_STATE, "k_proj", trainer.run(0));
  trainer.add_weights(0, weights);
  const std::vector<float> rows = queries(2, 3);
  trainer.add_queries(0, 2, kQueryHeads, rows);
  CHECK_FAILS(KVQ_E_ARGUMENT, "q has", trainer.add_queries(0, 3, kQueryHeads, rows));
  trainer.add_queries(0, 2, kQueryHeads, rows.data(), KVQ_F32);
  trainer.run(0);
  const kvq::Centres centres = trainer.result();
  CHECK(centres.describe().key_scales == 1);
  std::vector<float> keys(kKvHeads * kHeadDim), values(keys.size()), offsets(keys.size(), 1.0F);
  centres.read_scales(0, keys, values, offsets);
  CHECK(*std::max_element(keys.begin(), keys.end()) == 1.0F);
  CHECK(*std::min_element(values.begin(), values.end()) > 0.0F);
  CHECK(offsets == std::vector<float>(offsets.size(), 0.0F));
  CHECK_FAILS(KVQ_E_ARGUMENT, "key_scales has", centres.read_scales(0, std::span(keys).first(3)));
  kvq_cache_options cache_options = small_options(1);
  cache_options.centres = centres;
  const kvq::Cache cache(context, cache_options, kvq::Policy::load(context, "gs2"));
  kvq::Sequence sequence(cache);
  fill(sequence, 70);
  CHECK(sequence.length(0) == 70);
}

TEST_CASE("routers are trained and used") {
  const kvq::Context context;
  const std::vector<float> k = tokens(kTokens, 1), v = tokens(kTokens, 2), q = queries(kTokens, 3);
  const kvq::Policy policy = kvq::Policy::load(context, "{version: 1, router: {experts: [fp16, int4]}}");
  auto options = kvq::initialised<kvq_router_trainer_options>();
  options.mean_bits = 10.0;
  options.epochs = 1;
  kvq::RouterTrainer trainer(context, small_options(), policy, options);
  CHECK_FAILS(KVQ_E_ARGUMENT, "q has 6400 elements instead of 12800", trainer.add(0, kTokens, k, k, v));
  trainer.add(0, kTokens, q, k, v);
  trainer.add(0, kTokens, q.data(), k.data(), v.data(), KVQ_F32);
  CHECK_FAILS(KVQ_E_STATE, "", trainer.result());
  int calls = 0;
  CHECK_FAILS(KVQ_E_CANCELLED, "", trainer.run(0.0, cancel, &calls));
  trainer.run(0.0, [](double) { return 0; });
  const kvq::Router router = trainer.result();
  CHECK(router.describe().n_experts == 2);
  kvq_cache_options cache_options = small_options();
  cache_options.router = router;
  const kvq::Cache cache(context, cache_options, policy);
  kvq::Sequence sequence(cache);
  fill(sequence, 40);
  CHECK(sequence.length(0) == 40);
}

}  // namespace training_test
