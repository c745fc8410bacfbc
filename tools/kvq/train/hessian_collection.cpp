#include "train/hessian_collection.h"

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <utility>

#include "llama/error.h"
#include "terminal/output.h"
#include "train/training.h"

namespace cli {
namespace {

Engine open(const std::filesystem::path& model, ComputeOptions compute) {
  try {
    return Engine(model, compute);
  } catch (const llama::Error& error) {
    if (compute.device == "cpu") throw;
    std::fprintf(stderr, "kvq: the inputs of linear layers are collected on the CPU: %s\n", error.what());
    compute.device = "cpu";
    return Engine(model, compute);
  }
}

}  // namespace

HessianCollection::HessianCollection(const std::filesystem::path& model, const ComputeOptions& compute,
                                     std::span<const llama::Tokens> windows, uint64_t bytes, IsWanted is_wanted)
    : engine_(open(model, compute)),
      windows_(windows),
      bytes_(bytes > 0 ? bytes : engine_.model.device().memory_bytes() / 2),
      is_wanted_(std::move(is_wanted)) {}

std::vector<HessianCollection::Layers> HessianCollection::runs(Layers layers) const {
  std::vector<Layers> runs;
  std::vector<llama::LinearLayer> together;
  size_t begin = 0;
  for (size_t i = 0; i < layers.size(); ++i) {
    if (!is_wanted_(layers[i])) continue;
    if (const uint64_t alone = llama::Hessians::bytes(layers.subspan(i, 1)); alone > bytes_) {
      throw llama::Error("--hessian needs " + bytes_text(alone) + " for the inputs of " + layers[i].name +
                         ", and sums may take " + bytes_text(bytes_) + ": see --hessian-memory");
    }
    together.push_back(layers[i]);
    if (llama::Hessians::bytes(together) <= bytes_) continue;
    runs.push_back(layers.subspan(begin, i - begin));
    begin = i;
    together = {layers[i]};
  }
  runs.push_back(layers.subspan(begin));
  return runs;
}

void HessianCollection::collect(Layers layers, const std::string& label) {
  std::vector<llama::LinearLayer> wanted;
  std::ranges::copy_if(layers, std::back_inserter(wanted), is_wanted_);
  hessians_.reset();  // there may not be room for both
  hessians_.emplace(engine_.model.device(), wanted);
  llama::Session session(engine_.model, engine_.context, nullptr);
  session.observe_inputs(
      [this](int32_t layer, llama::LinearInput which, std::span<const float> x) { hessians_->add(layer, which, x); });
  run_windows(session, windows_, label);
}

}  // namespace cli
