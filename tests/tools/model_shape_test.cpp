// What kvq plan counts from a configuration alone. tests/data/configs has those of public models: the fields that say
// what the model consists of, as published.
#include "llama/model_shape.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "allocation/layer_caches.h"
#include "allocation/memory.h"
#include "llama/config.h"
#include "llama/error.h"
#include "llama/model.h"
#include "program_run.h"
#include "runs.h"
#include "support/places.h"
#include "support/scratch_directory.h"

namespace model_shape_test {
namespace {

using doctest::Contains;
using nlohmann::json;

std::string config_of(const std::string& model) { return source_tree() + "/tests/data/configs/" + model + ".json"; }

llama::ModelShape load(const json& config) {
  const ScratchDirectory scratch;
  return llama::load_model_shape(scratch.write("config.json", config.dump()));
}

json published(const std::string& model) { return json::parse(contents(config_of(model))); }

json with(json config, const json& changes) {
  config.merge_patch(changes);  // null removes a member
  return config;
}

const json kLlama = json::parse(R"({
  "model_type": "llama", "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
  "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_act": "silu",
  "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "tie_word_embeddings": false})");

std::vector<llama::Mixer> mixers_of(const llama::ModelShape& shape) {
  std::vector<llama::Mixer> mixers;
  for (const llama::LayerShape& layer : shape.layers) mixers.push_back(layer.mixer);
  return mixers;
}

}  // namespace

TEST_CASE("the parameters of public models are counted to the last one") {
  // Oracle: the totals that are published with the checkpoints, without encoders and layers that draft tokens.
  const std::pair<const char*, uint64_t> exact[] = {
      {"deepseek-v3", 671'026'404'352},  {"deepseek-v2-lite", 15'706'484'224},   {"gemma-2-9b", 9'241'705'984},
      {"gpt-oss-20b", 20'914'757'184},   {"mixtral-8x7b", 46'702'792'704},       {"phi-3-mini", 3'821'079'552},
      {"qwen3-30b-a3b", 30'532'122'624}, {"qwen3-next-80b-a3b", 79'674'391'296},
  };
  for (const auto& each : exact) {
    const auto [model, parameters] = each;
    CAPTURE(each.first);
    CHECK(static_cast<uint64_t>(llama::load_model_shape(config_of(model)).parameters()) == parameters);
  }
}

TEST_CASE("the parameters of public models are those of their names") {
  // Oracle: the models' cards, in billions; of E2B, 2.3 and an embedding by layer of 262144 x 35 x 256.
  const std::pair<const char*, double> cards[] = {
      {"gemma-3-27b", 27.0},   {"gemma-4-31b", 30.7}, {"gemma-4-26b-a4b", 25.2}, {"gemma-4-e2b", 2.3 + 2.349},
      {"mimo-v2-flash", 309},  {"kimi-k2", 1027},     {"kimi-linear-48b", 49.1}, {"glm-4.5", 355},
      {"nemotron-h-8b", 8.10}, {"qwen3.5-27b", 27.0},
  };
  for (const auto& each : cards) {
    const auto [model, billions] = each;
    CAPTURE(each.first);
    CHECK(llama::load_model_shape(config_of(model)).parameters() / 1e9 == doctest::Approx(billions).epsilon(0.01));
  }
}

TEST_CASE("a token needs the parameters of the experts that it is sent to") {
  // Oracle: the models' cards, in billions. That of gpt-oss leaves the embedding out.
  const auto active = [](const char* model) {
    return llama::load_model_shape(config_of(model)).active_parameters() / 1e9;
  };
  CHECK(active("qwen3-30b-a3b") == doctest::Approx(3.3).epsilon(0.02));
  CHECK(active("mixtral-8x7b") == doctest::Approx(12.9).epsilon(0.01));
  CHECK(active("deepseek-v3") == doctest::Approx(37).epsilon(0.02));
  CHECK(active("gemma-4-26b-a4b") == doctest::Approx(3.8).epsilon(0.01));
  CHECK(active("gpt-oss-20b") - 201088 * 2880 / 1e9 == doctest::Approx(3.6).epsilon(0.01));
  CHECK_FALSE(llama::load_model_shape(config_of("gemma-3-27b")).has_experts());

  const json fits = run_json({"plan", "--model", config_of("mixtral-8x7b")});
  const double embedding = 32000.0 * 4096;  // of which a token reads one row
  CHECK(fits["weight_bytes_read"]["fp16"] == 2 * (fits["active_parameters"].get<double>() - embedding));
  CHECK(fits["weight_bytes"]["fp16"] == 2 * fits["parameters"].get<double>());
}

TEST_CASE("a token takes the keys and values of the layers that cache it") {
  // Oracle: numbers of a token in a cache, by hand from what is known of the layers; those that stay behind all
  // windows.
  struct Numbers {
    const char* model;
    double of_token;
    double for_ever;
  };
  const Numbers numbers[] = {
      {"deepseek-v3", 61 * 576, 61 * 576},                                      // one latent for all heads
      {"kimi-linear-48b", 7 * 576, 7 * 576},                                    // the other 20 layers have states
      {"gemma-3-27b", 62 * 16 * (128 + 128), 10 * 16 * (128 + 128)},            // heads of 128, not of 5376 / 32
      {"gemma-4-31b", 50 * 16 * 2 * 256 + 10 * 4 * 2 * 512, 10 * 4 * 2 * 512},  // few, large heads in global layers
      {"gemma-4-e2b", 12 * 2 * 256 + 3 * 2 * 512, 3 * 2 * 512},  // 20 of 35 layers have no keys of their own
      {"gemma-3n-e4b", 20 * 2 * 2 * 256, 4 * 2 * 2 * 256},       // 15 of 35
      {"mimo-v2-flash", 9 * 4 * (192 + 128) + 39 * 8 * (192 + 128), 9 * 4 * (192 + 128)},
      {"qwen3-next-80b-a3b", 12 * 2 * (256 + 256), 12 * 2 * (256 + 256)},
      {"qwen3.5-27b", 16 * 4 * (256 + 256), 16 * 4 * (256 + 256)},
      {"gpt-oss-20b", 24 * 8 * (64 + 64), 12 * 8 * (64 + 64)},
      {"nemotron-h-8b", 4 * 8 * (128 + 128), 4 * 8 * (128 + 128)},
      {"phi-3-mini", 32 * 32 * (96 + 96), 0},
      {"glm-4.5", 92 * 8 * (128 + 128), 92 * 8 * (128 + 128)},
  };
  const kvq::Context context = make_context();
  for (const Numbers& each : numbers) {
    CAPTURE(each.model);
    const cli::LayerCaches caches(context, llama::load_model_shape(config_of(each.model)).layers);
    const auto kv_bytes = [&](int32_t tokens) {
      return static_cast<double>(caches.usage("fp16", {.tokens = tokens, .sequences = 1}).fp16_bytes);
    };
    CHECK((kv_bytes(128) - kv_bytes(64)) / 64 == 2 * each.of_token);
    CHECK((kv_bytes(65536) - kv_bytes(32768)) / 32768 == 2 * each.for_ever);
  }
}

TEST_CASE("models that can be run are counted as when they run") {
  const json changes[] = {{{"model_type", "llama"}},
                          {{"model_type", "llama"}, {"attention_bias", true}, {"mlp_bias", true}},
                          {{"model_type", "llama"}, {"tie_word_embeddings", true}, {"head_dim", 64}},
                          {{"model_type", "mistral"}, {"sliding_window", 4096}, {"num_key_value_heads", nullptr}},
                          {{"model_type", "qwen2"}, {"use_sliding_window", false}, {"sliding_window", 4096}},
                          {{"model_type", "qwen3"}, {"head_dim", 128}}};
  for (const json& change : changes) {
    CAPTURE(change.dump());
    const json config = with(kLlama, change);
    const ScratchDirectory scratch;
    const auto file = scratch.write("config.json", config.dump());
    const llama::ModelConfig expected = llama::load_config(file);
    const llama::ModelShape shape = llama::load_model_shape(file);
    uint64_t bytes = 0;
    for (const llama::WeightMatrix& each : shape.matrices) {
      bytes +=
          static_cast<uint64_t>(each.count) * kvq::Matrix::predict_bytes("tcx-3", each.out, each.in, each.bias ? 1 : 0);
    }
    CHECK(bytes == cli::packed_bytes("tcx-3", expected));
    CHECK(2 * shape.other_numbers == cli::other_tensor_bytes(expected));
    CHECK(shape.max_positions == expected.max_positions);
    REQUIRE(shape.layers.size() == static_cast<size_t>(expected.n_layers));
    for (const llama::LayerShape& layer : shape.layers) {
      CHECK(layer.q_heads == expected.q_heads);
      CHECK(layer.kv_heads == expected.kv_heads);
      CHECK(layer.key_dim == expected.head_dim);
      CHECK(layer.value_dim == expected.head_dim);
      CHECK((layer.mixer == llama::Mixer::kWindowed) == (expected.sliding_window > 0));
    }
  }
}

TEST_CASE("a cache is predicted as one that is made with the shapes of its layers") {
  const llama::LayerShape latent{.q_heads = 16, .kv_heads = 1, .key_dim = 576, .value_dim = 512, .is_latent = true};
  const llama::LayerShape plain{.q_heads = 16, .kv_heads = 4, .key_dim = 192, .value_dim = 128};
  const llama::LayerShape state{.mixer = llama::Mixer::kRecurrent};
  const kvq::Context context = make_context();
  const cli::LayerCaches caches(context, {latent, state, latent, plain});

  kvq_layer_shape shapes[] = {kvq::initialised<kvq_layer_shape>(), kvq::initialised<kvq_layer_shape>()};
  shapes[0].n_layers = 2;
  shapes[0].kv_heads = 1;
  shapes[0].key_dim = 576;
  shapes[0].value_dim = 512;
  shapes[0].values_are_key_prefix = 1;
  shapes[1].first_layer = 2;
  shapes[1].key_dim = 192;
  auto options = llama::cache_options(3, 16, 4, 128);
  options.shapes = shapes;
  options.n_shapes = 2;
  const auto kv_bytes = [](const kvq_usage& usage) { return usage.sealed_bytes + usage.fp16_bytes; };
  const std::pair<const char*, const char*> policies[] = {
      {"gs2/gs1", "{version: 1, sink: 1, keys: gs2, values: gs1, layers: [{range: [0, 1], keys: int8}]}"},
      {"int4", "{version: 1, sink: 1, keys: int4, values: int4}"}};
  for (const auto& each : policies) {
    CAPTURE(each.first);
    const kvq::Cache cache(context, options, kvq::Policy::load(context, each.second));
    CHECK(kv_bytes(caches.usage(each.first, {.tokens = 1000, .sequences = 3, .queries = 1})) ==
          kv_bytes(cache.predict_usage(3, 1000, 1)));
  }
}

TEST_CASE("layers that share caches read the last layer of their kind that has one") {
  // Oracle: transformers' Gemma 4, whose first 15 of 35 layers have keys, the global ones every fifth.
  const llama::ModelShape shape = llama::load_model_shape(config_of("gemma-4-e2b"));
  for (size_t i = 0; i < shape.layers.size(); ++i) {
    CAPTURE(i);
    const bool is_global = (i + 1) % 5 == 0;
    CHECK(shape.layers[i].has_cache() == (i < 15));
    CHECK(shape.layers[i].reads_layer == (i < 15 ? -1 : (is_global ? 14 : 13)));
    CHECK(shape.layers[i].key_dim == (is_global ? 512 : 256));
  }
  const json all = with(published("gemma-4-e2b"), {{"text_config", {{"num_kv_shared_layers", 35}}}});
  CHECK(std::ranges::count_if(load(all).layers, &llama::LayerShape::has_cache) == 35);
  const json none = with(published("gemma-4-e2b"), {{"text_config", {{"num_kv_shared_layers", 32}}}});
  CHECK_THROWS_WITH_AS(load(none), Contains("num_kv_shared_layers is 32, but no layer before is like layer 4"),
                       llama::Error);
}

TEST_CASE("the kinds of layers are found wherever a configuration has them") {
  using enum llama::Mixer;
  const json four = with(kLlama, {{"num_hidden_layers", 4},
                                  {"mamba_d_state", 16},
                                  {"mamba_d_conv", 4},
                                  {"mamba_dt_rank", 64},
                                  {"mamba_expand", 2},
                                  {"sliding_window", 512}});
  const auto mixers = [&](const json& changes) { return mixers_of(load(with(four, changes))); };
  using Mixers = std::vector<llama::Mixer>;
  CHECK(mixers({{"sliding_window", nullptr}}) == Mixers{kFull, kFull, kFull, kFull});
  CHECK(mixers(json::object()) == Mixers{kWindowed, kWindowed, kWindowed, kWindowed});
  CHECK(mixers({{"use_sliding_window", false}}) == Mixers{kFull, kFull, kFull, kFull});
  CHECK(mixers({{"use_sliding_window", true}, {"max_window_layers", 3}}) == Mixers{kFull, kFull, kFull, kWindowed});
  CHECK(mixers({{"sliding_window_pattern", 2}}) == Mixers{kWindowed, kFull, kWindowed, kFull});
  CHECK(mixers({{"model_type", "gemma2"}}) == Mixers{kWindowed, kFull, kWindowed, kFull});
  CHECK(mixers({{"hybrid_layer_pattern", {0, 1, 1, 0}}}) == Mixers{kFull, kWindowed, kWindowed, kFull});
  CHECK(mixers({{"attn_layer_indices", {2}}}) == Mixers{kMamba, kMamba, kFull, kMamba});
  CHECK(mixers({{"attn_layer_period", 2}, {"attn_layer_offset", 1}}) == Mixers{kMamba, kFull, kMamba, kFull});
  CHECK(mixers({{"layer_types", {"mamba", "attention", "sliding_attention", "full_attention"}}}) ==
        Mixers{kMamba, kFull, kWindowed, kFull});
  CHECK(mixers({{"hybrid_override_pattern", "M-*-"}}) == Mixers{kMamba, kNone, kFull, kNone});
}

TEST_CASE("experts are in the layers that a configuration names") {
  const json moe =
      with(kLlama,
           {{"num_hidden_layers", 4}, {"num_experts", 8}, {"num_experts_per_tok", 2}, {"moe_intermediate_size", 64}});
  // Layers without experts have an MLP of 3 x 4096 x 14336, others of 8 x 3 x 4096 x 64 and a router.
  const double dense = 3.0 * 4096 * 14336;
  const double sparse = 8 * 3.0 * 4096 * 64 + 8 * 4096;
  const double others = load(with(moe, {{"num_experts", nullptr}})).parameters() - 4 * dense;
  const auto layers_with_experts = [&](const json& changes) {
    return (4 * dense + others - load(with(moe, changes)).parameters()) / (dense - sparse);
  };
  CHECK(layers_with_experts(json::object()) == 4);
  CHECK(layers_with_experts({{"first_k_dense_replace", 3}}) == 1);
  CHECK(layers_with_experts({{"mlp_only_layers", {0, 2}}}) == 2);
  CHECK(layers_with_experts({{"decoder_sparse_step", 2}}) == 2);
  CHECK(layers_with_experts({{"moe_layer_freq", {0, 1, 1, 1}}}) == 3);
  CHECK(layers_with_experts({{"mlp_layer_types", {"dense", "dense", "dense", "sparse"}}}) == 1);
  CHECK(layers_with_experts({{"expert_layer_period", 4}, {"expert_layer_offset", 1}}) == 1);
  CHECK(layers_with_experts({{"interleave_moe_layer_step", 4}}) == 1);
}

TEST_CASE("a field that is missing or wrong is named") {
  const auto refuses = [](const json& config, const char* reason) {
    CAPTURE(reason);
    CHECK_THROWS_WITH_AS(load(config), Contains(reason), llama::Error);
  };
  for (const char* field : {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                            "num_attention_heads", "max_position_embeddings"}) {
    refuses(with(kLlama, {{field, nullptr}}), (field + std::string(" is missing")).c_str());
    refuses(with(kLlama, {{field, 0}}), (field + std::string(" is 0")).c_str());
  }
  for (const char* field : {"qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "num_experts_per_tok"}) {
    refuses(with(published("deepseek-v3"), {{field, nullptr}}), (field + std::string(" is missing")).c_str());
  }
  refuses(with(published("qwen3-next-80b-a3b"), {{"linear_num_value_heads", nullptr}}),
          "linear_num_value_heads is missing");
  refuses(with(published("gemma-4-31b"), {{"text_config", {{"hidden_size", nullptr}}}}), "hidden_size is missing");
  refuses(with(kLlama, {{"num_key_value_heads", 5}}), "num_key_value_heads is 5, which does not divide");
  refuses(with(kLlama, {{"layer_types", {"full_attention"}}}), "expected a list of 32 names");
  refuses(with(kLlama, {{"num_hidden_layers", 1}, {"layer_types", {"telepathy"}}}), "'telepathy' is not known");
  refuses(with(kLlama, {{"hybrid_override_pattern", "M*"}}), "expected a letter of M, *, - and E for each layer");
  refuses(with(kLlama, {{"hidden_size", 4100}}), "hidden_size is 4100, which num_attention_heads, 32, does not divide");
}

TEST_CASE("kvq plan says of which layers and parts its figures are") {
  const auto remarks = [](const char* model) {
    const std::string text = run_text({"plan", "--model", config_of(model), "--memory", "700GiB"});
    check_fits_page(text);
    return text;
  };
  const std::string deepseek = remarks("deepseek-v3");
  CHECK(deepseek.find("of 671.0 B parameters, of which a token needs 37.6 B") != std::string::npos);
  CHECK(deepseek.find("formats are of the 512 common channels; 64 rotary ones") != std::string::npos);
  CHECK(deepseek.find("gs2/gs1") == std::string::npos);  // would be gs1
  const std::string gemma = remarks("gemma-4-e2b");
  CHECK(gemma.find("20 of 35 layers read the caches of others") != std::string::npos);
  CHECK(gemma.find("12 of 35 layers attend within a window") != std::string::npos);
  CHECK(gemma.find("not counted: encoders of images and sound") != std::string::npos);
  CHECK(remarks("qwen3-next-80b-a3b").find("36 of 48 layers have no cache of keys and values") != std::string::npos);
  CHECK(run_json({"plan", "--model", demo_model() + "/config.json"})["remarks"].empty());
}

TEST_CASE("kvq plan counts caches of layers whose shape is given") {
  const json fits = run_json({"plan", "--shape", "layers=61,q_heads=128,head_dim=576,value_dim=512,latent=1",
                              "--memory", "8GiB", "--context", "163"});
  const json model = run_json({"plan", "--model", config_of("deepseek-v3"), "--context", "163"});
  CHECK(fits["cache_bytes"]["gs2"][0] == model["cache_bytes"]["gs2"][0]);
  CHECK(fits["longest_context"]["gs2"] == 131072);
  CHECK_FALSE(fits.contains("weight_bytes"));
  const std::string text = run_text({"plan", "--shape", "layers=2,q_heads=4,kv_heads=2,head_dim=64,context=4096"});
  CHECK(text.find("weights") == std::string::npos);
  CHECK(text.find("4096\n") != std::string::npos);
  check_failure({"plan"}, 2, "--shape");
  check_failure({"plan", "--model", config_of("deepseek-v3"), "--shape", "layers=1"}, 2, "--shape");
  const auto refuses = [](const char* shape, const char* reason) {
    CAPTURE(shape);
    check_failure({"plan", "--shape", shape}, 2, reason);
  };
  refuses("layers=2,q_heads=4", "head_dim is missing");
  refuses("layers=2,q_heads=4,head_dim=64,heads=2", "'heads=2' is not known");
  refuses("layers=2,layers=2", "layers is given twice");
  refuses("layers=2x", "layers must be a number from 1 to 65536");
  refuses("layers=2,q_heads=4,kv_heads=3,head_dim=64", "kv_heads must divide q_heads");
  refuses("layers=2,q_heads=4,head_dim=576", "value_dim must be at most 512");
  refuses("layers=2,q_heads=4,head_dim=60", "multiples of 8");
  refuses("layers=2,q_heads=4,head_dim=64,latent=1", "latent layers need value_dim");
  check_failure({"plan", "--shape", "layers=2,q_heads=4,head_dim=64", "--target-bits", "3"}, 2,
                "--target-bits needs the model's weights to measure; --shape is its caches alone");
}

}  // namespace model_shape_test
