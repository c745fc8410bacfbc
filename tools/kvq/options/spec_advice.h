#pragma once

#include <filesystem>
#include <string>

namespace cli {

/// The SPEC that a name in the demo's tables stands for, "commvq-1bit", "gs2-256" or "moqae", with the file beside the
/// model; any other as it is. "+METHOD:BUDGET" stays. A UsageError that names `option` if there is no such file.
std::string beside_model(const std::filesystem::path& model, const std::string& spec, const std::string& option);

}  // namespace cli
