#pragma once

#include <filesystem>

/// docs/policies of the source tree.
std::filesystem::path example_policies();

/// The plug-in of the pretended device.
std::filesystem::path pretended_device();
