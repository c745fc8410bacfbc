// Log-sum-exps, and sinks: logits that only they include.
#include "accuracy.h"
#include "attention_error.h"
#include "conversation.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>

namespace conformance::attend_sinks_test {
namespace {

using kvq_test::Cache;
using kvq_test::Context;
using kvq_test::Sequence;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

const std::vector<Storage>& few_storages() {
  static const std::vector<Storage> storages = {Storage::uniform("fp16"),          Storage::uniform("int8"),
                                                Storage::uniform("int4"),          Storage::uniform("int3"),
                                                Storage::uniform("int2+hadamard"), {"int4", "int4", 32, 1, 2}};
  return storages;
}

// Sinks of all sizes, and none.
std::vector<float> sinks(int32_t q_heads) {
  constexpr float kSome[] = {0.0F, 3.5F, -kInfinity, -4.0F, 30.0F, -200.0F, 1.25F};
  std::vector<float> result;
  for (int32_t head = 0; head < q_heads; ++head) result.push_back(kSome[head % 7]);
  return result;
}

Scenario with_sinks(Scenario scenario) {
  scenario.name += ", sinks";
  scenario.sinks = sinks(scenario.q_heads);
  return scenario;
}

}  // namespace

TEST_CASE("sinks add to the denominator alone: every format, head size and number of query heads") {
  for (const int32_t head_dim : {64, 80, 128, 256}) {
    for (const int32_t kv_heads : {1, 2, 8}) {
      const Scenario scenario{
          .name = "head_dim " + std::to_string(head_dim) + ", 8 heads on " + std::to_string(kv_heads),
          .q_heads = 8,
          .kv_heads = kv_heads,
          .head_dim = head_dim,
          .lengths = {161, 20},
          .query_counts = {1, 3}};
      check_attention(with_sinks(scenario), head_dim == 64 ? all_storages() : few_storages());
    }
  }
  check_attention(with_sinks({.name = "codes", .q_heads = 8, .lengths = {161, 20}, .query_counts = {1, 3}}),
                  every_way(coded_storages()));
}

TEST_CASE("sinks are neither capped nor scaled, and no window hides them") {
  check_attention(with_sinks(masked_and_capped()), few_storages());
  check_attention(with_sinks({.name = "scale", .q_heads = 8, .scale = -0.25F, .lengths = {200}, .query_counts = {3}}),
                  few_storages());
  for (const float cap : {0.5F, 50.0F}) {
    check_attention(with_sinks({.name = "soft-cap " + std::to_string(cap),
                                .q_heads = 8,
                                .lengths = {200},
                                .query_counts = {3},
                                .logit_softcap = cap}),
                    few_storages());
  }
  for (const int32_t window : {1, 33, 100}) {
    check_attention(with_sinks({.name = "window " + std::to_string(window),
                                .q_heads = 8,
                                .lengths = {300},
                                .query_counts = {70},
                                .sliding_window = window}),
                    few_storages());
  }
}

TEST_CASE("sinks of a long context and of many rows") {
  check_attention(with_sinks({.name = "5000 tokens", .q_heads = 8, .lengths = {5000}}), few_storages());
  check_attention(with_sinks({.name = "200 queries", .q_heads = 8, .lengths = {300}, .query_counts = {200}}),
                  few_storages());
}

TEST_CASE("a query that sees nothing gives zeros and the logarithm of its sink") {
  Scenario scenario{.name = "nothing to see",
                    .q_heads = 8,
                    .lengths = {40, 0, 70},
                    .query_counts = {3, 2, 1},
                    .positions = Positions::kAnyQueries,
                    .sliding_window = 4};
  check_attention(scenario, few_storages());
  check_attention(with_sinks(scenario), few_storages());
}

TEST_CASE("sinks of any finite size leave finite results, and those below all logits none") {
  Scenario scenario{.name = "far sinks", .lengths = {100}, .query_counts = {2}};
  const Inputs inputs = make_inputs(scenario);
  for (const std::string& isa : kvq_test::backends()) {
    for (const char* format : {"fp16", "int4"}) {
      const Run run(scenario, inputs, Storage::uniform(format), isa);
      scenario.sinks.clear();
      const Attended none = run.attend_with_lse();
      scenario.sinks.assign(4, -kInfinity);
      const Attended infinite = run.attend_with_lse();
      CHECK(infinite.out.bytes() == none.out.bytes());
      CHECK(infinite.lse == none.lse);
      scenario.sinks.assign(4, std::numeric_limits<float>::lowest());
      const Attended lowest = run.attend_with_lse();
      CHECK(lowest.out.bytes() == none.out.bytes());
      CHECK(lowest.lse == none.lse);
      scenario.sinks.assign(4, std::numeric_limits<float>::max());
      const Attended highest = run.attend_with_lse();
      for (size_t i = 0; i < highest.out.size(); ++i) REQUIRE(highest.out[i] == 0.0);
      for (const float lse : highest.lse) CHECK((std::isfinite(lse) && lse > 1e38F));
    }
  }
}

TEST_CASE("asking for sums of exponentials changes no output") {
  const Scenario scenario{.name = "with and without", .lengths = {2500, 70}, .query_counts = {1, 3}};
  const Inputs inputs = make_inputs(scenario);
  for (const std::string& isa : kvq_test::backends()) {
    for (const std::string& format : all_formats()) {
      const Run run(scenario, inputs, Storage::uniform(format), isa);
      CHECK(run.attend_with_lse().out.bytes() == run.attend().bytes());
    }
  }
}

TEST_CASE("sums of exponentials and sinks are the same on any number of threads") {
  const Scenario scenario =
      with_sinks({.name = "threads", .q_heads = 8, .lengths = {5000, 70}, .query_counts = {1, 40}});
  const Inputs inputs = make_inputs(scenario);
  for (const std::string& isa : kvq_test::cpu_isa_names()) {
    for (const char* format : {"fp16", "int4+hadamard"}) {
      const Attended alone = Run(scenario, inputs, Storage::uniform(format), isa).attend_with_lse();
      for (const int32_t threads : {2, 5}) {
        const Attended shared = Run(scenario, inputs, Storage::uniform(format), isa, threads).attend_with_lse();
        CHECK(shared.out.bytes() == alone.out.bytes());
        CHECK(shared.lse == alone.lse);
      }
    }
  }
}

// Parts see disjoint tokens; merged, they equal the whole with the sink counted once.
TEST_CASE("parts of a context are joined by their sums of exponentials") {
  const Shape shape{.q_heads = 8, .kv_heads = 2, .head_dim = 64, .n_layers = 1};
  constexpr int32_t kTokens = 300;
  const auto scalars = static_cast<size_t>(kTokens) * shape.token_scalars();
  const std::vector<float> k = kvq_test::normal_tensor(scalars, 1);
  const std::vector<float> v = kvq_test::normal_tensor(scalars, 2);
  const std::vector<float> q = queries(shape, 1);
  const std::vector<float> sink = sinks(shape.q_heads);
  const size_t rows = 8;
  const size_t dim = 64;

  for (const std::string& isa : kvq_test::backends()) {
    CAPTURE(isa);
    const Context context = kvq_test::make_context(isa.c_str());
    const Cache cache = kvq_test::make_cache(context, shape.options(), "fp16");
    struct Part {
      std::vector<float> out;
      std::vector<float> lse;
    };
    const auto attend = [&](int32_t begin, int32_t end, bool has_sink) {
      Sequence sequence(cache);
      std::vector<int32_t> positions;
      for (int32_t i = begin; i < end; ++i) positions.push_back(i);
      const size_t offset = static_cast<size_t>(begin) * shape.token_scalars();
      kvq_test::append(sequence, 0, end - begin, k.data() + offset, v.data() + offset, KVQ_F32, positions);
      const kvq_sequence* pointer = sequence;
      const int32_t last = kTokens - 1;
      Part part{std::vector<float>(rows * dim), std::vector<float>(rows)};
      auto batch = kvq_test::initialised<kvq_attend_batch>();
      batch.n_sequences = 1;
      batch.sequences = &pointer;
      batch.query_positions = &last;
      batch.q = q.data();
      batch.output = part.out.data();
      batch.lse = part.lse.data();
      batch.sinks = has_sink ? sink.data() : nullptr;
      kvq_test::attend(cache, 0, batch);
      return part;
    };
    const Part whole = attend(0, kTokens, true);
    for (const std::vector<int32_t>& cuts :
         {std::vector<int32_t>{0, 150, kTokens}, std::vector<int32_t>{0, 7, 222, kTokens}}) {
      std::vector<Part> parts;
      for (size_t i = 0; i + 1 < cuts.size(); ++i) parts.push_back(attend(cuts[i], cuts[i + 1], i == 0));
      double worst = 0.0;
      for (size_t row = 0; row < rows; ++row) {
        double sum = 0.0;
        for (const Part& part : parts) sum += std::exp(double{part.lse[row]} - whole.lse[row]);
        worst = std::max(worst, std::fabs(std::log(sum)));
        for (size_t c = 0; c < dim; ++c) {
          double joined = 0.0;
          for (const Part& part : parts) {
            joined += std::exp(double{part.lse[row]} - whole.lse[row]) / sum * part.out[row * dim + c];
          }
          worst = std::max(worst, std::fabs(joined - whole.out[row * dim + c]));
        }
      }
      measure({"joined parts", "fp16", isa, worst, isa == kvq_test::kCuda ? 8e-3 : 2e-5},
              std::to_string(parts.size()) + " parts");
    }
  }
}

}  // namespace conformance::attend_sinks_test
