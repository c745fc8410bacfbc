// SPECs with trained files: formats that routers choose, codebooks, and eviction on top.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "eval_commands.h"
#include "program_run.h"
#include "support/scratch_directory.h"

namespace spec_test {
namespace {

using nlohmann::json;

const std::string kRouters = kModel + "/moqae.safetensors";
const std::string kCodebooks = kModel + "/commvq-2bit.safetensors";

json evaluate(const std::string& spec) {
  return run_json(perplexity({"--context", "512", "--windows", "1", "--kv", spec}));
}

}  // namespace

TEST_CASE("routed caches lie between their formats, and a policy file says the same as the short form") {
  const ScratchDirectory scratch;
  const std::string policy =
      scratch.write("routed.yaml", "version: 1\nsink: 1\nrouter: {experts: [fp16, int4, int2]}\n").string();
  const std::string int2 = scratch.write("int2.yaml", "version: 1\nkeys: int2\nvalues: int2\nsink: 1\n").string();
  const json routed = evaluate("moqae:" + kRouters);
  const json low = evaluate(int2);
  const json high = evaluate("fp16");
  CHECK(routed["kv_bits"].get<double>() > low["kv_bits"].get<double>());
  CHECK(routed["kv_bits"].get<double>() < high["kv_bits"].get<double>());
  CHECK(routed["perplexity"] != low["perplexity"]);
  CHECK(routed["perplexity"] != high["perplexity"]);
  CHECK(evaluate(policy + "@" + kRouters)["perplexity"] == routed["perplexity"]);
  // Routers ignore codebooks that none of their experts needs.
  CHECK(evaluate("moqae:" + kRouters + "@" + kCodebooks)["perplexity"] == routed["perplexity"]);
}

TEST_CASE("gain-shape formats have the bits of their names, and a policy file says the same as the short form") {
  const ScratchDirectory scratch;
  const auto policy = [&](const std::string& name, const std::string& text) {
    return scratch.write(name, "version: 1\n" + text).string();
  };
  const json both = evaluate("gt2");
  const json mixed = evaluate("gt2/gt1");
  CHECK(mixed["kv_bits"].get<double>() < both["kv_bits"].get<double>());
  CHECK(mixed["kv_bits"].get<double>() > evaluate("gt1")["kv_bits"].get<double>());
  CHECK(both["kv_bits"] == evaluate("gs2")["kv_bits"]);
  CHECK(both["kv_bits"].get<double>() > evaluate("gt2+nocentre")["kv_bits"].get<double>());
  CHECK(mixed["perplexity"] == evaluate(policy("mixed.yaml", "keys: gt2\nvalues: gt1\n"))["perplexity"]);
  CHECK(evaluate("gt2+nocentre")["perplexity"] ==
        evaluate(policy("none.yaml", "keys: {format: gt2, centres: none}\nvalues: gt2\n"))["perplexity"]);
  // The first page stays FP16 unless the policy says otherwise.
  CHECK(both["perplexity"] == evaluate(policy("one.yaml", "keys: gt2\nvalues: gt2\nsink: 1\n"))["perplexity"]);
  CHECK(both["kv_bits"].get<double>() >
        evaluate(policy("no.yaml", "keys: gt2\nvalues: gt2\nsink: 0\n"))["kv_bits"].get<double>());
}

TEST_CASE("what is no gain-shape format is answered with what to write") {
  const std::string absent = kModel + "/absent";
  check_failure(perplexity({"--kv", "gs5"}), 2, "nearest: gs4");
  check_failure(perplexity({"--kv", "gt4"}), 2, "nearest: gt3");
  check_failure(perplexity({"--kv", "gt2/gt0"}), 2, "nearest: gt1");
  check_failure(perplexity({"--kv", "gs2+hadamard"}), 2, "gs2 is always rotated: write gs2");
  check_failure(perplexity({"--kv", "int4+nocentre"}), 2, "gain-shape");
  check_failure(perplexity({"--kv", "gs2+snapkv:8"}), 2, "window");
  check_failure(perplexity({"--kv", "gs2:" + absent}), 1, absent);
  check_failure(perplexity({"--kv", "gs2+nocentre:" + absent}), 2, "write gs2:FILE, or gs2+nocentre");
  check_failure(perplexity({"--kv", "gs2/gt1+centres:" + absent}), 2, "write gs2/gt1+centres@FILE");
  check_failure(perplexity({"--kv", "gs2+centres+nocentre"}), 2, "not two of them: write gs2+centres");
  check_failure(perplexity({"--kv", "gs2+centres"}), 1, "as gs2+centres, but options->centres is NULL");
  check_failure(perplexity({"--kv", "gt2/gt1:" + absent + "+adasnap:64"}), 1, absent);
}

TEST_CASE("eviction goes on top of every kind of SPEC") {
  const ScratchDirectory scratch;
  const std::string policy = scratch.write("int4.yaml", "version: 1\nkeys: int4\nvalues: int4\n").string();
  const json of_file = evaluate(policy + "+snapkv:64");
  CHECK(of_file["perplexity"] == evaluate("int4+snapkv:64")["perplexity"]);
  CHECK(of_file["kv_bytes"] == evaluate("int4+snapkv:64")["kv_bytes"]);
  // A quarter of the 256 tokens before the compression; 1 % of them is less than the window that always stays.
  CHECK(evaluate("int4+snapkv:25%")["perplexity"] == evaluate("int4+snapkv:64")["perplexity"]);
  CHECK(evaluate("int4+snapkv:1%")["kv_bytes"] == evaluate("int4+snapkv:32")["kv_bytes"]);
  const json shaped = evaluate("gt2/gs1+nocentre+snapkv:64");
  CHECK(shaped["tokens"] == of_file["tokens"]);
  CHECK(shaped["kv_bytes"].get<double>() < of_file["kv_bytes"].get<double>());
  const json routed = evaluate("moqae:" + kRouters + "+adasnap:64");
  CHECK(routed["tokens"] == of_file["tokens"]);
  CHECK(routed["kv_bytes"].get<double>() < evaluate("moqae:" + kRouters)["kv_bytes"].get<double>());
}

TEST_CASE("trained files that do not fit their SPEC are named") {
  check_failure(perplexity({"--kv", "moqae:" + kCodebooks}), 2, "no file with routers");
  check_failure(perplexity({"--kv", "commvq:" + kRouters}), 1, "options->codebook");
  check_failure(perplexity({"--kv", "moqae:" + kRouters + "@" + kRouters}), 2, "second file");
  check_failure(perplexity({"--kv", "moqae:" + kText}), 1, kText);
  check_failure(perplexity({"--kv", "moqae:" + kModel + "/absent"}), 1, "absent");
  check_failure(perplexity({"--kv", "moqae:" + kRouters + "+lru:64"}), 2, "lru");
  check_failure(perplexity({"--kv", "moqae:" + kRouters + "+snapkv:8"}), 2, "budget is 8");
  check_failure(perplexity({"--kv", "int4+snapkv:101%"}), 2, "--kv int4+snapkv:101%: a share of the prompt must");
  check_failure(perplexity({"--kv", "int4+snapkv:0%"}), 2, "above 0%");
  check_failure(perplexity({"--kv", "int4+snapkv:many"}), 2, "or a percentage of the prompt");
  check_failure({"bench", "attend", "--length", "64", "--kv", "moqae:" + kRouters}, 1, "n_layers");
}

TEST_CASE("a policy file may keep a share of the prompt, as a short form may") {
  const ScratchDirectory scratch;
  const std::string policy = "version: 1\nkeys: int4\nvalues: int4\neviction: {method: snapkv, budget: 25%}\n";
  const std::string file = scratch.write("share.yaml", policy).string();
  const json of_file = evaluate(file);
  CHECK(of_file["kv_bytes"] == evaluate("int4+snapkv:25%")["kv_bytes"]);
  CHECK(of_file["perplexity"] == evaluate("int4+snapkv:25%")["perplexity"]);
  CHECK(of_file["kv_bytes"] < evaluate("int4+snapkv:50%")["kv_bytes"]);
}

TEST_CASE("a name of the demo's tables stands for the file beside the model") {
  CHECK(evaluate("commvq-2bit")["perplexity"] == evaluate("commvq:" + kCodebooks)["perplexity"]);
  CHECK(evaluate("moqae+snapkv:64")["perplexity"] == evaluate("moqae:" + kRouters + "+snapkv:64")["perplexity"]);
  CHECK(evaluate("gs2-256")["kv_bytes"] == evaluate("gs2:" + kModel + "/centres.safetensors")["kv_bytes"]);
  check_failure({"eval", "perplexity", "--model", kModel, "--text", kText, "--against", "commvq-3bit"}, 2,
                "--against commvq-3bit: stands for the file");
  check_failure(perplexity({"--kv", "commvq-3bit"}), 2,
                "commvq-3bit.safetensors, which there is not: `kvq train codebook`");
}

TEST_CASE("gain-shape formats find scales of channels by themselves, others if a SPEC says so") {
  const ScratchDirectory scratch;
  const auto policy = [&scratch](const std::string& format, const std::string& calibrate) {
    const std::string formats = "keys: " + format + "\nvalues: " + format + "\n";
    return scratch.write(format + calibrate + ".yaml", "version: 1\n" + formats + "calibrate: " + calibrate + "\n")
        .string();
  };
  const json with_scales = evaluate("gs2")["perplexity"];
  const json without = evaluate("gs2@none")["perplexity"];
  CHECK(with_scales != without);
  CHECK(evaluate("gs2@first")["perplexity"] == with_scales);
  CHECK(evaluate(policy("gs2", "none") + "@first")["perplexity"] == with_scales);
  CHECK(evaluate(policy("gs2", "first") + "@none")["perplexity"] == without);
  CHECK(evaluate(policy("int4", "first"))["perplexity"] == evaluate("int4@first")["perplexity"]);
  CHECK(evaluate(policy("int4", "first") + "@none")["perplexity"] == evaluate("int4")["perplexity"]);
  CHECK(evaluate("int4@first")["perplexity"] != evaluate("int4")["perplexity"]);
  CHECK(evaluate("gs2@none+snapkv:64")["kv_bytes"] < evaluate("gs2+snapkv:64")["kv_bytes"]);  // by the scales
}

TEST_CASE("scales of channels come from one place, which goes with the SPEC") {
  const ScratchDirectory scratch;
  const std::string scales = (scratch.path() / "scales").string();
  run_text({"balance", "--model", kModel, "--scales", scales});
  CHECK(evaluate("gs2@" + scales)["perplexity"] == evaluate("gs2@weights")["perplexity"]);
  check_failure(perplexity({"--kv", "gs2@first@none"}), 2, "--kv gs2@first@none: says twice where scales come from");
  check_failure(perplexity({"--kv", "gs2@weights@weights"}), 2, "says twice");
  for (const char* from : {"weights", "first", "none"}) {
    const std::string spec = "gs2@" + std::string(from) + "@" + scales;
    check_failure(perplexity({"--kv", spec}), 2, "--kv " + spec + ": @" + from + " goes without a file of");
  }
  check_failure(perplexity({"--kv", "gs2@./none"}), 1, "./none");
  // The files beside the model are found, and the library says why they do not go with scales of a sequence.
  check_failure(perplexity({"--kv", "moqae@first"}), 1, "which routers do not go with");
  check_failure(perplexity({"--kv", "gs2-256@first"}), 1, "trained for one scale");
  check_failure(perplexity({"--kv", "gs2-256@weights"}), 2, "@weights goes without a file of centres");
  CHECK(evaluate("gs2-256@none")["perplexity"] == evaluate("gs2-256")["perplexity"]);
  check_failure({"train", "codebook", "--model", kModel, "--text", kText, "--bits", "1", "--tokens", "64", "--scales",
                 "first", "--out", (scratch.path() / "codes").string()},
                2, "--scales first: must be \"weights\" or a file of scales");
}

TEST_CASE("what other programs call a format, and what lacks something, is answered with what to write") {
  check_failure(perplexity({"--kv", "q4_0"}), 2, "write int4, which is nearest");
  check_failure(perplexity({"--kv", "Q8_0"}), 2, "write int8, which is nearest");
  check_failure(perplexity({"--kv", "fp8_e4m3"}), 2, "write int8, which is nearest");
  check_failure(perplexity({"--kv", "bf16"}), 2, "write fp16, which is nearest");
  check_failure(perplexity({"--kv", "q4_0"}), 2, "kvq: --kv q4_0: policy is \"q4_0\", as other programs");
  check_failure(perplexity({"--kv", "int4+adasnap"}), 2, "write int4+adasnap:256, or int4+adasnap:25%");
  check_failure(perplexity({"--kv", "commvq"}), 2, "write commvq:FILE; `kvq train codebook` makes one");
}

TEST_CASE("what cannot be read or written is answered with what can") {
  const ScratchDirectory scratch;
  const std::string gguf = scratch.write("model.gguf", "GGUF").string();
  check_failure({"generate", "--model", gguf, "--prompt", "x"}, 1, "GGUF files are not read");
  const std::string absent = scratch.path().string() + "/absent";
  check_failure({"quantize", "--model", kModel, "--scheme", "nuq-2", "--out", absent + "/weights"}, 1,
                "there is no directory " + absent);
}

}  // namespace spec_test
