#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kvq.hpp"
#include "letter_model.h"
#include "llama/mapped_file.h"
#include "llama/model.h"
#include "program_run.h"
#include "runs.h"
#include "support/safetensors_bytes.h"
#include "support/scratch_directory.h"
#include "tiny_model.h"

namespace train_codebook_test {
namespace {

using nlohmann::json;

class Workplace : public LetterModel {
 public:
  /// A command that takes a moment.
  Arguments train(const std::string& out, const Arguments& more = {}, const char* tokens = "400",
                  const char* bits = "1") const {
    return with({"train", "codebook", "--model", model(), "--text", path("text.txt"), "--bits", bits, "--tokens",
                 tokens, "--out", out},
                more);
  }
};

}  // namespace

TEST_CASE(
    "an observer sees keys and queries before RoPE, values, and what attention made of them, and changes nothing") {
  for (const TinyLayout& layout : tiny_layouts()) {
    CAPTURE(layout.name);
    const ScratchDirectory directory;
    TinyModel(layout).write(directory);
    const kvq::Context context = make_context();
    llama::Model model(directory.path(), 1);
    const std::vector<int32_t> tokens = random_tokens(5, TinyModel::kVocabulary);
    llama::Session plain(model, context, nullptr);
    const std::vector<float> expected = run_in_chunks(plain, tokens, 2);

    const size_t width = static_cast<size_t>(model.config().kv_heads) * static_cast<size_t>(model.config().head_dim);
    std::vector<std::vector<float>> k(static_cast<size_t>(model.config().n_layers));
    std::vector<std::vector<float>> v(k.size());
    std::vector<std::vector<float>> q(k.size());
    std::vector<std::vector<float>> attended(k.size());
    const size_t q_width = static_cast<size_t>(model.config().q_heads) * static_cast<size_t>(model.config().head_dim);
    llama::Session session(model, context, nullptr);
    session.observe([&](int32_t layer, const llama::ObservedAttention& seen) {
      const auto l = static_cast<size_t>(layer);
      const auto n = static_cast<size_t>(seen.n);
      k[l].insert(k[l].end(), seen.k, seen.k + n * width);
      v[l].insert(v[l].end(), seen.v, seen.v + n * width);
      q[l].insert(q[l].end(), seen.q, seen.q + n * q_width);
      attended[l].insert(attended[l].end(), seen.attended, seen.attended + n * q_width);
    });
    CHECK(run_in_chunks(session, tokens, 2) == expected);
    session.observe({});
    session.forward(tokens, false);
    for (size_t layer = 0; layer < k.size(); ++layer) {
      REQUIRE(k[layer].size() == tokens.size() * width);
      REQUIRE(v[layer].size() == tokens.size() * width);
      REQUIRE(attended[layer].size() == tokens.size() * q_width);
    }

    // The same numbers again give the same attention; the first token sees nothing but its own values.
    llama::Session again(model, context, nullptr);
    const auto dim = static_cast<size_t>(model.config().head_dim);
    for (size_t layer = 0; layer < k.size(); ++layer) {
      std::vector<float> out(q[layer].size());
      again.attend(static_cast<int32_t>(layer), static_cast<int32_t>(tokens.size()), q[layer].data(), k[layer].data(),
                   v[layer].data(), out.data());
      CHECK(out == attended[layer]);
      for (size_t i = 0; i < q_width; ++i) {
        const size_t kv_head = i / dim / (q_width / width);
        const float value = v[layer][kv_head * dim + i % dim];
        CHECK(std::abs(attended[layer][i] - value) <= 1e-3f * (1.0f + std::abs(value)));
      }
    }

    // At position 0 nothing is rotated: the same token anywhere has the same key in layer 0. It attends to itself
    // alone: what comes of it are the values.
    llama::Session first(model, context, nullptr);
    std::vector<float> alone;
    first.observe([&](int32_t layer, const llama::ObservedAttention& seen) {
      if (layer == 0) alone.assign(seen.k, seen.k + width);
    });
    first.forward(std::span(tokens).last(1), false);
    for (size_t i = 0; i < width; ++i) {
      CHECK(std::abs(alone[i] - k[0][(tokens.size() - 1) * width + i]) <= 1e-5f * (1.0f + std::abs(alone[i])));
    }
  }
}

TEST_CASE("models of other weights have other fingerprints, equal files the same") {
  std::vector<uint64_t> found;
  for (const TinyLayout& layout : tiny_layouts()) {
    const ScratchDirectory a;
    const ScratchDirectory b;
    TinyModel(layout).write(a);
    TinyModel(layout).write(b);
    found.push_back(llama::Model(a.path(), 1).weights().fingerprint);
    CHECK(found.back() == llama::Model(b.path(), 1).weights().fingerprint);
  }
  CHECK(found[0] != found[1]);
  CHECK(found[0] != found[2]);
}

TEST_CASE("codebooks are trained, written, and loaded with what the command reported") {
  const Workplace place;
  const std::string out = place.path("codes.safetensors");
  const json result = run_json(place.train(out, {"--scope", "head"}));
  check_numbers(result, {"bytes", "key_bits", "value_bits", "bits", "key_error", "value_error", "tokens", "seconds"});
  REQUIRE(result["layers"].size() == 2);
  for (const json& layer : result["layers"]) {
    check_numbers(layer, {"layer", "key_error", "value_error", "seconds"});
    CHECK(layer["key_error"].get<double>() < 0.5);
    CHECK(layer["value_error"].get<double>() < 0.5);
    CHECK(layer["resumed"] == false);
    REQUIRE(layer["key_stage_errors"].size() == 1);
    CHECK(layer["key_stage_errors"][0] == layer["key_error"]);
  }
  // Heads of 16: groups of 8 pairs, one stage of 64 codes; FP16 norms and scales.
  CHECK(result["key_bits"].get<double>() == doctest::Approx(6.0 / 8.0 + 16.0 / 16.0));
  CHECK(result["value_bits"].get<double>() == doctest::Approx(1.0 + 16.0 / 16.0));
  CHECK(!std::filesystem::exists(out + ".partial"));

  const kvq::Context context = make_context();
  const llama::MappedFile file(out);
  CHECK(result["bytes"] == file.bytes().size());
  const kvq::Codebook codebook = kvq::Codebook::load(context, file.bytes());
  const kvq_codebook_info info = codebook.describe();
  CHECK(info.layers_present == 2);
  CHECK(info.kv_heads == 2);
  CHECK(info.head_dim == 16);
  CHECK(info.key_stages == 1);
  CHECK(info.value_bits == 1);
  CHECK(info.value_scope == KVQ_SCOPE_HEAD);
  CHECK(info.tokens == 400);
  CHECK(result["tokens"] == 400);
  CHECK(info.key_error == doctest::Approx(result["key_error"].get<double>()));
  CHECK(info.model_id == llama::Model(place.model(), 1).weights().fingerprint);
  CHECK(std::string(info.note).find("text.txt") != std::string::npos);
  const std::vector<std::byte> again = codebook.save();
  CHECK(std::equal(again.begin(), again.end(), file.bytes().begin(), file.bytes().end()));

  const std::string table = run_text(place.train(place.path("again"), {"--scope", "head"}));
  CHECK(table.find("value error") != std::string::npos);
  CHECK(table.find(place.path("again")) != std::string::npos);
  CHECK(contents(place.path("again")) == contents(out));
}

TEST_CASE("values can be coded with a network, in a file that says so") {
  const Workplace place;
  const std::string out = place.path("codes.safetensors");
  const json result = run_json(place.train(out, {"--value-method", "network", "--value-rounds", "2"}));
  for (const json& layer : result["layers"]) CHECK(layer["value_error"].get<double>() < 0.5);
  const std::string file = contents(out);
  CHECK(file.find(R"("value_proposal":"network")") != std::string::npos);
  CHECK(file.find("layers.1.values.network.second_bias") != std::string::npos);
  CHECK(file.find("layers.1.values.proposal") == std::string::npos);
  const kvq::Context context = make_context();
  const kvq::Codebook codebook = kvq::Codebook::load(context, llama::MappedFile(out).bytes());
  CHECK(codebook.describe().layers_present == 2);
}

TEST_CASE("layers that an interrupted run finished are kept, and the rest gives the same file") {
  const Workplace place;
  const std::string out = place.path("codes.safetensors");
  const auto two_bits = [&](const Arguments& more) { return place.train(out, more, "400", "2"); };
  run_json(two_bits({}));
  const std::string whole = contents(out);

  // What is left of a run that was ended after one layer: the same file with the other taken out.
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, whole.data(), sizeof(header_bytes));
  const json header = json::parse(whole.substr(8, header_bytes));
  std::string data;
  json kept = {{"__metadata__", header["__metadata__"]}};
  for (const auto& [name, tensor] : header.items()) {
    if (!name.starts_with("layers.1.")) continue;
    const size_t begin = tensor["data_offsets"][0];
    const size_t end = tensor["data_offsets"][1];
    kept[name] = tensor;
    kept[name]["data_offsets"] = {data.size(), data.size() + end - begin};
    data += whole.substr(8 + header_bytes + begin, end - begin);
  }
  for (const char* field : {"tokens", "key_errors", "value_error"}) {
    kept["__metadata__"].erase(std::string("layers.0.") + field);
  }
  const std::string partial = place.write("codes.safetensors.partial", safetensors_bytes(kept.dump(), data));
  std::filesystem::remove(out);

  check_failure(place.train(out), 1, partial + " holds other work");
  check_failure(two_bits({"--seed", "2"}), 1, "seed");
  check_failure(two_bits({"--text", place.write("other.txt", "other")}), 1, "holds other work");
  const json resumed = run_json(two_bits({}));
  CHECK(resumed["layers"][0]["resumed"] == false);
  CHECK(resumed["layers"][1]["resumed"] == true);
  CHECK(contents(out) == whole);
  CHECK(!std::filesystem::exists(partial));
}

TEST_CASE("an interrupted training says so, and leaves what it finished") {
  const Workplace place;
  const std::string out = place.path("codes.safetensors");
  const Arguments arguments = place.train(out, {"--threads", "1"}, "2000");
  const Outcome outcome = run_until(arguments, [&] { return std::filesystem::exists(out + ".partial"); });
  if (outcome.exit_code == 0) return;  // it was faster than the signal
  CHECK(outcome.exit_code == 1);
  CHECK(outcome.err.find("interrupted") != std::string::npos);
  CHECK(std::filesystem::exists(out + ".partial"));
  CHECK(run_json(arguments)["layers"][0]["resumed"] == true);
}

TEST_CASE("several texts give equal shares, and a text that is too short what it has") {
  const Workplace place;
  const std::string brief = place.write("brief.txt", "afewletters");
  const json result = run_json(place.train(place.path("codes"), {"--text", brief}));
  CHECK(result["tokens"] == 400 + 11);
}

TEST_CASE("the GPU trains as the CPU does, or the reason why it does not exits with 1") {
  const Workplace place;
  const Arguments on_gpu = place.train(place.path("gpu.safetensors"), {"--device", "cuda"}, "2000");
  const json info = run_json({"info"});
  if (!info["cuda_available"].get<bool>()) {
    const std::string reason = info["cuda_unavailable_because"];
    check_failure(on_gpu, 1, reason);
    MESSAGE("skipped on the GPU: " << reason);
    return;
  }
  const json gpu = run_json(on_gpu);
  const json cpu = run_json(place.train(place.path("cpu.safetensors"), {}, "2000"));
  for (const char* error : {"key_error", "value_error"}) {
    CHECK(gpu[error].get<double>() == doctest::Approx(cpu[error].get<double>()).epsilon(0.05));
  }
  CHECK(gpu["tokens"] == cpu["tokens"]);
}

TEST_CASE("training that cannot be done is refused before it begins") {
  const Workplace place;
  const std::string out = place.path("codes.safetensors");
  const std::string model = place.model();
  const std::string text = place.path("text.txt");
  check_failure({"train"}, 2, "subcommand");
  check_failure({"train", "codebook", "--text", text, "--bits", "1", "--out", out}, 2, "--model");
  check_failure({"train", "codebook", "--model", model, "--bits", "1", "--out", out}, 2, "--text");
  check_failure({"train", "codebook", "--model", model, "--text", text, "--out", out}, 2, "--bits");
  check_failure({"train", "codebook", "--model", model, "--text", text, "--bits", "1"}, 2, "--out");
  check_failure({"train", "codebook", "--model", model, "--text", text, "--bits", "3", "--out", out}, 2, "--bits");
  check_failure(place.train(out, {"--scope", "token"}), 2, "--scope");
  check_failure(place.train(out, {"--value-method", "guess"}), 2, "--value-method");
  check_failure(place.train(out, {"--value-rounds", "1001"}), 2, "--value-rounds");
  check_failure(place.train(out, {"--threads", "0"}), 2, "--threads");
  check_failure(place.train(out, {"--text", place.write("empty.txt", "")}), 1, "empty");
  check_failure(place.train(out, {"--text", model}), 1, "is a directory");
  check_failure(place.train(place.path("absent/codes")), 1, "cannot write");
  check_failure(place.train(model), 1, "is a directory");
  check_failure(place.train(out, {}, "10"), 1, "10 tokens");
  check_failure(place.train(out, {}, "0"), 2, "--tokens");
}

}  // namespace train_codebook_test
