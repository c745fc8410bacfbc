#include "train/balancing.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <system_error>
#include <vector>

#include "llama/error.h"
#include "terminal/files.h"

namespace cli {
namespace {

/// An Error unless the directory can be made, or is empty.
void make_directory(const std::filesystem::path& directory) {
  std::error_code failure;
  std::filesystem::create_directories(directory, failure);
  if (failure) throw llama::Error("cannot make " + directory.string() + ": " + failure.message());
  if (!std::filesystem::is_empty(directory, failure) || failure) {
    throw llama::Error(directory.string() + " is not empty: name a new directory");
  }
}

/// What a checkpoint has beside its weights: its configuration, tokenizer, index and texts.
void copy_the_rest(const std::filesystem::path& from, const std::filesystem::path& to) {
  constexpr std::array<std::string_view, 6> kKinds = {"", ".json", ".jinja", ".md", ".model", ".txt"};
  for (const auto& entry : std::filesystem::directory_iterator(from)) {
    const std::string kind = entry.path().extension().string();
    if (!entry.is_regular_file() || std::ranges::find(kKinds, kind) == kKinds.end()) continue;
    std::filesystem::copy_file(entry.path(), to / entry.path().filename());
  }
}

}  // namespace

kvq::Centres find_scales(const kvq::Context& context, const llama::Checkpoint& checkpoint,
                         const llama::ModelConfig& config, llama::ScaleOptions options, Progress& progress) {
  if (!options.fold) options.model_id = checkpoint.fingerprint();
  return llama::find_scales(context.get(), checkpoint, config, options, [&progress] {
    Interrupt::check();
    progress.advance(1);
  });
}

uint64_t write_balanced(const std::filesystem::path& directory, const std::filesystem::path& model,
                        const llama::Checkpoint& checkpoint, const llama::ModelConfig& config,
                        const kvq::Centres& scales) {
  std::vector<llama::LayerScales> layers;
  for (int32_t i = 0; i < config.n_layers; ++i) layers.push_back(llama::scales_of(scales, i));
  make_directory(directory);
  try {
    copy_the_rest(model, directory);
    uint64_t bytes = 0;
    llama::fold(checkpoint, config, layers, [&](const std::string& name, const llama::SafetensorsContent& content) {
      Interrupt::check();
      OutputFile file(directory / llama::path_of(name));
      llama::write_safetensors(content, [&](std::span<const std::byte> piece) {
        file.write(piece);
        bytes += piece.size();
      });
      file.finish();
    });
    return bytes;
  } catch (...) {
    std::error_code ignored;
    std::filesystem::remove_all(directory, ignored);
    throw;
  }
}

}  // namespace cli
