// Processor time of a decoding step on one thread: decode_time MODEL TOKENS CACHE, which is f16, q8_0, q4_0 (with flash
// attention), f16-plain (without), or a policy of kvq. Processor time, so that others may use the machine. Prints the
// milliseconds of a step, those of a step with an empty cache, and the MiB of the sequence's state.
#include "session.h"

#include <ctime>

namespace {

double milliseconds() {
  timespec time = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return 1e3 * static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_nsec);
}

/// The fastest of some steps behind `length` tokens.
double step(Session& session, int length) {
  double best = HUGE_VAL;
  for (int i = 0; i < 16; ++i) {
    const double begin = milliseconds();
    if (session.decode({{1 + i % 100, length + i}}) != 0) throw std::runtime_error("llama_decode failed");
    best = std::min(best, milliseconds() - begin);
  }
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return std::fprintf(stderr, "decode_time MODEL TOKENS CACHE\n"), 2;
  const int tokens = std::atoi(argv[2]);
  std::string cache = argv[3];
  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  try {
    Options options;
    options.context = static_cast<uint32_t>(tokens + 64);
    options.ubatch = 512;
    options.sequences = 1;
    options.threads = 1;
    options.flash = cache != "f16-plain";
    options.type = cache == "q8_0" ? GGML_TYPE_Q8_0 : cache == "q4_0" ? GGML_TYPE_Q4_0 : GGML_TYPE_F16;
    const bool own = cache == "f16" || cache == "f16-plain" || cache == "q8_0" || cache == "q4_0";
    const auto model = load_model(argv[1]);
    Session session(model, own ? "none" : cache, options);
    const double empty = step(session, 0);
    session.cut(0, 0);
    for (int begin = 0; begin < tokens; begin += 512) {
      std::vector<Token> piece;
      for (int i = begin; i < std::min(tokens, begin + 512); ++i) piece.push_back({1 + i * 7 % 1000, i, {0}, false});
      if (session.decode(piece) != 0) throw std::runtime_error("llama_decode failed");
    }
    const double full = step(session, tokens);
    const auto bytes = llama_state_seq_get_size(session.context(), 0);
    std::printf("%-16s %8.2f %8.2f %8.1f\n", cache.c_str(), full, empty, static_cast<double>(bytes) / (1 << 20));
  } catch (const std::exception& error) {
    return std::fprintf(stderr, "%s: %s\n", argv[3], error.what()), 1;
  }
}
