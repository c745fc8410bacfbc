#pragma once

#include <filesystem>

/// docs/policies of the source tree.
std::filesystem::path example_policies();

/// The plug-in of a device that is none.
std::filesystem::path pretended_device();
