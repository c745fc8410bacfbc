#include "options/tuning.h"

#include <filesystem>
#include <string_view>
#include <utility>
#include <vector>

#include "llama/error.h"
#include "llama/linear_layers.h"
#include "options/command.h"
#include "terminal/output_file.h"
#include "terminal/progress.h"
#include "terminal/text_file.h"

namespace cli {
namespace {

constexpr size_t kMostBytes = size_t{16} << 20U;

/// Packed layers of a decoder layer that read the same inputs.
using Shared = std::vector<const qp_matrix*>;

std::vector<Shared> shared_layers(llama::Model& model) {
  std::vector<Shared> all;
  for (int32_t i = 0; i < model.config().n_layers; ++i) {
    llama::LinearInput before = llama::LinearInput::kDown;
    for (const llama::LinearLayer& layer : llama::linear_layers(model.config(), i)) {
      if (all.empty() || layer.input != before) all.emplace_back();
      before = layer.input;
      if (const auto& packed = model.linear(layer).packed; packed != nullptr) all.back().push_back(*packed);
    }
  }
  std::erase_if(all, [](const Shared& shared) { return shared.empty(); });
  return all;
}

}  // namespace

void add_tuning_option(Command command, std::string& path) {
  command.add_option(
      "--tuning", path,
      "On a GPU: go by measurements of which kernels are the fastest for the linear layers, kept in this "
      "file; those that it lacks are made and added (default: by an estimate)");
}

Tuning::Tuning(const kvq::Context& context, std::string path) : context_(&context), path_(std::move(path)) {
  if (path_.empty()) return;
  if (std::string_view(context_->describe().backend) == "cpu") {
    throw UsageError("--tuning " + path_ + ": only a GPU's kernels are measured; give --device cuda, too");
  }
  if (!std::filesystem::exists(path_)) {
    check_writable(path_);
    return;
  }
  try {
    context_->tuning_load(read_text(path_, kMostBytes));
  } catch (const kvq::Error& error) {
    throw llama::Error("--tuning " + path_ + ": " + error.what());
  }
}

void Tuning::measure(std::span<const qp_matrix* const> matrices, int32_t batch) const {
  if (!path_.empty()) kvq::Matrix::tune(matrices, batch);
}

void Tuning::keep() const {
  if (path_.empty()) return;
  const std::string text = context_->tuning_save();
  write_file(path_, std::as_bytes(std::span(text)));
}

void tune(Engine& engine, const std::string& path, int32_t chunk) {
  const Tuning tuning(engine.context, path);
  if (path.empty()) return;
  const std::vector<Shared> layers = shared_layers(engine.model);
  {
    Progress progress("tuning", static_cast<int64_t>(layers.size()));
    for (const Shared& shared : layers) {
      for (const int32_t batch : {1, chunk}) tuning.measure(shared, batch);
      progress.advance(1);
    }
  }
  tuning.keep();
}

}  // namespace cli
