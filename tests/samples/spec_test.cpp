// SPECs with trained files: formats that routers choose, codebooks, and eviction on top.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "eval_commands.h"
#include "program_run.h"
#include "scratch_directory.h"

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

TEST_CASE("eviction goes on top of every kind of SPEC") {
  const ScratchDirectory scratch;
  const std::string policy = scratch.write("int4.yaml", "version: 1\nkeys: int4\nvalues: int4\n").string();
  const json of_file = evaluate(policy + "+snapkv:64");
  CHECK(of_file["perplexity"] == evaluate("int4+snapkv:64")["perplexity"]);
  CHECK(of_file["kv_bytes"] == evaluate("int4+snapkv:64")["kv_bytes"]);
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
  check_failure({"bench", "attend", "--length", "64", "--kv", "moqae:" + kRouters}, 1, "n_layers");
}
