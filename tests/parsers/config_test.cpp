#include "llama/config.h"

#include <doctest/doctest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>
#include <string>

#include "llama/error.h"
#include "support/scratch_directory.h"

namespace config_test {
namespace {

using doctest::Contains;
using nlohmann::json;

/// Dimensions of Llama 3.1 8B.
const json kLlama = json::parse(R"({
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128256, "hidden_size": 4096,
  "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
  "hidden_act": "silu", "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "rope_theta": 500000.0,
  "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                   "original_max_position_embeddings": 8192, "rope_type": "llama3"},
  "tie_word_embeddings": false, "bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009]})");

llama::ModelConfig load(const json& config) {
  const ScratchDirectory scratch;
  scratch.write("config.json", config.dump());
  return llama::load_config(scratch.path());
}

json with(json config, const json& changes) {
  config.merge_patch(changes);  // null removes a member
  return config;
}

json of(const char* class_name, const json& changes = json::object()) {
  json config = with(kLlama, {{"rope_scaling", nullptr}, {"architectures", {class_name}}});
  return with(std::move(config), changes);
}

}  // namespace

TEST_CASE("a Llama 3.1 configuration is read in full") {
  const llama::ModelConfig config = load(kLlama);
  CHECK(config.architecture == "llama");
  CHECK(config.vocab_size == 128256);
  CHECK(config.hidden_size == 4096);
  CHECK(config.intermediate_size == 14336);
  CHECK(config.n_layers == 32);
  CHECK(config.q_heads == 32);
  CHECK(config.kv_heads == 8);
  CHECK(config.head_dim == 128);
  CHECK(config.max_positions == 131072);
  CHECK(config.rms_norm_eps == 1e-5f);
  CHECK(config.rope_theta == 500000.0f);
  CHECK_FALSE(config.tied_embeddings);
  CHECK_FALSE(config.qkv_bias);
  CHECK_FALSE(config.o_bias);
  CHECK_FALSE(config.mlp_bias);
  CHECK_FALSE(config.qk_norm);
  CHECK(config.sliding_window == 0);
  CHECK(config.bos_token == 128000);
  CHECK(config.eos_tokens == std::vector<int>{128001, 128008, 128009});
}

TEST_CASE("llama3 scaling stretches long wavelengths, keeps short ones and blends those between") {
  const llama::ModelConfig config = load(kLlama);
  REQUIRE(config.inv_freq.size() == 64);
  int stretched = 0;
  int kept = 0;
  for (size_t i = 0; i < 64; ++i) {
    const double plain = std::pow(500000.0, -2.0 * static_cast<double>(i) / 128.0);
    const double wavelength = 2.0 * std::numbers::pi / plain;
    double expected = plain;
    if (wavelength > 8192.0 / 1.0) {
      expected = plain / 8.0;
      ++stretched;
    } else if (wavelength < 8192.0 / 4.0) {
      ++kept;
    } else {
      const double smooth = (8192.0 / wavelength - 1.0) / (4.0 - 1.0);
      expected = (1.0 - smooth) * (plain / 8.0) + smooth * plain;
    }
    CHECK(config.inv_freq[i] == doctest::Approx(expected).epsilon(1e-6));
  }
  CHECK(stretched > 20);
  CHECK(kept > 20);
  CHECK(stretched + kept < 64);
}

TEST_CASE("linear scaling divides every frequency, default scaling none") {
  const auto first_frequency = [](const json& scaling) {
    return load(with(of("LlamaForCausalLM"), {{"rope_scaling", scaling}})).inv_freq[0];
  };
  CHECK(first_frequency(nullptr) == 1.0f);
  CHECK(first_frequency({{"rope_type", "default"}}) == 1.0f);
  CHECK(first_frequency({{"type", "linear"}, {"factor", 4.0}}) == 0.25f);
  CHECK_THROWS_WITH_AS(first_frequency({{"rope_type", "yarn"}, {"factor", 4.0}}),
                       Contains("rope_scaling: rope_type is \"yarn\", expected llama3, linear or default"),
                       llama::Error);
  CHECK_THROWS_WITH_AS(first_frequency({{"rope_type", "llama3"}}), Contains("rope_scaling: factor is missing"),
                       llama::Error);
  CHECK_THROWS_WITH_AS(first_frequency({{"rope_type", "linear"}, {"factor", 0.0}}), Contains("factor is 0.0"),
                       llama::Error);
}

TEST_CASE("rope_parameters of newer files stand for rope_theta and rope_scaling") {
  const json newer = with(
      of("LlamaForCausalLM"),
      {{"rope_theta", nullptr}, {"rope_parameters", {{"rope_type", "linear"}, {"factor", 2.0}, {"rope_theta", 16.0}}}});
  const llama::ModelConfig config = load(newer);
  CHECK(config.rope_theta == 16.0f);
  CHECK(config.inv_freq[0] == 0.5f);
  CHECK(config.inv_freq[32] == doctest::Approx(0.125));  // 16^(-1/2) / 2
}

TEST_CASE("each layout brings its own biases, norms and defaults") {
  SUBCASE("Llama") {
    const llama::ModelConfig config = load(of("LlamaForCausalLM", {{"attention_bias", true},
                                                                   {"mlp_bias", true},
                                                                   {"tie_word_embeddings", true},
                                                                   {"num_key_value_heads", nullptr},
                                                                   {"rope_theta", nullptr},
                                                                   {"eos_token_id", 2},
                                                                   {"bos_token_id", nullptr}}));
    CHECK(config.qkv_bias);
    CHECK(config.o_bias);
    CHECK(config.mlp_bias);
    CHECK(config.tied_embeddings);
    CHECK(config.kv_heads == 32);
    CHECK(config.rope_theta == 10000.0f);
    CHECK(config.bos_token == -1);
    CHECK(config.eos_tokens == std::vector<int>{2});
  }
  SUBCASE("Mistral") {
    CHECK(load(of("MistralForCausalLM", {{"sliding_window", 4096}})).sliding_window == 4096);
    const llama::ModelConfig nemo =
        load(of("MistralForCausalLM", {{"sliding_window", nullptr}, {"hidden_size", 5120}, {"head_dim", 128}}));
    CHECK(nemo.architecture == "mistral");
    CHECK(nemo.sliding_window == 0);
    CHECK(nemo.head_dim == 128);
    CHECK_FALSE(nemo.qkv_bias);
  }
  SUBCASE("Qwen 2") {
    const json qwen = {{"use_sliding_window", false}, {"sliding_window", 32768}, {"max_window_layers", 28}};
    const llama::ModelConfig config = load(of("Qwen2ForCausalLM", qwen));
    CHECK(config.qkv_bias);
    CHECK_FALSE(config.o_bias);
    CHECK_FALSE(config.qk_norm);
    CHECK(config.sliding_window == 0);
    const json all = with(qwen, {{"use_sliding_window", true}, {"max_window_layers", 0}});
    CHECK(load(of("Qwen2ForCausalLM", all)).sliding_window == 32768);
    const json none = with(qwen, {{"use_sliding_window", true}, {"max_window_layers", 32}});
    CHECK(load(of("Qwen2ForCausalLM", none)).sliding_window == 0);
    const json some = with(qwen, {{"use_sliding_window", true}});
    CHECK_THROWS_WITH_AS(load(of("Qwen2ForCausalLM", some)), Contains("max_window_layers is 28"), llama::Error);
  }
  SUBCASE("Qwen 3") {
    const llama::ModelConfig config = load(of("Qwen3ForCausalLM", {{"head_dim", 64}, {"attention_bias", false}}));
    CHECK(config.qk_norm);
    CHECK_FALSE(config.qkv_bias);
    CHECK(config.head_dim == 64);
  }
  SUBCASE("without architectures") {
    CHECK(load(of("", {{"architectures", nullptr}, {"model_type", "qwen3"}})).qk_norm);
  }
}

TEST_CASE("windows, RoPE and scales of Gemma are read from files of every age") {
  const json gemma = with(of("Gemma3ForCausalLM"), {{"hidden_act", nullptr},
                                                    {"hidden_activation", "gelu_pytorch_tanh"},
                                                    {"num_hidden_layers", 7},
                                                    {"sliding_window", 512},
                                                    {"query_pre_attn_scalar", 64},
                                                    {"rope_theta", 1000000.0},
                                                    {"tie_word_embeddings", nullptr}});
  const auto check = [](const json& changed, float local, float global) {
    CAPTURE(changed.dump());
    const llama::ModelConfig config = load(changed);
    CHECK(config.activation == llama::Activation::kGelu);
    CHECK(config.offset_norms);
    CHECK(config.output_norms);
    CHECK(config.qk_norm);
    CHECK(config.tied_embeddings);
    CHECK(config.embedding_scale == 64.0F);
    CHECK(config.attention_scale == 0.125F);
    for (int layer = 0; layer < 7; ++layer) CHECK(config.window_of(layer) == (layer == 5 ? 0 : 512));
    CHECK(config.window_inv_freq.at(1) == doctest::Approx(std::pow(local, -2.0 / 128)));
    CHECK(config.inv_freq.at(1) == doctest::Approx(global));
  };
  const auto global = static_cast<float>(std::pow(1e6, -2.0 / 128));
  check(gemma, 10000.0F, global);
  check(with(gemma, {{"rope_scaling", {{"rope_type", "linear"}, {"factor", 8.0}}}, {"sliding_window_pattern", 6}}),
        10000.0F, global / 8.0F);
  check(with(gemma, {{"rope_parameters",
                      {{"full_attention", {{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 1000000.0}}},
                       {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 500.0}}}}},
                     {"layer_types",
                      json::array({"sliding_attention", "sliding_attention", "sliding_attention", "sliding_attention",
                                   "sliding_attention", "full_attention", "sliding_attention"})}}),
        500.0F, global / 8.0F);
  const llama::ModelConfig second = load(with(
      gemma,
      {{"architectures", {"Gemma2ForCausalLM"}}, {"attn_logit_softcapping", 50.0}, {"final_logit_softcapping", 30.0}}));
  CHECK_FALSE(second.qk_norm);
  CHECK(second.attention_softcap == 50.0F);
  CHECK(second.logit_softcap == 30.0F);
  CHECK(second.window_inv_freq.empty());
  for (int layer = 0; layer < 7; ++layer) CHECK(second.window_of(layer) == (layer % 2 == 0 ? 512 : 0));
  CHECK_THROWS_WITH_AS(load(with(gemma, {{"hidden_activation", "silu"}})), Contains("expected \"gelu_pytorch_tanh\""),
                       llama::Error);
  CHECK(load(with(gemma, {{"attn_logit_softcapping", 50.0}})).attention_softcap == 0.0F);  // which Gemma 3 ignores
  CHECK_THROWS_WITH_AS(load(with(gemma, {{"use_bidirectional_attention", true}})), Contains("only causal attention"),
                       llama::Error);
  CHECK_THROWS_WITH_AS(load(with(gemma, {{"layer_types", json::array({"full_attention"})}})),
                       Contains("expected a list of 7 layers"), llama::Error);
  CHECK_THROWS_WITH_AS(load(with(gemma, {{"layer_types", json::array({1, 2, 3, 4, 5, 6, 7})}})),
                       Contains("expected sliding_attention or full_attention"), llama::Error);
}

TEST_CASE("a configuration that cannot be run is refused with the field and its value") {
  const auto refuses = [](const json& changes, const char* reason) {
    CAPTURE(changes.dump());
    CHECK_THROWS_WITH_AS(load(of("LlamaForCausalLM", changes)), Contains(reason), llama::Error);
    CHECK_THROWS_WITH_AS(load(of("LlamaForCausalLM", changes)), Contains("config.json"), llama::Error);
  };
  refuses({{"architectures", {"GPT2LMHeadModel"}}}, "architectures is [\"GPT2LMHeadModel\"], expected a Llama");
  refuses({{"architectures", json::array()}}, "expected a list of one name");
  refuses({{"architectures", nullptr}, {"model_type", "mamba"}}, "model_type is \"mamba\", expected a Llama");
  refuses({{"architectures", nullptr}, {"model_type", nullptr}}, "model_type is missing");
  refuses({{"hidden_act", "gelu"}}, "hidden_act is \"gelu\"");
  refuses({{"quantization_config", {{"bits", 4}}}}, "quantization_config is");
  for (const char* key : {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                          "max_position_embeddings"}) {
    refuses({{key, nullptr}}, (key + std::string(" is missing")).c_str());
    refuses({{key, 0}}, (key + std::string(" is 0, expected an integer from 1")).c_str());
    refuses({{key, -1}}, (key + std::string(" is -1")).c_str());
    refuses({{key, 4.5}}, (key + std::string(" is 4.5")).c_str());
    refuses({{key, "8"}}, (key + std::string(" is \"8\"")).c_str());
    refuses({{key, 4294967296}}, (key + std::string(" is 4294967296")).c_str());
    refuses({{key, UINT64_MAX}}, (key + std::string(" is 18446744073709551615")).c_str());
  }
  refuses({{"num_key_value_heads", 5}}, "num_key_value_heads is 5, which does not divide");
  refuses({{"num_key_value_heads", 64}}, "num_key_value_heads is 64, which does not divide");
  refuses({{"hidden_size", 4097}}, "hidden_size is 4097, which num_attention_heads, 32, does not divide");
  refuses({{"head_dim", 127}}, "head_dim is 127, expected an even number");
  refuses({{"head_dim", 0}}, "head_dim is 0");
  refuses({{"hidden_size", 32}}, "head_dim is 1, expected an even number");
  refuses({{"rms_norm_eps", nullptr}}, "rms_norm_eps is missing");
  refuses({{"rms_norm_eps", 0}}, "rms_norm_eps is 0");
  refuses({{"rms_norm_eps", "tiny"}}, "rms_norm_eps is \"tiny\"");
  refuses({{"rope_theta", -1.0}}, "rope_theta is -1.0");
  refuses({{"rope_scaling", "llama3"}}, "rope_scaling: expected an object, found string");
  refuses({{"partial_rotary_factor", 0.5}}, "partial_rotary_factor is 0.5");
  refuses({{"attention_bias", 1}}, "attention_bias is 1, expected true or false");
  refuses({{"layer_types", {"full_attention", "sliding_attention"}}}, "expected full_attention for every layer");
  refuses({{"bos_token_id", 128256}}, "bos_token_id is 128256");
  refuses({{"eos_token_id", {2, 128256}}}, "eos_token_id is [2,128256]");
  refuses({{"eos_token_id", "</s>"}}, "eos_token_id is \"</s>\"");
}

TEST_CASE("a config.json that is missing or no JSON object is refused") {
  const ScratchDirectory scratch;
  CHECK_THROWS_WITH_AS(llama::load_config(scratch.path()), Contains("has no config.json"), llama::Error);
  scratch.write("config.json", "");
  CHECK_THROWS_WITH_AS(llama::load_config(scratch.path()), Contains("not valid JSON"), llama::Error);
  scratch.write("config.json", "[]");
  CHECK_THROWS_WITH_AS(llama::load_config(scratch.path()), Contains("expected an object, found array"), llama::Error);
  scratch.write("config.json", R"({"vocab_size":1,"vocab_size":2})");
  CHECK_THROWS_WITH_AS(llama::load_config(scratch.path()), Contains("'vocab_size' occurs twice"), llama::Error);
}

}  // namespace config_test
