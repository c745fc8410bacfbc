// Tests of llama.cpp with kvq against llama.cpp's own cache: kvq_llama_test FOLDER [FILTER], a folder of what
// make_gguf.py makes. The last line is "N passed, N failed".
#include "session.h"

#include <cstring>
#include <functional>
#include <limits>
#include <stdexcept>

namespace {

std::string folder;
std::string last_error;  // that llama.cpp has logged
std::string place;       // of the newest cache of kvq, as logged
Model llama;
std::vector<llama_token> text;

void keep_errors(ggml_log_level level, const char* message, void*) {
  if (level >= GGML_LOG_LEVEL_WARN) last_error += message;
  if (std::strstr(message, "holds keys and values in")) place = message;
}

void expect(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error(what);
}

/// Limit of differences between logits that should be the same. Products of matrices on a GPU depend on how many rows
/// there are.
double same(double limit) { return llama_supports_gpu_offload() ? std::max(limit, 0.1) : limit; }

void expect_near(double value, double expected, double limit, const std::string& what) {
  std::printf("  %s: %.6g, %.6g expected within %.3g\n", what.c_str(), value, expected, limit);
  expect(std::fabs(value - expected) <= limit, what);
}

double mean_surprise(Session& session, int tokens) {
  const auto logits = session.run(text, 0, tokens);
  double sum = 0;
  for (int i = 0; i < tokens; ++i) sum += surprise(logits[i], text[i + 1]);
  return sum / tokens;
}

std::vector<llama_token> greedy(Session& session, int prompt, int tokens) {
  std::vector<llama_token> result = {best(session.run(text, 0, prompt).back())};
  for (int i = 0; i + 1 < tokens; ++i) result.push_back(best(session.run({{result.back(), prompt + i}})[0]));
  return result;
}

/// Logits over a prompt in pieces and then token by token.
std::vector<Logits> logits_of(const Model& model, const std::vector<llama_token>& tokens, const std::string& policy,
                              const Options& options) {
  Session session(model, policy, options);
  auto result = session.run(tokens, 0, 300);
  for (int i = 300; i < 420; ++i) result.push_back(session.run(tokens, i, i + 1)[0]);
  return result;
}

double most_difference(const std::vector<Logits>& a, const std::vector<Logits>& b) {
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) most = std::max(most, difference(a[i], b[i]));
  return most;
}

std::vector<llama_token> any_tokens(int vocabulary) {
  std::vector<llama_token> result;
  for (uint32_t i = 0, state = 1; i < 1000; ++i) {
    state = state * 1664525 + 1013904223;
    result.push_back(static_cast<llama_token>((state >> 8) % vocabulary));
  }
  return result;
}

void generates_the_same() {
  Session own(llama, "none"), kvq(llama, "fp16");
  expect(greedy(own, 200, 64) == greedy(kvq, 200, 64), "64 greedy tokens");
}

void losses() {
  Session own(llama, "none");
  const double exact = mean_surprise(own, 1536);
  // Over llama.cpp's own FP16 cache; limits are about three times the largest that was measured, on a CPU or a GPU.
  const std::pair<const char*, double> limits[] = {{"fp16", 0.0002}, {"int8", 0.0003}, {"int4+hadamard", 0.0015},
                                                   {"gs4", 0.002},   {"gs2", 0.025},   {"int8/gs4", 0.002}};
  for (const auto& [policy, limit] : limits) {
    Session session(llama, policy);
    expect_near(mean_surprise(session, 1536), exact, limit, policy);
  }
}

void smaller() {
  Session fp16(llama, "fp16"), gs4(llama, "gs4");
  mean_surprise(fp16, 1900);
  mean_surprise(gs4, 1900);
  const auto bytes = [](const Session& session) { return double(llama_state_seq_get_size(session.context(), 0)); };
  expect_near(bytes(gs4) / bytes(fp16), 4.25 / 16, 0.05, "bytes of states, gs4 by fp16");
}

void any_threads() {
  Options one, three;
  one.threads = 1;
  three.threads = 3;
  Session a(llama, "gs4", one), b(llama, "gs4", three);
  const auto first = a.run(text, 0, 200), second = b.run(text, 0, 200);
  for (int i = 0; i < 200; ++i) expect(difference(first[i], second[i]) < same(1e-3), "token " + std::to_string(i));
}

void interleaved() {
  for (const bool unified : {true, false}) {
    Options options;
    options.unified = unified;
    options.context = unified ? 2048 : 8192;
    Session session(llama, "gs4", options);
    std::vector<Logits> alone[3];
    for (int s = 0; s < 3; ++s) {
      alone[s] = session.run(text, 100 * s, 100 * s + 60, s);
      expect(session.cut(s, 0), "removing all");
    }
    std::vector<Token> mixed;
    for (int i = 0; i < 60; ++i) {
      for (int s = 0; s < 3; ++s) mixed.push_back({text[100 * s + i], 100 * s + i, {s}, true});
    }
    const auto logits = session.run(mixed);
    double most = 0;
    for (int i = 0; i < 60; ++i) {
      for (int s = 0; s < 3; ++s) most = std::max(most, difference(logits[3 * i + s], alone[s][i]));
    }
    expect_near(most, 0, same(2e-4), unified ? "unified" : "not unified");
  }
}

void forks() {
  Session session(llama, "gs4");
  session.run(text, 0, 150);
  llama_memory_seq_cp(session.memory(), 0, 1, -1, -1);
  const auto fork = session.run(text, 150, 200, 1), parent = session.run(text, 150, 200, 0);
  for (int i = 0; i < 50; ++i) expect(difference(fork[i], parent[i]) < same(1e-5), "token " + std::to_string(i));
  llama_memory_seq_cp(session.memory(), 0, 2, 0, 96);
  expect(llama_memory_seq_pos_max(session.memory(), 2) == 95, "a copy of the first 96 tokens");
  llama_memory_seq_keep(session.memory(), 2);
  expect(llama_memory_seq_pos_max(session.memory(), 0) == -1, "seq_keep removes the others");
}

void drafts_roll_back() {
  Session session(llama, "gs2"), plain(llama, "gs2");
  session.run(text, 0, 150);
  plain.run(text, 0, 150);
  std::vector<Token> draft;
  for (int i = 0; i < 60; ++i) draft.push_back({text[500 + i], 150 + i});
  draft[0].id = text[150];
  session.run(draft);
  expect(session.cut(0, 151), "removing 59 tokens of a draft");
  plain.run(text, 150, 151);
  expect_near(difference(session.run(text, 151, 152)[0], plain.run(text, 151, 152)[0]), 0, same(1e-4),
              "as if they had never been");
}

void rollback_limits() {
  Session session(llama, "gs4");
  session.run(text, 0, 300);
  expect(!session.cut(0, 70), "a cut inside a sealed page is refused");
  expect(last_error.find("kvq") != std::string::npos, "and logged");
  expect(!llama_memory_seq_rm(session.memory(), 0, 10, 20), "and so are tokens in the middle");
  expect(!llama_memory_seq_rm(session.memory(), 0, 0, 20), "and the first ones");
  expect(llama_memory_seq_rm(session.memory(), 0, 300, -1), "nothing to remove");
  expect(llama_memory_seq_pos_max(session.memory(), 0) == 299, "all are still there");
  session.run(text, 300, 310);
  expect(session.cut(0, 64), "a cut between pages");
  Session plain(llama, "gs4");
  plain.run(text, 0, 200);
  expect(plain.cut(0, 64), "the same from 200 tokens: gain-shape pages are sealed from 128 on");
  expect_near(difference(session.run(text, 64, 65)[0], plain.run(text, 64, 65)[0]), 0, same(1e-3),
              "goes on from there");
}

void shared_prompts() {
  Session session(llama, "gs4"), plain(llama, "gs4");
  std::vector<Token> tokens;
  for (int i = 0; i < 200; ++i) tokens.push_back({text[i], i, {0, 1, 2}, true});
  for (int s = 0; s < 3; ++s) {
    for (int i = 0; i < 20; ++i) tokens.push_back({text[400 + 100 * s + i], 200 + i, {s}, true});
  }
  const auto logits = session.run(tokens);
  plain.run(text, 0, 200);
  for (int s = 0; s < 3; ++s) {
    std::vector<Token> tail;
    for (int i = 0; i < 20; ++i) tail.push_back({text[400 + 100 * s + i], 200 + i});
    const auto expected = plain.run(tail);
    for (int i = 0; i < 20; ++i) {
      expect(difference(logits[200 + 20 * s + i], expected[i]) < same(2e-3), "sequence " + std::to_string(s));
    }
    expect(plain.cut(0, 200), "removing the tail");
  }
}

void saves_and_loads() {
  Session session(llama, "gs4"), other(llama, "gs4"), int8(llama, "int8"), own(llama, "none");
  session.run(text, 0, 200);
  llama_memory_seq_cp(session.memory(), 0, 1, -1, -1);
  session.run(text, 200, 230, 1);
  std::vector<uint8_t> one(llama_state_seq_get_size(session.context(), 0));
  expect(llama_state_seq_get_data(session.context(), one.data(), one.size(), 0) == one.size(), "saving a sequence");
  std::vector<uint8_t> all(llama_state_get_size(session.context()));
  expect(llama_state_get_data(session.context(), all.data(), all.size()) == all.size(), "saving all");

  expect(llama_state_seq_set_data(other.context(), one.data(), one.size(), 3) == one.size(), "loading a sequence");
  const auto expected = session.run(text, 200, 201)[0], next = session.run(text, 230, 231, 1)[0];
  expect(difference(other.run(text, 200, 201, 3)[0], expected) < same(1e-5), "it goes on");
  expect(llama_state_set_data(other.context(), all.data(), all.size()) == all.size(), "loading all");
  expect(llama_memory_seq_pos_max(other.memory(), 3) == -1, "what was there is gone");
  expect(difference(other.run(text, 200, 201)[0], expected) < same(1e-5), "the first goes on");
  expect(difference(other.run(text, 230, 231, 1)[0], next) < same(1e-5), "the second goes on");

  int8.run(text, 0, 50);
  expect(llama_state_seq_set_data(int8.context(), one.data(), one.size(), 0) == 0, "another policy refuses the state");
  expect(llama_memory_seq_pos_max(int8.memory(), 0) == 49, "and keeps what it has");
  expect(llama_state_seq_set_data(own.context(), one.data(), one.size(), 0) == 0, "and so does llama.cpp's own cache");
  one[one.size() / 2] ^= 1;
  expect(llama_state_seq_set_data(other.context(), one.data(), one.size(), 0) == 0, "and a damaged one is refused");
  const auto path = folder + "/session";
  expect(llama_state_save_file(session.context(), path.c_str(), text.data(), 201), "saving a file");
  std::vector<llama_token> tokens(300);
  size_t n = 0;
  expect(llama_state_load_file(other.context(), path.c_str(), tokens.data(), tokens.size(), &n) && n == 201,
         "loading it");
}

void failures() {
  Session session(llama, "gs4"), plain(llama, "gs4");
  session.run(text, 0, 100);
  plain.run(text, 0, 100);
  const int width = llama_model_n_embd_inp(llama.get());
  auto batch = llama_batch_init(40, width, 1);
  batch.n_tokens = 40;
  std::fill(batch.embd, batch.embd + 40 * width, std::numeric_limits<float>::quiet_NaN());
  for (int i = 0; i < 40; ++i) {
    batch.pos[i] = 100 + i;
    batch.n_seq_id[i] = 1;
    batch.seq_id[i][0] = 0;
    batch.logits[i] = i == 39;
  }
  last_error.clear();
  int status = llama_decode(session.context(), batch);
  llama_batch_free(batch);
  if (status == 0) {  // a GPU has not looked at them yet
    llama_synchronize(session.context());
    status = session.decode({{text[140], 140}});
  }
  expect(status < -1, "numbers that are none fail: " + std::to_string(status));
  expect(last_error.find("65504") != std::string::npos, "the log says why: " + last_error);
  expect(llama_memory_seq_pos_max(session.memory(), 0) == 99, "the tokens before are there");
  expect(difference(session.run(text, 100, 101)[0], plain.run(text, 100, 101)[0]) < same(1e-5), "and go on");
}

void full_contexts() {
  Options options;
  options.context = 512;
  Session session(llama, "gs4", options);
  session.run(text, 0, 500);
  std::vector<Token> tokens;
  for (int i = 500; i < 520; ++i) tokens.push_back({text[i], i});
  expect(session.decode(tokens) == 1, "a batch that does not fit");
  tokens.resize(12);
  expect(session.decode(tokens) == 0, "one that does");
}

void no_shifts() {
  Session session(llama, "gs4");
  session.run(text, 0, 100);
  expect(!llama_memory_can_shift(session.memory()), "no shifts");
  llama_memory_seq_add(session.memory(), 0, 200, -1, -10);
  session.run(text, 100, 101);
  llama_memory_seq_add(session.memory(), 0, 50, -1, -10);
  expect(session.decode({{text[0], 91}}) != 0, "a shifted sequence takes no tokens");
  expect(session.cut(0, 0), "until it is removed");
  session.run(text, 0, 10);
}

void only_causal() {
  Session session(llama, "gs4");
  llama_set_causal_attn(session.context(), false);
  expect(session.decode({{text[0], 0}, {text[1], 1}}) != 0, "attention that is not causal");
  llama_set_causal_attn(session.context(), true);
  session.run(text, 0, 2);
}

void refused(const std::string& model, const std::string& policy, const std::string& reason) {
  const auto loaded = model == "llama" ? Model() : load_model(folder + "/" + model + ".gguf");
  last_error.clear();
  try {
    Session session(loaded ? loaded : llama, policy);
  } catch (const std::runtime_error&) {
    expect(last_error.find(reason) != std::string::npos, "the reason: " + last_error);
    return;
  }
  expect(false, "a context was created");
}

/// FP16 pages are no further from llama.cpp's own cache than that is from itself without flash attention.
void as_llama(const std::string& name, bool full_windows) {
  const auto model = load_model(folder + "/" + name + ".gguf");
  const auto tokens = any_tokens(512);
  Options options;
  options.full_windows = full_windows;
  const auto flash = logits_of(model, tokens, "none", options);
  const auto kvq = logits_of(model, tokens, "fp16", options);
  options.flash = false;
  const auto plain = logits_of(model, tokens, "none", options);
  expect_near(std::min(most_difference(kvq, flash), most_difference(kvq, plain)), 0,
              most_difference(flash, plain) + same(1e-3), name);
}

void windows_and_caps() {
  as_llama("windows", false);
  as_llama("windows", true);
  const auto model = load_model(folder + "/windows.gguf");
  Session session(model, "fp16");
  session.run(any_tokens(512), 0, 400);
  expect(llama_memory_seq_pos_min(session.memory(), 0) > 0, "windows forget");
}

void sinks() { as_llama("sinks", false); }

void places() {
  const bool gpu = llama_supports_gpu_offload();
  const auto path = folder + "/llama.gguf";
  const auto in_host_memory = [] { return place.find("in host memory") != std::string::npos; };
  Session all(llama, "gs4");
  expect(in_host_memory() != gpu, "the cache is on the GPU if there is one: " + place);
  const auto expected = all.run(text, 0, 300).back();
  const auto agrees = [&](const Model& model, const Options& options, const char* reason) {
    last_error.clear();
    Session session(model, "gs4", options);
    expect(in_host_memory(), place);
    expect(!gpu || last_error.find(reason) != std::string::npos, "the reason: " + last_error);
    // Not only pages: queries, keys and values of a CPU and a GPU are not the same.
    expect_near(difference(session.run(text, 0, 300).back(), expected), 0, gpu ? 0.5 : 1e-3, reason);
  };
  Options options;
  agrees(load_model(path, 2), options, "several devices");
  agrees(load_model(path, 0), options, "");
  options.offload = false;
  agrees(llama, options, "offloading of the KV cache is off");
}

struct Case {
  const char* name;
  std::function<void()> run;
};

const Case cases[] = {
    {"FP16 pages generate llama.cpp's own tokens", generates_the_same},
    {"formats lose what they may", losses},
    {"the cache is where all layers are, else in host memory", places},
    {"a state in gs4 is smaller", smaller},
    {"any number of threads gives the same", any_threads},
    {"interleaved sequences are as alone", interleaved},
    {"a copy of a sequence goes on like it", forks},
    {"a draft rolls back whatever the format", drafts_roll_back},
    {"other rollbacks work at pages, or are refused", rollback_limits},
    {"tokens of several sequences are a shared prompt", shared_prompts},
    {"states are saved and loaded", saves_and_loads},
    {"a failing layer fails the batch and changes nothing", failures},
    {"a full context says so", full_contexts},
    {"shifts are refused", no_shifts},
    {"attention that is not causal is refused", only_causal},
    {"windows and soft caps are as llama.cpp's", windows_and_caps},
    {"sinks are as llama.cpp's", sinks},
    {"an unknown format is refused", [] { refused("llama", "gs9", "policy"); }},
    {"eviction is refused", [] { refused("llama", "gs4+snapkv:128", "evict"); }},
    {"formats without their training are refused", [] { refused("llama", "commvq", "codebook"); }},
    {"ALiBi is refused", [] { refused("biases", "gs4", "ALiBi"); }},
    {"recurrent models are refused", [] { refused("recurrent", "gs4", "recurrent"); }},
    {"M-RoPE is refused", [] { refused("positions", "gs4", "M-RoPE"); }},
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return std::fprintf(stderr, "kvq_llama_test FOLDER [FILTER]\n"), 2;
  folder = argv[1];
  llama_log_set(keep_errors, nullptr);
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  int passed = 0, failed = 0;
  try {
    llama = load_model(folder + "/llama.gguf");
    text = read_tokens(folder + "/llama.gguf.tokens");
    expect(text.size() > 2000, "the text is too short");
  } catch (const std::exception& error) {
    std::printf("%s\n0 passed, 1 failed\n", error.what());
    return 1;
  }
  for (const auto& test : cases) {
    if (argc > 2 && !std::strstr(test.name, argv[2])) continue;
    last_error.clear();
    try {
      test.run();
      std::printf("ok      %s\n", test.name);
      ++passed;
    } catch (const std::exception& error) {
      std::printf("FAILED  %s: %s\n%s", test.name, error.what(), last_error.c_str());
      ++failed;
    }
  }
  llama.reset();
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed != 0;
}
