// Spans of a context on a GPU are in device memory.
#include "model.h"
#include "support/device.h"

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

}  // namespace

TEST_CASE("a GPU attends to what it was given in device memory") {
  const std::string why = kvq_test::why_no_cuda();
  if (!why.empty()) {
    MESSAGE("skipped, no GPU: ", why);
    return;
  }
  auto options = kvq::initialised<kvq_context_options>();
  options.device = KVQ_DEVICE_CUDA;
  kvq::Context context(options);
  context.set_stream(nullptr);
  const kvq::Cache cache = small_cache(context);
  kvq::Sequence sequence(cache);
  const OnDevice k(tokens(75, 1)), v(tokens(75, 2)), q(queries(1, 3)), out(queries(1, 4));
  sequence.append(0, 75, k.span(), v.span());
  cache.attend(0, {.sequences = kvq::pointers(sequence), .q = q.span(), .output = out.span()});
  CHECK(difference(out.read(), brute_force(sequence, q.read(), 74)) < 0.02);
}
