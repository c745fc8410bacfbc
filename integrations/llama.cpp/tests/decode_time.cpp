// Processor time of a decoding step on one thread: decode_time MODEL TOKENS CACHE, which is f16, q8_0, q4_0 (with flash
// attention), f16-plain (without), or a policy of kvq. Processor time, so that others may use the machine. Prints the
// milliseconds of a step, those of a step with an empty cache, and the MiB of the sequence's state.
//
// The caches are filled with states, since to process so many tokens would take long: llama.cpp's with copies of a
// short one at the same positions, kvq's with random keys and values.
#include "session.h"

#include <kvq.h>
#include "kvq_state.h"

#include <cstring>
#include <ctime>
#include <random>

namespace {

constexpr int kPiece = 512;

void require(bool holds, const char* what) {
  if (!holds) throw std::runtime_error(what);
}

double milliseconds() {
  timespec time = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return 1e3 * static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_nsec);
}

/// The fastest of some steps from a position on.
double step(Session& session, int position) {
  double best = HUGE_VAL;
  for (int i = 0; i < 24; ++i) {
    const double begin = milliseconds();
    require(session.decode({{1 + i % 100, position + i}}) == 0, "llama_decode failed");
    best = std::min(best, milliseconds() - begin);
  }
  return best;
}

std::vector<uint8_t> state_of(Session& session, llama_seq_id sequence) {
  std::vector<uint8_t> state(llama_state_seq_get_size(session.context(), sequence));
  require(llama_state_seq_get_data(session.context(), state.data(), state.size(), sequence) == state.size(),
          "no state");
  return state;
}

/// Every position of a piece as often as makes `tokens` cells, all of sequence 0. Returns the next position.
int fill_own(Session& session, int tokens) {
  std::vector<Token> piece;
  for (int i = 0; i < kPiece; ++i) piece.push_back({1 + i * 7 % 1000, i, {0}, false});
  require(session.decode(piece) == 0, "llama_decode failed");
  const auto state = state_of(session, 0);
  for (int i = 1; i < tokens / kPiece; ++i) {
    require(llama_state_seq_set_data(session.context(), state.data(), state.size(), i) != 0, "no room");
    llama_memory_seq_cp(session.memory(), i, 0, -1, -1);
  }
  return kPiece;
}

/// A snapshot of random keys and values in the sequence's stead.
int fill_kvq(Session& session, const llama_model* model, const std::string& text, int tokens) {
  kvq_error error;
  kvq_error_init(&error, sizeof(error));
  const auto check = [&](kvq_status status) { require(status == KVQ_OK, error.message); };
  kvq_context* context = nullptr;
  kvq_policy* policy = nullptr;
  kvq_cache* cache = nullptr;
  kvq_sequence* sequence = nullptr;
  kvq_cache_options options;
  kvq_cache_options_init(&options, sizeof(options));
  options.n_layers = llama_model_n_layer(model);
  options.q_heads = llama_model_n_head(model);
  options.kv_heads = llama_model_n_head_kv(model);
  options.head_dim = 128;
  options.rope = KVQ_ROPE_NONE;
  options.model_id = llama_kvq_model_id(model);
  check(kvq_context_create(nullptr, &context, &error));
  check(kvq_policy_load(context, text.data(), text.size(), &policy, &error));
  check(kvq_cache_create(context, &options, policy, &cache, &error));
  check(kvq_sequence_create(cache, &sequence, &error));
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> numbers(static_cast<size_t>(kPiece) * options.kv_heads * options.head_dim + 1000);
  for (float& number : numbers) number = normal(random);
  for (int i = 0; i < tokens / kPiece; ++i) {
    for (int layer = 0; layer < options.n_layers; ++layer) {
      const float* k = numbers.data() + (i * 37 + layer) % 1000;
      check(kvq_append(cache, sequence, layer, kPiece, k, numbers.data() + i, KVQ_F32, nullptr, &error));
    }
  }
  // In front of kvq's header llama.cpp has one of its own, that of any state.
  require(session.decode({{1, 0}}) == 0, "llama_decode failed");
  auto state = state_of(session, 0);
  llama_kvq::StateHeader header = {llama_kvq::kStateMagic, 1, 0};
  const llama_kvq::StateEntry entry = {0, 0, tokens, 0, 1};
  const auto* magic = reinterpret_cast<const uint8_t*>(&header.magic);
  const auto begin = std::search(state.begin(), state.end(), magic, magic + sizeof(header.magic)) - state.begin();
  const auto snapshot = static_cast<size_t>(begin) + sizeof(header) + sizeof(entry);
  size_t size = 0;
  check(kvq_sequence_save(cache, sequence, nullptr, 0, &size, &error));
  state.resize(snapshot + size);
  check(kvq_sequence_save(cache, sequence, state.data() + snapshot, size, &size, &error));
  header.bytes = size;
  std::memcpy(state.data() + begin, &header, sizeof(header));
  std::memcpy(state.data() + begin + sizeof(header), &entry, sizeof(entry));
  kvq_sequence_destroy(sequence);
  kvq_cache_destroy(cache);
  kvq_policy_destroy(policy);
  kvq_context_destroy(context);
  require(llama_state_seq_set_data(session.context(), state.data(), state.size(), 0) != 0, "the state is refused");
  return tokens;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return std::fprintf(stderr, "decode_time MODEL TOKENS CACHE\n"), 2;
  const int tokens = std::atoi(argv[2]);
  const std::string cache = argv[3];
  llama_log_set(
      [](ggml_log_level level, const char* text, void*) {
        if (level >= GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
      },
      nullptr);
  try {
    Options options;
    options.context = static_cast<uint32_t>(tokens + 2 * kPiece);
    options.ubatch = kPiece;
    options.sequences = static_cast<uint32_t>(tokens / kPiece + 1);
    options.threads = 1;
    options.flash = cache != "f16-plain";
    options.type = cache == "q8_0" ? GGML_TYPE_Q8_0 : cache == "q4_0" ? GGML_TYPE_Q4_0 : GGML_TYPE_F16;
    const bool own = cache == "f16" || cache == "f16-plain" || cache == "q8_0" || cache == "q4_0";
    const auto model = load_model(argv[1]);
    Session session(model, own ? "none" : cache, options);
    const double empty = step(session, 0);
    session.cut(0, 0);
    const int position = own ? fill_own(session, tokens) : fill_kvq(session, model.get(), cache, tokens);
    const double full = step(session, position);
    const auto bytes = llama_state_seq_get_size(session.context(), 0);
    std::printf("%-16s %8.2f %8.2f %8.1f\n", cache.c_str(), full, empty, static_cast<double>(bytes) / (1 << 20));
  } catch (const std::exception& error) {
    return std::fprintf(stderr, "%s: %s\n", argv[3], error.what()), 1;
  }
}
