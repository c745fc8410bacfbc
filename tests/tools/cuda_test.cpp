// Models on the GPU, and what opens the module that runs them there.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "letter_model.h"
#include "llama/cuda_module.h"
#include "llama/error.h"
#include "llama/model.h"
#include "program_run.h"
#include "runs.h"
#include "support/device.h"
#include "support/scratch_directory.h"
#include "tiny_model.h"

namespace cuda_test {
namespace {

using doctest::Contains;

/// Whether there is a GPU; if not, says why.
bool has_gpu() {
  const std::string reason = kvq_test::why_no_cuda();
  if (!reason.empty()) MESSAGE("skipped: " << reason);
  return reason.empty();
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double largest = 0.0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(double{a[i]} - double{b[i]}));
  return largest;
}

}  // namespace

// Attention on the GPU rounds queries and probabilities to FP16, the rest is float32.
TEST_CASE("every layout computes on the GPU what it computes on the CPU, in chunks of any size") {
  if (!has_gpu()) return;
  const kvq::Context cpu = make_context();
  const kvq::Context gpu = make_context(KVQ_DEVICE_CUDA);
  const std::vector<int32_t> tokens = random_tokens(kTokens, TinyModel::kVocabulary);
  for (const TinyLayout& layout : tiny_layouts()) {
    CAPTURE(layout.name);
    const ScratchDirectory directory;
    TinyModel(layout).write(directory);
    llama::Model on_cpu(directory.path(), 1);
    llama::Model on_gpu(directory.path(), 1, llama::make_cuda_device(0));
    llama::Session expected_session(on_cpu, cpu, nullptr);
    const std::vector<float> expected = run_in_chunks(expected_session, tokens, 32);
    llama::Session session(on_gpu, gpu, nullptr);
    for (const size_t chunk : {size_t{1}, size_t{7}, size_t{32}, kTokens}) {
      CAPTURE(chunk);
      session.clear();
      const std::vector<float> logits = run_in_chunks(session, tokens, chunk);
      CHECK(largest_difference(logits, expected) < 1e-2);
      CHECK(perplexity(logits, tokens) == doctest::Approx(perplexity(expected, tokens)).epsilon(1e-3));
    }
    session.clear();
    const std::span<const float> last = session.forward(tokens, false);
    CHECK(largest_difference({last.begin(), last.end()}, {expected.end() - TinyModel::kVocabulary, expected.end()}) <
          1e-2);
  }
}

TEST_CASE("a context on another device than the model's is refused") {
  if (!has_gpu()) return;
  const ScratchDirectory directory;
  TinyModel(tiny_layouts()[0]).write(directory);
  const kvq::Context gpu = make_context(KVQ_DEVICE_CUDA);
  llama::Model model(directory.path(), 1);
  CHECK_THROWS_WITH_AS(llama::Session(model, gpu, nullptr), Contains("the model is on the CPU, the context on the GPU"),
                       llama::Error);
}

TEST_CASE("a GPU that is not here is refused with the reason that the library gives") {
  auto error = kvq::initialised<kvq_error>();
  kvq_device_info info{};
  info.struct_size = sizeof(info);
  constexpr int32_t kNone = 60000;
  REQUIRE(kvq_device_describe(KVQ_DEVICE_CUDA, kNone, nullptr, &info, &error) == KVQ_E_UNSUPPORTED);
  CHECK_THROWS_WITH_AS(llama::make_cuda_device(kNone), error.message, kvq::Error);
}

TEST_CASE("a GPU module that cannot be used is refused with the reason") {
  const ScratchDirectory scratch;
  const auto refuse = [](const std::filesystem::path& path, const char* reason) {
    CHECK_THROWS_WITH_AS(llama::load_cuda_module(path), Contains(reason), llama::Error);
  };
  for (const char* part : {"absent.so: ", kvq_test::kNoLibrary}) refuse(scratch.path() / "absent.so", part);
  refuse(scratch.write("text.so", "Not a library, and too long for the loader to say that it is short of a header.\n"),
         "text.so: ");
  refuse(kvq_test::kSystemLibrary, "no function kvq_llama_cuda_module");

  const std::filesystem::path plugins = test_plugins();
  if (!std::filesystem::exists(plugins)) {
    MESSAGE("skipped: the modules that this machine lacks");
    return;
  }
  const std::string suffix = kvq_test::kLibrarySuffix;
  refuse(plugins / ("missing_library" + suffix), kvq_test::kMissingLibrary);
  refuse(plugins / ("another_version" + suffix), "it is \"kvq 99.0.0 model runner 98\", this program needs \"kvq ");
}

TEST_CASE("a GPU quantizes a model to the same file, and by its own Hessians as well") {
  if (!has_gpu()) return;
  const LetterModel place(packable_layout(false));
  const auto bytes_of = [](const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  };
  const std::string on_cpu = place.path("on_cpu.safetensors");
  const std::string on_gpu = place.path("on_gpu.safetensors");
  const Arguments arguments{"quantize", "--model", place.model(), "--scheme", "nuq-3", "--force"};
  run_json(with(arguments, {"--out", on_cpu}));
  const nlohmann::json result = run_json(with(arguments, {"--out", on_gpu, "--device", "cuda"}));
  CHECK(result["weights_per_second"] > 0.0);
  CHECK(bytes_of(on_gpu) == bytes_of(on_cpu));
  // Sums of inputs differ in their last bits, and so does what is at the border of two codes.
  const Arguments by_hessian = with(arguments, {"--hessian", place.path("text.txt"), "--out", on_gpu});
  const double on_host = run_json(by_hessian)["proxy_error"];
  CHECK(run_json(with(by_hessian, {"--device", "cuda"}))["proxy_error"].get<double>() ==
        doctest::Approx(on_host).epsilon(0.01));
}

}  // namespace cuda_test
