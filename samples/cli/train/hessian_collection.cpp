#include "train/hessian_collection.h"

#include "llama/error.h"
#include "options/engine.h"
#include "terminal/output.h"
#include "train/calibration.h"

namespace cli {
namespace {

void require_memory(uint64_t needed, size_t layers) {
  const uint64_t present = memory_bytes();
  if (needed <= present / 2) return;
  throw llama::Error("--hessian needs " + bytes_text(needed) + " for the inputs of " + std::to_string(layers) +
                     " linear layers at once, and this machine has " + bytes_text(present) + " of memory");
}

}  // namespace

llama::Hessians collect_hessians(const std::filesystem::path& model, const ComputeOptions& compute,
                                 std::span<const llama::LinearLayer> layers,
                                 std::span<const std::span<const int32_t>> windows) {
  require_memory(llama::Hessians::bytes(layers), layers.size());
  Engine engine(model, compute);
  llama::Hessians hessians(layers);
  llama::Session session(engine.model, engine.context, nullptr);
  session.observe_inputs([&hessians](int32_t layer, llama::LinearInput which, std::span<const float> x) {
    hessians.add(layer, which, x);
  });
  run_windows(session, windows, "inputs");
  return hessians;
}

}  // namespace cli
