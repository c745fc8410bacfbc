// Spans of a context on a GPU are in device memory.
#include "model.h"
#include "support/device.h"

#include <array>
#include <optional>

namespace cuda_test {
namespace {

/// A copy in device memory, as a span.
class OnDevice {
 public:
  explicit OnDevice(std::span<const float> host) : copy_(host.data(), host.size_bytes()), size_(host.size()) {}

  std::span<float> span() const { return {static_cast<float*>(copy_.data()), size_}; }
  std::vector<float> read() const {
    std::vector<float> host(size_);
    copy_.read(host.data());
    return host;
  }

 private:
  kvq_test::DeviceCopy copy_;
  size_t size_;
};

/// Skips with a message if there is no GPU.
std::optional<kvq::Context> gpu_context() {
  if (const std::string why = kvq_test::why_no_cuda(); !why.empty()) {
    MESSAGE("skipped, no GPU: ", why);
    return {};
  }
  auto options = kvq::initialised<kvq_context_options>();
  options.device = KVQ_DEVICE_CUDA;
  return kvq::Context(options);
}

}  // namespace

TEST_CASE("a GPU attends to what it was given in device memory") {
  std::optional<kvq::Context> context = gpu_context();
  if (!context) return;
  context->set_stream(nullptr);
  const kvq::Cache cache = small_cache(*context);
  kvq::Sequence sequence(cache);
  const OnDevice k(tokens(75, 1)), v(tokens(75, 2)), q(queries(1, 3)), out(queries(1, 4));
  sequence.append(0, 75, k.span(), v.span());
  cache.attend(0, {.sequences = kvq::pointers(sequence), .q = q.span(), .output = out.span()});
  CHECK(difference(out.read(), brute_force(sequence, q.read(), 74)) < 0.02);
}

TEST_CASE("what one context of a GPU measured, another reads") {
  const std::optional<kvq::Context> measured = gpu_context();
  if (!measured) return;
  const std::optional<kvq::Context> told = gpu_context();
  auto how = kvq::initialised<qp_quantize_options>();
  how.scheme = "nuq-4";
  constexpr int64_t kRows = 512, kColumns = 256;
  const std::vector<float> weights = kvq_test::normal_tensor(size_t{kRows} * kColumns, 5);
  const std::array matrices{kvq::Matrix::quantize(*measured, how, weights, kRows, kColumns)};
  const std::string before = measured->tuning_save();
  kvq::Matrix::tune(kvq::pointers(matrices), 3);
  const std::string text = measured->tuning_save();
  CHECK(text.size() > before.size());
  CHECK(told->tuning_save() == before);
  told->tuning_load(text);
  CHECK(told->tuning_save() == text);
  CHECK_FAILS(KVQ_E_MISMATCH, "kvq tuning 0", told->tuning_load("kvq tuning 0\n"));
}

}  // namespace cuda_test
