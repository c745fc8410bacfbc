#include <doctest/doctest.h>
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "eval_commands.h"
#include "program_run.h"
#include "support/build.h"
#include "support/scratch_directory.h"
#include "terminal/output.h"

namespace cli_test {
namespace {

using nlohmann::json;

/// What a benchmark says of one subject and of FP16.
void check_beside_fp16(const json& row) {
  check_numbers(row, {"microseconds", "min", "max", "bytes", "gigabytes_per_second", "fp16_microseconds", "fp16_min",
                      "fp16_max", "fp16_bytes", "fp16_gigabytes_per_second", "ratio",
                      "read_bandwidth_gigabytes_per_second", "bandwidth_fraction"});
  CHECK(row["min"] <= row["microseconds"]);
  CHECK(row["microseconds"] <= row["max"]);
  CHECK(row["ratio"].get<double>() ==
        doctest::Approx(row["fp16_microseconds"].get<double>() / row["microseconds"].get<double>()));
}

/// Empty if the program can time what runs on a GPU.
std::string why_no_timed_gpu() {
#if defined(KVQ_TEST_CUDA)
  const json info = run_json({"info"});
  return info["cuda_available"].get<bool>() ? "" : info["cuda_unavailable_because"].get<std::string>();
#else
  return "no CUDA support";
#endif
}

/// A step of two small layers.
Arguments tiny_decode(const Arguments& more) {
  return with({"bench", "decode", "--layers", "2", "--hidden", "128", "--mlp", "192", "--heads", "4", "--kv-heads", "2",
               "--head-dim", "64"},
              more);
}

}  // namespace

TEST_CASE("every command has help, and the program its version") {
  for (const Arguments& command : std::vector<Arguments>{{},
                                                         {"demo"},
                                                         {"info"},
                                                         {"doctor"},
                                                         {"generate"},
                                                         {"chat"},
                                                         {"eval"},
                                                         {"eval", "perplexity"},
                                                         {"eval", "generate"},
                                                         {"eval", "needle"},
                                                         {"eval", "error"},
                                                         {"eval", "eviction"},
                                                         {"bench"},
                                                         {"bench", "attend"},
                                                         {"bench", "append"},
                                                         {"bench", "linear"},
                                                         {"bench", "decode"},
                                                         {"quantize"},
                                                         {"train"},
                                                         {"train", "codebook"}}) {
    CHECK(run_text(with(command, {"--help"})).find("Usage: kvq") != std::string::npos);
  }
  CHECK(run_text({"--version"}).starts_with("kvq "));
}

TEST_CASE("kvq doctor says what memory's speed allows, and why there is no GPU") {
  const json found = run_json({"doctor", "--threads", "1"});
  const double speed = found["read_bandwidth_gigabytes_per_second"];
  CHECK(speed > 0.1);
  CHECK(found["memory_bytes"].get<uint64_t>() > uint64_t{1} << 28);
  CHECK(found["gpu"].get<std::string>().empty() != found["no_gpu_because"].get<std::string>().empty());
  for (const json& step : found["steps"]) {
    CHECK(step["seconds"].get<double>() == doctest::Approx(step["bytes"].get<double>() / (1e9 * speed)));
  }
  // 32 layers, 8 heads of 128, keys and values of 2 bytes
  const double fp16 = found["steps"][0]["bytes"].get<double>() - 2 * 7.5e9;
  CHECK(fp16 == doctest::Approx(32768.0 * 32 * 8 * 128 * 2 * 2).epsilon(0.01));
  CHECK(run_text({"doctor"}).find("GB/s") != std::string::npos);
}

TEST_CASE("small divergences keep two digits") {
  CHECK(cli::nats_text(0.02461) == "0.02461");
  CHECK(cli::nats_text(0.0000052) == "0.0000052");
  CHECK(cli::nats_text(0.00072) == "0.00072");
  CHECK(cli::nats_text(0.0) == "0.00000");
  CHECK(cli::nats_text(1e-12) == "0.000000000");
}

TEST_CASE("wrong usage exits with 2") {
  check_failure({}, 2, "subcommand");
  check_failure({"eval"}, 2, "subcommand");
  check_failure({"frobnicate"}, 2, "frobnicate");
  check_failure({"generate", "--model", kModel}, 2, "--prompt");
  check_failure({"eval", "perplexity", "--text", kText}, 2, "--model");
  check_failure(perplexity({"--threads", "0"}), 2, "--threads");
  check_failure(perplexity({"--context", "1"}), 2, "--context");
  check_failure(perplexity({"--context", "many"}), 2, "--context");
  check_failure(perplexity({"--context", "8193"}), 2, "8192 positions");
  check_failure(perplexity({"--windows", "-1"}), 2, "--windows");
  check_failure(perplexity({"--chunk", "0"}), 2, "--chunk");
  check_failure(needle({"--context", "99999"}), 2, "8192 positions");
  check_failure(needle({"--samples", "0"}), 2, "--samples");
  check_failure({"generate", "--model", kModel, "--prompt", "x", "--max-tokens", "8192"}, 2, "8192 positions");
  check_failure({"bench", "attend", "--heads", "7", "--kv-heads", "2"}, 2, "--heads 7");
  check_failure({"bench", "attend", "--device", "abacus"}, 2, "--device");
  for (const char* option : {"layer", "attention=naive", "head,attention="}) {
    check_failure({"bench", "attend", "--length", "64", "--kv", "commvq-1," + std::string(option)}, 2, option);
  }
  check_failure({"bench", "attend", "--length", "64", "--kv", "commvq-3"}, 2, "commvq-3");
  check_failure({"bench", "append", "--heads", "7", "--kv-heads", "2"}, 2, "--heads 7");
  check_failure({"bench", "append", "--tokens", "0"}, 2, "--tokens");
  check_failure({"bench", "append", "--length", "-1"}, 2, "--context");
  check_failure({"bench", "append", "--dtype", "f8"}, 2, "--dtype");
  check_failure({"bench", "append", "--batch", "2"}, 2, "--batch");
  check_failure({"generate", "--model", "", "--prompt", "x"}, 2, "--model: must not be empty");
  check_failure(perplexity({"--kv", "gs2@"}), 2, "--kv gs2@: there is no FILE behind the @");
}

TEST_CASE("what is written replaces regular files alone, behind links too") {
  const ScratchDirectory scratch;
  const std::string pipe = (scratch.path() / "pipe").string();
  if (!kvq_test::make_pipe(pipe) || !kvq_test::can_make_links()) {
    MESSAGE("skipped: this system has no pipes among files, or no links");
    return;
  }
  const Arguments quantize{"quantize", "--model", kModel, "--scheme", "nuq-2", "--force", "--out"};
  check_failure(with(quantize, {pipe}), 1, "cannot write " + pipe + ": it is no regular file");
  const std::string file = scratch.write("file", "old").string();
  std::filesystem::create_symlink(file, scratch.path() / "link");
  run_text(with(quantize, {(scratch.path() / "link").string()}));
  CHECK(std::filesystem::is_symlink(scratch.path() / "link"));
  CHECK(std::filesystem::file_size(file) > 1000);
}

TEST_CASE("names of files may take more than ASCII") {
  const ScratchDirectory scratch;
  const std::filesystem::path model = scratch.path() / llama::path_of("größe-大");
  std::filesystem::create_directory(model);
  for (const char* file : {"config.json", "model.safetensors", "tokenizer.json"}) {
    kvq_test::link_or_copy(std::filesystem::path(kModel) / file, model / file);
  }
  const std::string weights = (scratch.path() / llama::path_of("poids-réduits-重")).string();
  run_text({"quantize", "--model", model.string(), "--scheme", "nuq-2", "--out", weights});
  CHECK(std::filesystem::file_size(llama::path_of(weights)) > 1000);
  const Arguments generate{"generate", "--model", model.string(), "--prompt", "größer", "--max-tokens", "2"};
  CHECK(run(with(generate, {"--weights", weights})).exit_code == 0);
  check_failure(with(generate, {"--weights", weights + "é"}), 1, weights + "é");
}

TEST_CASE("what is no number, or none of its kind, is refused everywhere") {
  const Arguments text{"generate", "--model", kModel, "--prompt", "x"};
  const Arguments plan{"plan", "--model", kModel};
  for (const char* value : {"nan", "inf", "-1", ""}) {
    CAPTURE(value);
    for (const char* option : {"--temperature=", "--top-p=", "--seed="}) {
      check_failure(with(text, {std::string(option) + value}), 2,
                    std::string(option).substr(0, std::string(option).size() - 1));
    }
    for (const char* option : {"--target-bits=", "--max-loss=", "--target-latency=", "--memory=", "--target-bytes="}) {
      check_failure(with(plan, {std::string(option) + value}), 2,
                    std::string(option).substr(0, std::string(option).size() - 1));
    }
  }
  check_failure(with(text, {"--seed", "18446744073709551616"}), 2, "--seed");
  check_failure(with(text, {"--seed", "1.5"}), 2, "--seed");
}

TEST_CASE("a KV format that this build does not have is refused by name") {
  for (const char* spec : {"int5", "gs5", "gt4", "gs2+hadamard", "int4+nocentre", "gt2/", "moqa", "int4+lru:128", ""}) {
    check_failure(perplexity({"--kv", spec}), 2, "--kv");
    check_failure({"bench", "attend", "--length", "64", "--kv", spec}, 2, "--kv");
    check_failure({"bench", "append", "--length", "64", "--kv", spec}, 2, "--kv");
  }
}

TEST_CASE("files that cannot be used exit with 1 and are named") {
  const ScratchDirectory scratch;
  const std::string empty = scratch.write("empty.txt", "").string();
  const std::string brief = scratch.write("brief.txt", "A few words.").string();
  const std::string bad_policy = scratch.write("bad.yaml", "version: 1\nkeys: [").string();
  const std::string absent = (scratch.path() / "absent").string();
  check_failure(perplexity({"--kv", "commvq:" + absent}), 1, absent);
  check_failure(perplexity({"--kv", "commvq:" + brief}), 1, brief);
  const auto with_text = [](const std::string& text) {
    return Arguments{"eval", "perplexity", "--model", kModel, "--text", text};
  };
  check_failure(with_text(absent), 1, absent);
  check_failure(with_text(kModel), 1, "is a directory");
  check_failure(with_text(empty), 1, "empty");
  check_failure(with_text(brief), 1, "fewer than one window");
  check_failure(perplexity({"--kv", absent + ".yaml"}), 1, absent);
  check_failure(perplexity({"--kv", bad_policy}), 1, bad_policy);
  check_failure(perplexity({"--kv", kModel}), 1, "is a directory");
  check_failure(needle({"--text", absent}), 1, absent);
  check_failure({"generate", "--prompt", "x", "--model", absent}, 1, absent);
  check_failure({"generate", "--prompt", "x", "--model", brief}, 1, brief);
  check_failure({"generate", "--prompt", "x", "--model", scratch.path().string()}, 1, "has no config.json");
  check_failure({"generate", "--prompt", "x", "--model", kModel + "/config.json"}, 1, "give the directory");
}

TEST_CASE("a device, instruction set or amount of memory that is not here exits with 1") {
  check_failure({"info", "--isa", "mmx"}, 1, "mmx");
  check_failure({"bench", "attend", "--length", "16777216", "--batch", "4096"}, 1, "memory");
  check_failure({"bench", "append", "--length", "16777216", "--kv-heads", "4096", "--heads", "4096"}, 1, "memory");
}

TEST_CASE("all that is timed is timed on the GPU, or the reason why it is not exits with 1") {
  const Arguments layer{"--heads", "8", "--kv-heads", "2", "--length", "1024", "--kv", "int8"};
  const Arguments linear{"--shape", "1024x512", "--scheme", "tcx-3"};
  const std::vector<Arguments> commands{with({"bench", "attend"}, layer), with({"bench", "append"}, layer),
                                        with({"bench", "linear"}, linear),
                                        with({"bench", "linear", "--single-calls"}, linear)};
  const std::string reason = why_no_timed_gpu();
  for (const Arguments& command : commands) {
    const std::string what = command[1];
    CAPTURE(what);
    const Arguments on_gpu = with(command, {"--device", "cuda"});
    if (!reason.empty()) {
      check_failure(on_gpu, 1, reason);
      continue;
    }
    const json result = run_json(on_gpu);
    check_numbers(result,
                  {"microseconds", "bytes", "fp16_microseconds", "ratio", "read_bandwidth_gigabytes_per_second"});
    CHECK(result["device"] == "cuda");
    CHECK(result["microseconds"].get<double>() > 0.0);
    CHECK(result["repetitions"].get<int>() >= 30);
    if (what != "attend") CHECK(result["dtype"] == "f16");
    if (what == "linear") CHECK(result["timing"] == (command[2] == "--single-calls" ? "calls" : "graph"));
  }
}

TEST_CASE("a GPU's fastest kernels are measured once and kept in a file") {
  const ScratchDirectory scratch;
  const std::string file = (scratch.path() / "kernels.txt").string();
  const Arguments command{"bench", "linear", "--shape", "1024x512", "--scheme", "tcx-3", "--tuning", file};
  check_failure(command, 2, "--device cuda");
  CHECK(!std::filesystem::exists(file));
  const Arguments on_gpu = with(command, {"--device", "cuda"});
  const std::string reason = why_no_timed_gpu();
  if (!reason.empty()) return check_failure(on_gpu, 1, reason);
  run_json(on_gpu);
  const std::string measured = read_file(file);
  CHECK(measured.find("\ttcx-3\t1024\t512\t1\t") != std::string::npos);
  CHECK(measured.find("\tfp16\t1024\t512\t1\t") != std::string::npos);
  run_json(on_gpu);
  CHECK(read_file(file) == measured);
  const std::string damaged = scratch.write("damaged.txt", measured + "more\n").string();
  check_failure({"bench", "linear", "--device", "cuda", "--tuning", damaged}, 1, damaged);
}

TEST_CASE("steps of decoding are captured in a graph on the GPU, or the reason why they are not exits with 1") {
  const Arguments on_gpu = tiny_decode({"--length", "100", "--kv", "gs2", "--kv", "int4", "--device", "cuda"});
  const std::string reason = why_no_timed_gpu();
  if (!reason.empty()) return check_failure(on_gpu, 1, reason);
  const json result = run_json(on_gpu);
  CHECK(result["timing"] == "graph");
  REQUIRE(result["rows"].size() == 2);
  for (const json& row : result["rows"]) {
    CHECK(row["milliseconds"].get<double>() > 0.0);
    CHECK(row["ratio"].get<double>() > 0.0);
  }
  CHECK(run_json(tiny_decode({"--device", "cuda"}))["repetitions"].get<int>() >= 30);
}

TEST_CASE("a kind of device that does not exist exits with 2") {
  const Arguments generate{"generate", "--model", kModel, "--prompt", "x"};
  for (const Arguments& arguments :
       {generate, perplexity({}), needle({}), Arguments{"demo"}, Arguments{"bench", "attend"}}) {
    check_failure(with(arguments, {"--device", "tpu"}), 2, "--device: tpu");
    check_failure(with(arguments, {"--device-index", "-1", "--device", "cuda"}), 2, "--device-index");
  }
}

TEST_CASE("models run on the GPU as on the CPU, or the reason why they do not exits with 1") {
  const json reference = json::parse(contents(kModel + "/reference.json"));
  const Arguments on_gpu{"--device", "cuda"};
  const Arguments generate{"generate", "--model", kModel, "--prompt", reference["greedy_prompt"], "--max-tokens", "5"};
  const Arguments find_needle = needle({"--context", "256", "--samples", "2"});

  const json info = run_json({"info"});
  if (!info["cuda_available"].get<bool>()) {
    const std::string reason = info["cuda_unavailable_because"];
    for (const Arguments& arguments :
         {generate, perplexity({}), generation({}), find_needle, Arguments{"demo", "--quick"},
          with(generate, {"--weights", "packed.safetensors"})}) {
      check_failure(with(arguments, on_gpu), 1, reason);
    }
    MESSAGE("skipped on the GPU: " << reason);
    return;
  }
  const json text = run_json(with(generate, on_gpu));
  CHECK(text["device"] == "cuda");
  CHECK(text["tokens"] == run_json(generate)["tokens"]);
  CHECK(run_json(with(find_needle, on_gpu))["accuracy"] == 1.0);
  CHECK(run_json(with({"demo", "--quick"}, on_gpu))["formats"].size() == 16);
  // Integer codes at the border of two steps may fall on either side.
  const std::map<std::string, double> tolerances{{"fp16", 1e-3}, {"int8", 1e-3}, {"int4", 5e-3}};
  for (const auto& kv : tolerances) {
    CAPTURE(kv.first);
    const Arguments arguments = perplexity({"--context", "256", "--windows", "2", "--kv", kv.first});
    const json cpu = run_json(arguments);
    const json gpu = run_json(with(arguments, on_gpu));
    CHECK(gpu["perplexity"].get<double>() == doctest::Approx(cpu["perplexity"].get<double>()).epsilon(kv.second));
    CHECK(gpu["tokens"] == cpu["tokens"]);
    CHECK(gpu["tokens_per_second"].get<double>() > 0.0);
  }
  const Arguments evicting{"eval",      "eviction", "--model",   kModel, "--text",    kModel + "/sample.txt",
                           "--methods", "adasnap",  "--budgets", "96",   "--context", "512",
                           "--windows", "1",        "--needles", "2",    "--kv",      "int4"};
  const json evicted = run_json(with(evicting, on_gpu))["rows"];
  const json evicted_on_cpu = run_json(evicting)["rows"];
  REQUIRE(evicted.size() == 2);
  for (size_t i = 0; i < evicted.size(); ++i) {
    CHECK(evicted[i]["perplexity"].get<double>() ==
          doctest::Approx(evicted_on_cpu[i]["perplexity"].get<double>()).epsilon(0.02));
    CHECK(evicted[i]["attention_error"].get<double>() ==
          doctest::Approx(evicted_on_cpu[i]["attention_error"].get<double>()).epsilon(0.02));
  }
  const json errors = run_json(with({"eval", "error", "--model", kModel, "--text", kModel + "/sample.txt", "--kv",
                                     "int4", "--context", "256", "--windows", "1"},
                                    on_gpu));
  CHECK(errors["key_error"].get<double>() > 0.0);
  CHECK(errors["key_error"].get<double>() < 0.01);
  const json lost = run_json(with(compared({"--context", "256", "--windows", "1", "--kv", "int4"}), on_gpu));
  CHECK(lost["kl_mean"].get<double>() > 0.0);
  CHECK(lost["kl_mean"].get<double>() < 0.05);
  CHECK(lost["top1_agreement"].get<double>() > 0.9);
  const Arguments same{"--prompts", "1", "--prompt-tokens", "64", "--tokens", "8", "--kv", "int8", "--against", "int8"};
  CHECK(run_json(with(generation(same), on_gpu))["never_differ"] == 1.0);
}

TEST_CASE("models on packed weights run on the GPU as on the CPU") {
  const json info = run_json({"info"});
  if (!info["cuda_available"].get<bool>()) {
    MESSAGE("skipped: " << info["cuda_unavailable_because"].get<std::string>());
    return;
  }
  const Arguments on_gpu{"--device", "cuda"};
  const ScratchDirectory scratch;
  // The CPU rounds the inputs of rotated layers to 8 bits, which changes the perplexity by 0.1 %; the GPU to FP16.
  const std::map<std::string, double> tolerances{{"fp16", 1e-3}, {"nuq-4", 3e-3}, {"tcx-3", 3e-3}};
  for (const auto& each : tolerances) {
    const std::string& scheme = each.first;
    CAPTURE(scheme);
    const std::string file = (scratch.path() / (scheme + ".safetensors")).string();
    run_json({"quantize", "--model", kModel, "--scheme", scheme, "--out", file});
    const Arguments arguments = perplexity({"--weights", file, "--context", "256", "--windows", "2"});
    const json cpu = run_json(arguments);
    const json gpu = run_json(with(arguments, on_gpu));
    CHECK(gpu["device"] == "cuda");
    CHECK(gpu["perplexity"].get<double>() == doctest::Approx(cpu["perplexity"].get<double>()).epsilon(each.second));
    const json text = run_json({"generate", "--model", kModel, "--weights", file, "--prompt", "Once", "--kv", "gs2",
                                "--max-tokens", "40", "--device", "cuda"});
    CHECK(text["generated_tokens"].get<int>() > 0);
  }
}

TEST_CASE("output that cannot be written exits with 1") {
  if (kvq_test::kFullOutput == nullptr) {
    MESSAGE("skipped: this system has no output that is always full");
    return;
  }
  const Outcome outcome = run({"info"}, kvq_test::kFullOutput);
  CHECK(outcome.exit_code == 1);
  CHECK(outcome.err == "kvq: cannot write to standard output\n");
  CHECK(run({"generate", "--model", kModel, "--prompt", "He", "--max-tokens", "2"}, kvq_test::kFullOutput).exit_code ==
        1);
}

TEST_CASE("info names the backend, and the GPU or why there is none") {
  const json info = run_json({"info", "--threads", "2"});
  CHECK(info["backend"] == "cpu");
  CHECK(info["threads"] == 2);
  const auto available = info["isa_available"].get<std::vector<std::string>>();
  CHECK(std::ranges::find(available, info["isa"].get<std::string>()) != available.end());
  if (info["cuda_available"].get<bool>()) {
    CHECK(info["cuda_unavailable_because"] == "");
    CHECK(info["cuda_device"].is_string());
    check_numbers(info, {"cuda_devices", "cuda_memory_bytes", "cuda_compute_capability", "cuda_driver_version"});
  } else {
    CHECK(info["cuda_unavailable_because"] != "");
    CHECK(info["cuda_devices"] == 0);
    CHECK(info["cuda_device"].is_null());
  }
  CHECK(run_json({"info", "--isa", available.back()})["isa"] == available.back());
}

TEST_CASE("generate continues a text, the same way for the same seed") {
  const json reference = json::parse(contents(kModel + "/reference.json"));
  const auto expected = reference["greedy_ids_with_bos"].get<std::vector<int32_t>>();
  const std::string prompt = reference["greedy_prompt"];
  const Arguments common{"generate", "--model", kModel, "--prompt", prompt, "--max-tokens", "5"};
  const json greedy = run_json(common);
  check_numbers(greedy, {"prompt_tokens", "generated_tokens", "tokens_per_second", "kv_bits", "kv_bytes"});
  const auto begin = expected.begin() + greedy["prompt_tokens"].get<int>();
  CHECK(greedy["tokens"].get<std::vector<int32_t>>() == std::vector<int32_t>(begin, begin + 5));

  const Outcome shown = run(common);
  CHECK(shown.exit_code == 0);
  CHECK(shown.out == prompt + greedy["text"].get<std::string>() + "\n");
  CHECK(shown.err.starts_with("5 tokens, "));
  CHECK_MESSAGE(shown.err.find("bits per scalar (plain FP16: ") != std::string::npos, shown.err);

  const Arguments one_token{"generate", "--model", kModel, "--prompt", prompt, "--max-tokens", "1"};
  CHECK(run(one_token).err.starts_with("1 token; "));  // which the prompt's logits gave: no pace
  CHECK(run_json(one_token)["tokens_per_second"].is_null());

  const auto random = [&common](const char* seed) {
    return run_json(with(common, {"--temperature", "1.5", "--top-p", "1", "--seed", seed}))["tokens"];
  };
  const json first = random("3");
  CHECK(random("3") == first);
  CHECK(random("4") != first);
}

TEST_CASE("generate reads a prompt from a file and ends before a text that it is to stop at") {
  const ScratchDirectory scratch;
  const std::string prompt = "The old house";
  const std::string file = scratch.write("prompt.txt", prompt).string();
  const Arguments common{"generate", "--model", kModel, "--max-tokens", "24"};
  const json whole = run_json(with(common, {"--prompt", prompt}));
  const std::string text = whole["text"];
  CHECK(run_json(with(common, {"--prompt-file", file}))["text"] == text);
  // Standard input, byte by byte: with what Windows takes for ends of lines and of files.
  const std::string odd = scratch.write("odd.txt", "one\r\ntwo\x1athree").string();
  const Outcome read = run(with(common, {"--prompt-file", "-", "--json"}), "", odd);
  CAPTURE(read.err);
  REQUIRE(read.exit_code == 0);
  const json from_file = run_json(with(common, {"--prompt-file", odd}));
  CHECK(json::parse(read.out)["text"] == from_file["text"]);
  CHECK(json::parse(read.out)["prompt_tokens"] == from_file["prompt_tokens"]);
  // Whatever is in the middle of it, across tokens.
  const std::string stop = text.substr(text.size() / 2, 5);
  const json cut = run_json(with(common, {"--prompt-file", file, "--stop", "never in a book \x01", "--stop", stop}));
  CHECK(cut["text"] == text.substr(0, text.find(stop)));
  CHECK(cut["generated_tokens"] < whole["generated_tokens"]);
  // The end of a text that a stop could have begun with is there.
  CHECK(run_json(with(common, {"--prompt", prompt, "--stop", text.substr(text.size() - 2) + "\x01"}))["text"] == text);
  check_failure(with(common, {"--prompt", prompt, "--prompt-file", file}), 2, "--prompt");
  check_failure(common, 2, "--prompt");
  check_failure(with(common, {"--prompt-file", file + "x"}), 1, file + "x");
  check_failure(with(common, {"--prompt", prompt, "--stop", ""}), 2, "must not be empty");
}

TEST_CASE("generate says when a text is so short that most of it is still FP16") {
  const auto last_line = [](const char* tokens, const char* format) {
    return run({"generate", "--model", kModel, "--prompt", "The old house", "--max-tokens", tokens, "--kv", format})
        .err;
  };
  // 6 layers and 2 KV heads: one page each.
  CHECK(last_line("8", "int4").find("of which 12 of 12 pages of 32 tokens are in FP16") != std::string::npos);
  CHECK(last_line("8", "fp16").find("pages") == std::string::npos);
  CHECK(last_line("300", "int4").find("pages") == std::string::npos);
}

TEST_CASE("bench attend measures a format and FP16 in the same run") {
  const Arguments common{"bench", "attend", "--length", "100", "--heads", "4", "--kv-heads", "2", "--head-dim", "64"};
  const json one = run_json(common);
  check_beside_fp16(one);
  CHECK(one["bytes"] < one["fp16_bytes"]);

  const json rows = run_json(with(common, {"--kv", "int8", "--kv", "int2+hadamard", "--batch", "3"}))["rows"];
  REQUIRE(rows.size() == 2);
  CHECK(rows[0]["kv"] == "int8");
  CHECK(rows[1]["kv"] == "int2+hadamard");
  CHECK(rows[1]["bytes"] < rows[0]["bytes"]);

  const json prompt = run_json(with(common, {"--queries", "100"}));
  CHECK(prompt["queries"] == 100);
  CHECK(prompt["microseconds"] > one["microseconds"]);
  check_failure(with(common, {"--queries", "101"}), 2, "--queries 101: there are only 100 tokens");
}

TEST_CASE("bench measures pages without scales of channels, or with random ones") {
  const Arguments layer{"--length", "400", "--heads", "4", "--kv-heads", "2", "--head-dim", "64"};
  const json rows = run_json(
      with(with({"bench", "attend"}, layer), {"--kv", "gs2", "--kv", "gs2@none", "--kv", "gs2@scales"}))["rows"];
  REQUIRE(rows.size() == 3);
  for (const json& row : rows) {
    CHECK(row["bytes"] == rows[0]["bytes"]);
    CHECK(row["bytes"].get<double>() < 0.5 * row["fp16_bytes"].get<double>());  // none waits in FP16
  }
  for (const char* spec : {"gs2@first", "gs2@weights", "int4@first", "gs2-16@first", "moqae@weights"}) {
    CAPTURE(spec);
    const std::string reason = std::string("--kv ") + spec + ": @first and @weights find nothing in random numbers";
    for (const char* command : {"attend", "append"}) {
      check_failure(with(with({"bench", command}, layer), {"--kv", spec}), 2, reason);
    }
  }
  check_failure(with(with({"bench", "attend"}, layer), {"--kv", "gs2@scales@none"}), 2, "says twice");
  const json decoded = run_json(tiny_decode({"--kv", "gs2", "--kv", "gs2@none", "--length", "400"}))["rows"];
  CHECK(decoded[0]["cache_bytes"] == decoded[1]["cache_bytes"]);
  for (const char* spec : {"gs2@first", "gs2@weights"}) {
    check_failure(tiny_decode({"--kv", spec, "--length", "100"}), 2, "find nothing in random numbers");
  }
}

TEST_CASE("bench attend measures several lengths in one run") {
  const json rows = run_json({"bench", "attend", "--length", "64,256", "--heads", "4", "--kv-heads", "2", "--head-dim",
                              "64", "--kv", "int8", "--kv", "int4"})["rows"];
  REQUIRE(rows.size() == 4);
  CHECK(rows[0]["length"] == 64);
  CHECK(rows[3]["length"] == 256);
  CHECK(rows[3]["kv"] == "int4");
  CHECK(rows[0]["bytes"] < rows[2]["bytes"]);
}

TEST_CASE("bench append measures decoding in cycles that seal a page, and prompts on sequences of their own") {
  const Arguments common{"bench", "append", "--heads", "4", "--kv-heads", "2", "--head-dim", "64"};
  const json one = run_json(with(common, {"--length", "100", "--kv", "int4"}));
  check_numbers(one, {"microseconds", "mean_microseconds", "min", "max", "host_microseconds", "bytes",
                      "gigabytes_per_second", "tokens_per_second", "fp16_microseconds", "fp16_mean_microseconds",
                      "fp16_bytes", "ratio", "read_bandwidth_gigabytes_per_second", "bandwidth_fraction"});
  CHECK(one["min"] <= one["microseconds"]);
  CHECK(one["microseconds"] <= one["max"]);
  CHECK(one["repetitions"].get<int>() % 32 == 0);
  CHECK(one["dtype"] == "f32");
  // A token is read in FP32 and written in FP16, keys and values of 2 heads of 64; sealing it writes it once more.
  CHECK(one["fp16_bytes"] == 2 * 2 * 64 * (4 + 2));
  CHECK(one["bytes"] > one["fp16_bytes"]);
  CHECK(one["tokens_per_second"].get<double>() == doctest::Approx(1e6 / one["mean_microseconds"].get<double>()));

  const Arguments prompt{"--length", "0", "--kv", "int8", "--kv", "int2", "--tokens", "320", "--dtype", "bf16"};
  const json rows = run_json(with(common, prompt))["rows"];
  REQUIRE(rows.size() == 2);
  CHECK(rows[0]["kv"] == "int8");
  CHECK(rows[0]["fp16_bytes"] == 320 * 2 * 2 * 64 * (2 + 2));
  CHECK(rows[1]["bytes"] < rows[0]["bytes"]);
  CHECK(rows[0]["bytes"] < rows[0]["fp16_bytes"]);
}

TEST_CASE("bench compress times what evicts tokens, and refuses what does not") {
  const Arguments common{"bench",   "compress", "--length",   "300", "--layers",   "2",
                         "--heads", "4",        "--kv-heads", "2",   "--head-dim", "64"};
  const json rows = run_json(with(common, {"--kv", "int4+adasnap:100", "--kv", "fp16+streaming:64"}))["rows"];
  REQUIRE(rows.size() == 2);
  CHECK(rows[0]["kv"] == "int4+adasnap:100");
  for (const json& row : rows) {
    check_numbers(row, {"microseconds", "microseconds_a_layer", "min", "max", "bytes_before", "bytes_after"});
    CHECK(row["bytes_after"].get<double>() < 0.6 * row["bytes_before"].get<double>());
    CHECK(row["microseconds_a_layer"].get<double>() == doctest::Approx(row["microseconds"].get<double>() / 2));
  }
  const json shares = run_json(with(common, {"--kv", "int4+snapkv:25%", "--kv", "int4+snapkv:75"}))["rows"];
  CHECK(shares[0]["bytes_after"] == shares[1]["bytes_after"]);
  check_failure(with(common, {"--kv", "int4"}), 2, "--kv int4 evicts nothing");
}

TEST_CASE("bench recode times a smaller format's pages made of others") {
  const Arguments common{"bench",   "recode", "--length",   "300", "--layers",   "2",
                         "--heads", "4",      "--kv-heads", "2",   "--head-dim", "64"};
  const json rows = run_json(with(common, {"--from", "fp16", "--from", "int8", "--kv", "int8", "--kv", "gs2"}))["rows"];
  REQUIRE(rows.size() == 3);  // nothing from int8 to int8
  CHECK(rows[0]["from"] == "fp16");
  CHECK(rows[2]["from"] == "int8");
  CHECK(rows[2]["kv"] == "gs2");
  for (const json& row : rows) {
    check_numbers(row, {"microseconds", "microseconds_a_page", "min", "max", "bytes_before", "bytes_after"});
    CHECK(row["pages"] == 2 * 2 * (300 / 32));  // of heads and layers, but the open ones
    CHECK(row["bytes_after"].get<double>() < 0.7 * row["bytes_before"].get<double>());
  }
  check_failure(with(common, {"--from", "int4", "--kv", "int4"}), 2, "--from and --kv name the same format");
}

TEST_CASE("bench decode measures steps of a model's shape beside FP16, with a cache and without") {
  const Arguments common = tiny_decode({});
  const json one = run_json(common);
  check_numbers(one, {"milliseconds", "min", "max", "tokens_per_second", "weight_bytes", "gigabytes_per_second",
                      "fp16_milliseconds", "fp16_tokens_per_second", "fp16_weight_bytes", "ratio", "repetitions"});
  CHECK(one["scheme"] == "tcx-3");
  CHECK(one["timing"] == "calls");
  CHECK(one["cache_bytes"] == 0);
  // q, k and v of 4 and 2 heads of 64, o, gate, up and down: twice.
  const double weights = 2.0 * (256 * 128 + 2 * 128 * 128 + 128 * 256 + 3 * 192 * 128);
  CHECK(one["fp16_weight_bytes"].get<double>() == doctest::Approx(2.0 * weights).epsilon(0.01));
  CHECK(one["weight_bytes"].get<double>() > 3.0 / 8.0 * weights);
  CHECK(one["ratio"].get<double>() ==
        doctest::Approx(one["fp16_milliseconds"].get<double>() / one["milliseconds"].get<double>()));

  const Arguments more{"--scheme", "nuq-4", "--scheme", "fp16",    "--length", "400",     "--kv",
                       "gs2",      "--kv",  "int4",     "--batch", "3",        "--dtype", "f16"};
  const json all = run_json(with(common, more));
  const json& rows = all["rows"];
  REQUIRE(rows.size() == 4);
  CHECK(all["dtype"] == "f16");
  CHECK(rows[1]["scheme"] == "nuq-4");
  CHECK(rows[1]["kv"] == "int4");
  CHECK(rows[2]["scheme"] == "fp16");
  CHECK(rows[2]["kv"] == "gs2");
  CHECK(rows[2]["weight_bytes"] == rows[0]["fp16_weight_bytes"]);
  CHECK(rows[0]["cache_bytes"] < rows[1]["cache_bytes"]);
  // Keys and values of 2 heads of 64 in 2 layers of 3 sequences, of whole pages.
  CHECK(rows[0]["fp16_cache_bytes"].get<double>() >= 400.0 * 2 * 2 * 64 * 2 * 2 * 3);
  CHECK(rows[0]["tokens_per_second"].get<double>() == doctest::Approx(3e3 / rows[0]["milliseconds"].get<double>()));
  CHECK(run_text(with(common, more)).find("appending and attention over 400 tokens") != std::string::npos);

  check_failure(tiny_decode({"--kv", "int4"}), 2, "--kv int4 needs --context");
  check_failure(tiny_decode({"--kv", "int4+adasnap:64", "--length", "100"}), 2, "--kv int4+adasnap:64");
  check_failure({"bench", "decode", "--hidden", "100"}, 2, "--hidden");
  check_failure({"bench", "decode", "--heads", "7", "--kv-heads", "2"}, 2, "--heads 7");
  check_failure({"bench", "decode", "--layers", "1024", "--mlp", "1048576"}, 1, "memory");
}

TEST_CASE("bench linear measures schemes and FP16 in the same run") {
  const Arguments common{"bench", "linear", "--shape", "250x128"};
  const json one = run_json(common);
  check_beside_fp16(one);
  check_numbers(one, {"bits"});
  CHECK(one["scheme"] == "nuq-4");
  CHECK(one["out"] == 250);
  CHECK(one["in"] == 128);
  CHECK(one["bytes"].get<double>() == doctest::Approx(one["bits"].get<double>() * 250 * 128 / 8));
  CHECK(one["fp16_bytes"].get<double>() >= 250 * 128 * 2);
  CHECK(one["dtype"] == "f32");
  CHECK(one["timing"] == "calls");

  const Arguments more{"--scheme", "vq-2.5", "--scheme", "tcq-2.75", "--batch", "3", "--dtype", "bf16"};
  const json rows = run_json(with(common, more))["rows"];
  REQUIRE(rows.size() == 2);
  CHECK(rows[0]["scheme"] == "vq-2.5");
  CHECK(rows[1]["scheme"] == "tcq-2.75");
  CHECK(rows[0]["bytes"] < rows[1]["bytes"]);

  for (const char* shape : {"250", "250x", "x128", "250x100", "0x128", "250x128x2", "1e3x128"}) {
    check_failure({"bench", "linear", "--shape", shape}, 2, std::string("--shape ") + shape);
  }
  check_failure({"bench", "linear", "--scheme", "int4"}, 2, "--scheme int4");
  check_failure({"bench", "linear", "--batch", "0"}, 2, "--batch");
  check_failure({"bench", "linear", "--shape", "16777216x1048576"}, 1, "memory");
}

TEST_CASE("the demo shows every format and fits a page") {
  const json demo = run_json({"demo", "--quick"});
  REQUIRE(demo["formats"].size() == 16);
  CHECK(demo["formats"][0]["kv"] == "fp16");
  CHECK(demo["formats"][1]["kv"] == "gs2");
  CHECK(demo["formats"][2]["kv"] == "gt2");
  CHECK(demo["formats"][3]["kv"] == "gs2-256");
  CHECK(demo["formats"][4]["kv"] == "gt2-256");
  for (const json& format : demo["formats"]) {
    check_numbers(format, {"perplexity", "rise_percent", "kv_bits", "kv_bytes", "fp16_kv_bytes", "accuracy",
                           "microseconds", "ratio", "fp16_perplexity"});
    const bool evicts = format["kv"] == "int4+adasnap:256";
    CHECK(format["second_half"] == evicts);
    CHECK((format["fp16_perplexity"] == demo["formats"][0]["perplexity"]) == !evicts);
    CHECK(std::abs(format["rise_percent"].get<double>()) < 25.0);
  }
  REQUIRE(demo["weights"].size() == 2);
  for (const json& row : demo["weights"]) {
    check_numbers(row, {"linear_weight_bits", "weight_bits", "bytes", "perplexity", "rise_percent", "seconds"});
    CHECK(row["scheme"] == "nuq-4");
    CHECK(std::abs(row["rise_percent"].get<double>()) < 25.0);
  }
  CHECK(demo["weights"][0]["kv"] == "fp16");
  CHECK(demo["weights"][1]["kv"] == "int4");
  CHECK(demo["generated"]["fp16"] != "");

  if (!kvq_test::kSmallRun) check_fits_page(run_text({"demo", "--quick"}));
}

}  // namespace cli_test
