#include "bench/timed_device.h"
#include "llama/error.h"

namespace cli {

std::unique_ptr<TimedDevice> make_timed_device(const ComputeOptions& options) {
  if (options.device == "cpu") return make_timed_cpu(options);
#if defined(KVQ_CLI_CUDA)
  return make_timed_gpu(options);
#else
  throw llama::Error("this build has no CUDA support: configure with -DKVQ_CUDA=ON");
#endif
}

}  // namespace cli
