#pragma once

#include <filesystem>

namespace cli {

/// The directory of the model that comes with the program: beside an installed program, else in the source tree. An
/// Error that names both places if it is in neither.
std::filesystem::path demo_model_directory();

}  // namespace cli
