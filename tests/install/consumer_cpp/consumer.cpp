// Appends, attends and fails in C++. Linked with the static library, it has classes of the same names as the library.
#include <kvq.hpp>

#include <array>
#include <cmath>
#include <cstdio>
#include <string>

int main() {
  const kvq::Context context;
  auto options = kvq::initialised<kvq_cache_options>();
  options.n_layers = 1;
  options.q_heads = 1;
  options.kv_heads = 1;
  options.head_dim = 8;
  const kvq::Cache cache(context, options, kvq::Policy::load(context, "int8"));
  kvq::Sequence sequence(cache);
  const std::array<float, 8> x{1.0F, 2.0F, 3.0F, 4.0F, 5.0F, 6.0F, 7.0F, 8.0F};
  std::array<float, 8> out{};
  sequence.append(0, 1, x, x);
  cache.attend(0, {.sequences = kvq::pointers(sequence), .q = x, .output = out});
  for (size_t i = 0; i < x.size(); ++i) {  // a single token gets all the weight
    if (!(std::fabs(out[i] - x[i]) <= 1e-3F)) return 1;
  }
  std::string message;
  try {
    kvq::Policy::load(context, "int5");
  } catch (const kvq::Error& error) {
    message = std::string(error.name()) + ": " + error.what();
  }
  if (message.find("KVQ_E_FORMAT: ") != 0 || message.find("int5") == std::string::npos) {
    std::fprintf(stderr, "an unknown format is refused with \"%s\"\n", message.c_str());
    return 1;
  }
  std::printf("kvq %s\n", kvq::version_string());
  return 0;
}
