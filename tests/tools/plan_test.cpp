// kvq plan, and what takes its plans.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "kvq.hpp"
#include "letter_model.h"
#include "llama/mapped_file.h"
#include "llama/model.h"
#include "packed_layers.h"
#include "program_run.h"
#include "runs.h"
#include "tiny_model.h"

namespace plan_test {
namespace {

using nlohmann::json;

const Arguments kFewSchemes = {"--scheme", "nuq-2", "--scheme", "nuq-3", "--scheme", "nuq-4"};
const Arguments kFewFormats = {"--format", "fp16", "--format", "int4", "--format", "gs2"};

class Workplace : public LetterModel {
 public:
  Workplace() : LetterModel(packable_layout(false)) {}

  std::string measurements() const { return path("measurements.json"); }
  std::string plan_file() const { return path("plan.yaml"); }

  Arguments plan(const Arguments& more, const char* tokens = "256") const {
    return with(
        {"plan", "--model", model(), "--text", path("text.txt"), "--tokens", tokens, "--measurements", measurements()},
        with(with(kFewSchemes, kFewFormats), more));
  }

  json known() const { return json::parse(contents(measurements())); }
};

kvq::Plan load_plan(const kvq::Context& context, const std::string& file) {
  return kvq::Plan::load(context, contents(file));
}

/// Mean D(p || q) of next tokens, in double.
double divergence(std::span<const float> p, std::span<const float> q, size_t vocabulary) {
  double sum = 0.0;
  for (size_t row = 0; row < p.size(); row += vocabulary) {
    const auto log_sum = [&](std::span<const float> logits) {
      double total = 0.0;
      for (size_t i = 0; i < vocabulary; ++i) total += std::exp(double{logits[row + i]});
      return std::log(total);
    };
    const double of_p = log_sum(p);
    const double of_q = log_sum(q);
    for (size_t i = 0; i < vocabulary; ++i) {
      const double log_p = p[row + i] - of_p;
      sum += std::exp(log_p) * (log_p - (q[row + i] - of_q));
    }
  }
  return sum / static_cast<double>(p.size() / vocabulary);
}

/// Logits of a text whose windows are what the program measures on.
class Runner {
 public:
  explicit Runner(const Workplace& place, size_t tokens = 256)
      : context_(make_context()), model_(place.model(), 1), tokens_(random_tokens(tokens, 26)) {
    for (int32_t& token : tokens_) ++token;  // letters begin at 1
  }

  llama::Model& model() { return model_; }

  std::vector<float> logits(const char* policy = "fp16") {
    const auto loaded = kvq::Policy::load(context_, policy);
    llama::Session session(model_, context_, {loaded});
    const auto all = session.forward(tokens_, true);
    return {all.begin(), all.end()};
  }

  /// As a plan's measurements let them enter.
  std::vector<float> logits_of_chunks(const std::string& policy) {
    const auto loaded = kvq::Policy::load(context_, policy);
    llama::Session session(model_, context_, {loaded});
    return run_in_chunks(session, tokens_, 32);
  }

  double divergence_of(std::span<const float> logits_now, std::span<const float> logits_before) const {
    return divergence(logits_before, logits_now, static_cast<size_t>(model_.config().vocab_size));
  }

 private:
  kvq::Context context_;
  llama::Model model_;
  std::vector<int32_t> tokens_;
};

}  // namespace

TEST_CASE("a plan of weights keeps its target, and quantize and eval carry it out") {
  const Workplace place;
  const json plan = run_json(place.plan({"--weights-only", "--target-bits", "3", "--out", place.plan_file()}));
  CHECK(plan["weight_bits"] <= 3.0);
  CHECK(plan["weights"].size() == 14);
  CHECK(plan["loss"] >= plan["bound"]);
  CHECK(plan["loss"].get<double>() <= plan["uniform"]["loss"].get<double>());
  CHECK(plan["uniform"]["name"] == "nuq-2");

  const kvq::Context context = make_context();
  const kvq::Plan written = load_plan(context, place.plan_file());
  CHECK(written.describe().n_matrices == 14);
  CHECK(written.describe().has_policy == 0);
  CHECK(written.describe().bytes == plan["bytes"]);

  const std::string weights = place.path("planned.safetensors");
  const json quantized =
      run_json({"quantize", "--model", place.model(), "--plan", place.plan_file(), "--out", weights});
  CHECK(quantized["plan"] == place.plan_file());
  CHECK_FALSE(quantized.contains("scheme"));
  uint64_t bytes = 0;
  for (size_t i = 0; i < plan["weights"].size(); ++i) {
    const json& planned = plan["weights"][i];
    CHECK(quantized["layers"][i]["name"] == planned["name"]);
    CHECK(quantized["layers"][i]["scheme"] == planned["scheme"]);
    const kvq::Matrix matrix = kvq::Matrix::load(context, llama::MappedFile(weights).bytes(), planned["name"]);
    CHECK(matrix.describe().bytes == planned["bytes"]);
    CHECK(matrix.describe().scheme == std::string(written.scheme(planned["name"].get<std::string>())));
    bytes += matrix.describe().bytes;
  }
  CHECK(bytes == plan["weight_bytes"]);

  const Arguments evaluate = {"eval",      "perplexity", "--model", place.model(),    "--text", place.path("text.txt"),
                              "--context", "128",        "--plan",  place.plan_file()};
  run_json(with(evaluate, {"--weights", weights, "--kv", "fp16"}));
  check_failure(with(evaluate, {"--kv", "fp16"}), 1, "not packed");
  const std::string other = place.path("nuq-4.safetensors");
  run_json({"quantize", "--model", place.model(), "--scheme", "nuq-4", "--out", other});
  check_failure(with(evaluate, {"--weights", other, "--kv", "fp16"}), 1, "which is nuq-4");
  check_failure(with(evaluate, {"--weights", weights}), 1, "has no policy");
}

TEST_CASE("the sensitivity of a matrix foretells what other noise does") {
  const Workplace place;
  run_json(place.plan({"--weights-only", "--target-bits", "3"}));
  const json known = place.known();
  Runner runner(place);
  const std::vector<float> before = runner.logits();
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  constexpr double kLevel = 0.1;
  for (const llama::LinearLayer& layer : llama::all_linear_layers(runner.model().config())) {
    CAPTURE(layer.name);
    double mean = 0.0;
    constexpr int kRounds = 4;
    for (int round = 0; round < kRounds; ++round) {
      llama::Linear noisy = runner.model().linear(layer);
      const std::vector<float> weights = runner.model().device().read(noisy.weight);
      double squares = 0.0;
      for (const float weight : weights) squares += double{weight} * weight;
      const double scale = kLevel * std::sqrt(squares / static_cast<double>(weights.size()));
      std::vector<float> changed;
      for (const float weight : weights) changed.push_back(weight + static_cast<float>(scale) * normal(random));
      noisy.weight = {layer.out, layer.in, llama::numbers_of(runner.model().device().upload(std::move(changed)))};
      llama::Linear original = runner.model().exchange(layer, std::move(noisy));
      mean += runner.divergence_of(runner.logits(), before) / kRounds;
      runner.model().exchange(layer, std::move(original));
    }
    const double expected = known["weights"][layer.name]["slope"].get<double>() * kLevel * kLevel;
    CHECK(mean > expected / 2);
    CHECK(mean < expected * 2);
  }
  CHECK(runner.divergence_of(runner.logits(), before) == 0.0);
}

TEST_CASE("schemes of which nobody knows what they lose are taken only where nothing else fits") {
  const Workplace place;
  run_json(place.plan({"--weights-only", "--target-bits", "3"}));
  json known = place.known();
  json& errors = known["scheme_errors"];
  for (const std::string& scheme : kvq::scheme_names()) {  // all are known, so that none is measured
    if (!errors.contains(scheme)) errors[scheme] = 1.2 * std::exp2(-2.0 * kvq::scheme_bits(scheme));
  }
  place.write("measurements.json", known.dump());
  const auto planned = [&](const Arguments& more) {
    return run_json(with({"plan", "--model", place.model(), "--text", place.path("text.txt"), "--tokens", "256",
                          "--measurements", place.measurements(), "--weights-only"},
                         more));
  };
  const auto largest_error = [&](const json& plan) {
    double largest = 0.0;
    for (const json& matrix : plan["weights"]) {
      largest = std::max(largest, errors[matrix["scheme"].get<std::string>()].get<double>());
    }
    return largest;
  };
  const double measured = std::pow(known["noise_levels"].back().get<double>(), 2);
  const json smallest = planned({"--target-bits", "16", "--scheme", "nuq-1"});
  CHECK(largest_error(smallest) > measured);
  const double bits = smallest["weight_bits"];
  CHECK(largest_error(planned({"--target-bits", std::to_string(bits + 0.05)})) > measured);
  const Arguments more = {"--target-bits", std::to_string(bits + 1.5)};
  CHECK(largest_error(planned(more)) <= measured);
  Arguments named = more;
  for (const std::string& scheme : kvq::scheme_names()) named.insert(named.end(), {"--scheme", scheme});
  CHECK(largest_error(planned(named)) > measured);
}

TEST_CASE("what is known of caches is what a run with one side compressed loses") {
  const Workplace place;
  run_json(place.plan({"--cache-only", "--target-bytes", "1000000", "--context", "256", "--chunk", "256"}));
  const json known = place.known();
  Runner runner(place);
  const std::vector<float> before = runner.logits();
  for (const char* layer : {"0", "1"}) {
    for (const char* side : {"keys", "values"}) {
      for (const char* format : {"int4", "gs2"}) {
        CAPTURE(layer);
        CAPTURE(side);
        CAPTURE(format);
        const std::string policy = std::string("{version: 1, sink: 1, layers: [{range: [") + layer + ", " + layer +
                                   "], " + side + ": " + format + "}]}";
        const double expected = runner.divergence_of(runner.logits(policy.c_str()), before);
        const double found = known["cache"][std::string(layer) + "." + side][format];
        CHECK(found == doctest::Approx(expected).epsilon(0.01).scale(1e-6));
      }
    }
  }
}

TEST_CASE("caches are measured and planned with the scales that sequences find, if the text is long enough") {
  const Workplace place;
  const Arguments cache = {"--cache-only", "--target-bits", "7", "--context", "640", "--out", place.plan_file()};
  const kvq::Context context = make_context();
  const auto calibrates = [&] { return load_plan(context, place.plan_file()).policy().describe().calibrates; };
  run_json(place.plan(cache));
  CHECK(calibrates() == 0);
  std::filesystem::remove(place.measurements());
  const json plan = run_json(place.plan(cache, "512"));
  CHECK(calibrates() == 1);
  CHECK(plan["cache_loss"] > 0.0);

  const json known = place.known();
  Runner runner(place, 512);
  const std::vector<float> before = runner.logits_of_chunks("fp16");
  for (const char* format : {"int4", "gs2"}) {
    CAPTURE(format);
    const auto loss = [&](const std::string& calibrate) {
      const std::string policy =
          "version: 1\nsink: 1\ncalibrate: " + calibrate + "\nlayers: [{range: [1, 1], keys: " + format + "}]\n";
      return runner.divergence_of(runner.logits_of_chunks(policy), before);
    };
    CHECK(known["cache"]["1.keys with scales"][format] == doctest::Approx(loss("first")).epsilon(0.01).scale(1e-6));
    CHECK(loss("first") > 0.0);
    CHECK(loss("first") != loss("none"));
  }
}

TEST_CASE("sequences with scales take about the bytes of their plan, too") {
  const Workplace place;
  const json plan = run_json(place.plan(
      {"--cache-only", "--target-bits", "8", "--context", "640", "--out", place.plan_file(), "--format", "gs1"},
      "512"));
  const kvq::Context context = make_context();
  const llama::Model model(place.model(), 1);
  const llama::ModelConfig& config = model.config();
  const kvq::Cache cache(context, llama::ModelCacheOptions(model).options(),
                         load_plan(context, place.plan_file()).policy());
  kvq::Sequence sequence(cache);
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::vector<float> numbers(320 * static_cast<size_t>(config.kv_heads * config.head_dim));
  for (float& number : numbers) number = normal(random);
  const auto append = [&](int32_t n) {
    for (int32_t layer = 0; layer < config.n_layers; ++layer) {
      sequence.append(layer, n, numbers.data(), numbers.data(), KVQ_F32);
    }
  };
  append(320);
  append(32);  // finds scales by those
  sequence.reserve(288);
  append(288);
  const kvq_usage usage = cache.usage();
  CHECK(usage.sealed_pages > 0);
  // Pages that waited for scales have records of their own, other than those that were reserved.
  const auto bytes = static_cast<double>(usage.sealed_bytes + usage.fp16_bytes + usage.metadata_bytes);
  CHECK(bytes == doctest::Approx(plan["cache_bytes"].get<double>()).epsilon(0.05));
}

TEST_CASE("a plan of caches takes the bytes that it says") {
  const Workplace place;
  const json plan = run_json(place.plan(
      {"--cache-only", "--target-bits", "6", "--context", "640", "--batch", "2", "--out", place.plan_file()}));
  CHECK(plan["cache_bits"] <= 6.0);
  CHECK(plan["cache"].size() == 2);

  const kvq::Context context = make_context();
  const llama::Model model(place.model(), 1);
  const llama::ModelConfig& config = model.config();
  const kvq::Policy policy = load_plan(context, place.plan_file()).policy();
  const kvq::Cache cache(context, llama::ModelCacheOptions(model).options(), policy);
  std::vector<float> numbers(640 * static_cast<size_t>(config.kv_heads * config.head_dim));
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i % 7) - 3.0F;
  std::vector<kvq::Sequence> sequences;
  for (int i = 0; i < 2; ++i) {
    kvq::Sequence& sequence = sequences.emplace_back(cache);
    sequence.reserve(640);
    for (int32_t layer = 0; layer < config.n_layers; ++layer) {
      sequence.append(layer, 640, numbers.data(), numbers.data(), KVQ_F32);
    }
  }
  const kvq_usage usage = cache.usage();
  CHECK(usage.sealed_bytes + usage.fp16_bytes + usage.metadata_bytes == plan["cache_bytes"]);
  CHECK(usage.bits_per_scalar == doctest::Approx(plan["cache_bits"].get<double>()));
  const std::string formats =
      plan["cache"][0]["keys"] == plan["cache"][0]["values"]
          ? plan["cache"][0]["keys"].get<std::string>()
          : plan["cache"][0]["keys"].get<std::string>() + "/" + plan["cache"][0]["values"].get<std::string>();
  CHECK(std::string(cache.describe_layer(0).formats) == formats);
  for (const char* option : {"--plan", "--kv"}) {
    const json measured = run_json({"eval", "perplexity", "--model", place.model(), "--text", place.path("text.txt"),
                                    "--context", "640", option, place.plan_file()});
    CHECK(measured["kv_bits"] < 7.0);
  }
}

TEST_CASE("measurements are kept, and only what they lack is measured") {
  const Workplace place;
  const Arguments weights = place.plan({"--weights-only", "--target-bits", "3"});
  const json first = run_json(weights);
  const std::string file = contents(place.measurements());
  CHECK(run_json(weights) == first);
  CHECK(contents(place.measurements()) == file);

  json known = place.known();
  const json removed = known["weights"]["model.layers.1.mlp.up_proj"];
  known["weights"].erase("model.layers.1.mlp.up_proj");
  known["weights"]["model.layers.0.mlp.up_proj"]["slope"] = 123.0;
  std::ofstream(place.measurements()) << known;
  run_json(weights);
  CHECK(place.known()["weights"]["model.layers.1.mlp.up_proj"] == removed);
  CHECK(place.known()["weights"]["model.layers.0.mlp.up_proj"]["slope"] == 123.0);
}

TEST_CASE("measurements that do not fit are refused") {
  const Workplace place;
  const Arguments plan = place.plan({"--weights-only", "--target-bits", "3"});
  run_json(plan);
  const json known = place.known();
  const auto refuses = [&](const json& changed, const std::string& reason) {
    std::ofstream(place.measurements()) << changed;
    check_failure(plan, 1, reason);
  };
  json changed = known;
  changed["model"] = "0000000000000000";
  refuses(changed, "model is \"0000000000000000\"");
  changed = known;
  changed["text"] = "other";
  refuses(changed, "text is \"other\"");
  changed = known;
  changed["version"] = 2;
  refuses(changed, "version");
  changed = known;
  changed["type"] = "other";
  refuses(changed, "type");
  changed = known;
  changed["weights"]["model.layers.0.mlp.up_proj"]["slope"] = -1.0;
  refuses(changed, "slope");
  changed = known;
  changed["scheme_errors"]["nuq-3"] = nullptr;
  refuses(changed, "nuq-3");
  changed = known;
  changed.erase("cache");
  refuses(changed, "cache");
  std::ofstream(place.measurements()) << "{\"type\": \"kvq.measurements\", \"weights\": {\"a\": NaN}}";
  check_failure(plan, 1, "measurements.json");
}

TEST_CASE("memory is what everything takes") {
  const Workplace place;
  const Arguments both = {"--context", "640", "--batch", "3"};
  const json plan = run_json(place.plan(with(both, {"--memory", "600KiB"})));
  CHECK(plan["total_bytes"] <= 600 * 1024);
  CHECK(plan["total_bytes"] == plan["weight_bytes"].get<uint64_t>() + plan["cache_bytes"].get<uint64_t>() +
                                   plan["other_bytes"].get<uint64_t>() + plan["workspace_bytes"].get<uint64_t>());
  CHECK(plan["workspace_bytes"] > 0);
  const json larger = run_json(place.plan(with(both, {"--memory", "1GB"})));
  CHECK(larger["loss"] < plan["loss"]);
  for (const json& layer : larger["cache"]) CHECK(layer["keys"] == "fp16");
  check_failure(place.plan(with(both, {"--memory", "1KB"})), 1, "is less than the");
  check_failure(place.plan(with(both, {"--memory", "120KB"})), 1, "more than there is");
  check_failure(place.plan({"--memory", "many"}), 2, "--memory many");
  check_failure(place.plan({"--memory", "8"}), 2,
                "--memory 8: is a number of bytes, and too few to be meant: write 8GiB");
  check_failure(place.plan({"--target-bytes", "-1"}), 2, "--target-bytes -1: expected a number of bytes");
}

TEST_CASE("a plan evicts where that is all that fits, or loses less") {
  const Workplace place;
  const Arguments cache = {"--cache-only", "--context", "960", "--evict", "adasnap", "--out", place.plan_file()};
  const json roomy = run_json(place.plan(with(cache, {"--target-bytes", "100000000"})));
  CHECK_FALSE(roomy.contains("eviction"));
  const json tight = run_json(place.plan(with(cache, {"--target-bytes", "60KB"})));
  REQUIRE(tight.contains("eviction"));
  CHECK(tight["cache_bytes"] <= 60000);
  CHECK(tight["loss"].get<double>() ==
        doctest::Approx(tight["cache_loss"].get<double>() + tight["eviction_loss"].get<double>()));
  const kvq::Context context = make_context();
  const int32_t budget = load_plan(context, place.plan_file()).policy().describe().eviction_budget;
  CHECK(tight["eviction"] == "adasnap:" + std::to_string(budget));
  CHECK((budget == 480 || budget == 240 || budget == 120));
  CHECK(place.known()["eviction"].size() == 3);
  check_failure(place.plan({"--cache-only", "--target-bytes", "60KB", "--evict", "snap"}), 2, "snap");
}

TEST_CASE("a step of decoding can be limited") {
  const Workplace place;
  const json fast = run_json(place.plan({"--target-latency", "1000", "--target-bytes", "100000000"}));
  CHECK(fast["seconds"] > 0.0);
  CHECK(fast["seconds"] < 1.0);
  CHECK(place.known()["machines"].size() == 1);

  // What another machine took says nothing of this one.
  json known = place.known();
  const std::string here = known["machines"].begin().key();
  CHECK(known["machines"][here]["others"].size() == 1);
  json elsewhere = known["machines"][here];
  for (auto& time : elsewhere["linear"]) time = 1e9;
  known["machines"] = {{"another processor, kvq 0.9.0", elsewhere}};
  std::ofstream(place.measurements()) << known;
  CHECK(run_json(place.plan({"--target-latency", "1000", "--target-bytes", "100000000"}))["seconds"] < 1.0);
  CHECK(place.known()["machines"].size() == 2);
  const json fused = run_json(place.plan({"--target-latency", "1000", "--weights-only", "--fusion"}));
  CHECK(fused["weights"].size() == 14);

  // Where sequences find scales, pages have some when they are timed.
  const Workplace other;
  run_json(other.plan({"--target-latency", "1000", "--cache-only", "--context", "640"}, "512"));
  const json of_machines = other.known()["machines"];
  CHECK(of_machines.begin().value()["cache"].contains("gs2/fp16@scales 640 tokens batch 1"));

  // What is not planned takes its time, too.
  const json cache = run_json(place.plan({"--target-latency", "1000", "--cache-only"}));
  CHECK(cache["seconds"] > 0.0);
  CHECK(place.known()["machines"][here]["others"].size() == 2);
  check_failure(place.plan({"--target-latency", "0.00001"}), 1, "ms more than there is");
}

TEST_CASE("a target of milliseconds is kept by measured times of the GPU, too") {
  const json info = run_json({"info"});
  const Workplace place;
  const Arguments timed = place.plan({"--target-latency", "1000", "--device", "cuda"});
  if (!info["cuda_available"].get<bool>()) {
    const std::string reason = info["cuda_unavailable_because"];
    MESSAGE("skipped: " << reason);
    return check_failure(timed, 1, reason);
  }
  const json plan = run_json(timed);
  CHECK(plan["seconds"] > 0.0);
  CHECK(plan["seconds"] < 1.0);
}

TEST_CASE("the smallest and the fastest plan that lose no more than so much") {
  const Workplace place;
  const json wanted = run_json(place.plan({"--weights-only", "--target-bits", "3"}));
  const double loss = wanted["loss"];
  const std::string most = std::to_string(1.001 * loss);
  const json small = run_json(place.plan({"--weights-only", "--max-loss", most, "--goal", "bytes"}));
  CHECK(small["loss"] <= 1.001 * loss);
  CHECK(small["bytes"] <= wanted["bytes"]);
  CHECK(small["bytes"] >= small["bound"]);
  const json fast = run_json(place.plan({"--weights-only", "--max-loss", most, "--goal", "seconds"}));
  CHECK(fast["loss"] <= 1.001 * loss);
  CHECK(fast["seconds"] > 0.0);
  const json timed = run_json(place.plan({"--weights-only", "--max-loss", most, "--goal", "bytes", "--target-latency",
                                          std::to_string(1e3 * 1.01 * fast["seconds"].get<double>())}));
  CHECK(timed["seconds"] <= 1.01 * fast["seconds"].get<double>());
  CHECK(timed["bytes"] >= small["bytes"]);
  check_failure(place.plan({"--weights-only", "--goal", "bytes"}), 2, "--max-loss");
  check_failure(place.plan({"--weights-only", "--max-loss", "0.000000001", "--goal", "bytes"}), 1, "max_loss");
}

TEST_CASE("random plans lose about what is expected") {
  const Workplace place;
  const json check = run_json(place.plan({"--check", "5", "--context", "256"}));
  CHECK(check["plans"].size() == 5);
  CHECK(check["rank_correlation"] >= -1.0);
  CHECK(check["rank_correlation"] <= 1.0);
  CHECK(check["worst_factor"] < 4.0);
  check_fits_page(run_text(place.plan({"--check", "5", "--context", "256"})));
}

TEST_CASE("the frontier of plans loses less the more it may take, and no more than the same for all") {
  const Workplace place;
  const json plan = run_json(place.plan({"--cache-only", "--target-bits", "6", "--frontier"}));
  const json& best = plan["frontier"]["best"];
  REQUIRE(best.size() == 33);
  for (size_t i = 1; i < best.size(); ++i) {
    CHECK(best[i]["bytes"] >= best[i - 1]["bytes"]);
    CHECK(best[i]["loss"].get<double>() <= 1.001 * best[i - 1]["loss"].get<double>());
  }
  CHECK(best.back()["loss"] == 0.0);
  for (const json& same : plan["frontier"]["uniform"]) {
    const auto larger =
        std::ranges::find_if(best, [&same](const json& each) { return each["bytes"] >= same["bytes"]; });
    if (larger != best.end()) CHECK((*larger)["loss"].get<double>() <= 1.001 * same["loss"].get<double>());
  }
}

TEST_CASE("with no more than a configuration, kvq plan says what fits") {
  const Workplace place;
  const std::string config = place.model() + "/config.json";
  // A thread, as the context below has, since calls keep memory for each.
  const json fits =
      run_json({"plan", "--model", config, "--memory", "1MB", "--batch", "2", "--context", "96", "--threads", "1"});
  const llama::Model model(place.model(), 1);
  const kvq::Context context = make_context();
  const auto contexts = fits["contexts"].get<std::vector<int32_t>>();
  CHECK(std::ranges::find(contexts, 96) != contexts.end());
  CHECK(contexts.back() == model.config().max_positions);

  uint64_t fp16 = 0;
  for (const llama::LinearLayer& layer : llama::all_linear_layers(model.config())) {
    fp16 += static_cast<uint64_t>(2 * layer.weights());
  }
  CHECK(fits["weight_bytes"]["fp16"] == fp16 + fits["other_bytes"].get<uint64_t>());

  const auto policy = kvq::Policy::load(context, "{version: 1, sink: 1, keys: gs2, values: gs2}");
  const kvq::Cache cache(context, llama::ModelCacheOptions(model).options(), policy);
  for (size_t i = 0; i < contexts.size(); ++i) {
    CHECK(fits["cache_bytes"]["gs2"][i] == cache.predict_usage(2, contexts[i], 1).total_bytes);
  }
  const int32_t longest = fits["longest_context"]["nuq-8"]["gs2"];
  const uint64_t left = 1000000 - fits["weight_bytes"]["nuq-8"].get<uint64_t>();
  CHECK(cache.predict_usage(2, longest, 0).total_bytes <= left);
  if (longest < model.config().max_positions) {
    CHECK(cache.predict_usage(2, longest + KVQ_PAGE_SLOTS, 0).total_bytes > left);
  }
  check_fits_page(run_text({"plan", "--model", config, "--memory", "1MB"}));
  // A recommendation fits; with enough memory nothing need be lost, and with its weights a model is not measured.
  CHECK(fits["longest_context"][fits["recommended"]["weights"]][fits["recommended"]["cache"]] >= 96);
  for (const std::string& model_or_config : {place.model(), config}) {
    const std::string text = run_text({"plan", "--model", model_or_config, "--memory", "1GB"});
    CHECK(text.find("fit in FP16: nothing need be lost") != std::string::npos);
  }
  CHECK(!std::filesystem::exists(place.measurements()));
  check_failure({"plan", "--model", place.path("nothing")}, 1, "nothing");
  check_failure({"plan", "--model", config, "--context", "1000000"}, 2, "positions");
  check_failure({"plan", "--model", config, "--out", place.path("plan.yaml")}, 2, "--out needs the model's weights");
  const json chosen = run_json({"plan", "--model", config, "--scheme", "vq-4", "--scheme", "tcx-4", "--format", "gt2"});
  CHECK(chosen["weight_bytes"].size() == 2);
  CHECK(chosen["weight_bytes"]["vq-4"] == chosen["weight_bytes"]["tcx-4"]);
  CHECK(chosen["cache_bytes"].size() == 1);
  CHECK(chosen["cache_bytes"].contains("gt2"));
  check_failure({"plan", "--model", config, "--scheme", "nuq-7"}, 2, "nuq-7");
  check_failure({"plan", "--model", config, "--format", "int5"}, 2, "int5");
  CHECK(run_json({"plan", "--model", config, "--format", "gs2/gs1"})["cache_bytes"].contains("gs2/gs1"));
  for (const char* format : {"gs2@weights", "gs2@first", "gs2@none", "gs2:centres", "gs2-256", "gs2+centres", "moqae",
                             "commvq", "int4+snapkv:64", "plan.yaml"}) {
    check_failure({"plan", "--model", config, "--format", format}, 2,
                  "--format " + std::string(format) + ": must be a format alone");
  }
}

TEST_CASE("plans that say too little or too much are refused") {
  const Workplace place;
  check_failure(place.plan({}), 2, "--target-bytes");
  check_failure(place.plan({"--target-bits", "3"}), 2, "--weights-only");
  check_failure(place.plan({"--target-bits", "3", "--weights-only", "--cache-only"}), 2, "nothing to plan");
  check_failure(place.plan({"--target-bits", "3", "--target-bytes", "1KB", "--weights-only"}), 2, "give one");
  check_failure(place.plan({"--target-bits", "0.5", "--weights-only"}), 1, "the smallest plan takes");
  check_failure(place.plan({"--target-bits", "3", "--weights-only", "--scheme", "nuq-7"}), 2, "nuq-7");
  check_failure(place.plan({"--target-bits", "8", "--cache-only", "--format", "int5"}), 2, "int5");
  const Arguments format = {"--target-bits", "8", "--cache-only", "--format"};
  check_failure(place.plan(with(format, {"gs2@weights"})), 2, "--format gs2@weights: must be a format alone");
  check_failure(place.plan(with(format, {"gs2-256"})), 2, "--format gs2-256: must be a format alone");
  check_failure(place.plan(with(format, {"gs2/gs1"})), 2, "--format gs2/gs1: name one format");
  check_failure(place.plan({"--target-bits", "8", "--cache-only", "--context", "1000000"}), 2, "positions");
  check_failure({"quantize", "--model", place.model(), "--out", place.path("x.safetensors")}, 2, "--plan");
  const std::string other = place.write("other.yaml", "version: 1\nweights: {model.layers.9.mlp.up_proj: nuq-2}\n");
  check_failure({"quantize", "--model", place.model(), "--plan", other, "--out", place.path("x.safetensors")}, 1,
                "another model");
  const std::string part = place.write("part.yaml", "version: 1\nweights: {model.layers.1.mlp.up_proj: nuq-2}\n");
  check_failure({"quantize", "--model", place.model(), "--plan", part, "--out", place.path("x.safetensors")}, 1,
                "--scheme");
  const json quantized = run_json({"quantize", "--model", place.model(), "--plan", part, "--scheme", "nuq-4", "--out",
                                   place.path("x.safetensors")});
  for (const json& layer : quantized["layers"]) {
    CHECK(layer["scheme"] == (layer["name"] == "model.layers.1.mlp.up_proj" ? "nuq-2" : "nuq-4"));
  }
}

}  // namespace plan_test
