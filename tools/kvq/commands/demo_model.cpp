#include "commands/demo.h"
#include "llama/system.h"

namespace cli {

std::filesystem::path demo_model_directory() {
  std::error_code ignored;
  const std::filesystem::path installed = llama::program_file().parent_path().parent_path() / "share/kvq/models/demo";
  const std::filesystem::path source = KVQ_DEMO_MODEL_SOURCE_DIR;
  for (const std::filesystem::path& directory : {installed, source}) {
    if (std::filesystem::exists(directory / "config.json", ignored)) return directory;
  }
  throw llama::Error("the demo model is neither in " + installed.string() + " nor in " + source.string());
}

}  // namespace cli
