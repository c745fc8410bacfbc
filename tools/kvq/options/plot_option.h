#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "options/command.h"
#include "terminal/line_plot.h"

namespace cli {

/// Add `--plot`, a file that must be writable before any work begins. \param what  is drawn, as in "Draw what."
void add_plot_option(Command command, std::filesystem::path& plot, const std::string& what);

/// Nothing if `path` is empty.
void write_plots(const std::filesystem::path& path, std::span<const LinePlot> plots);

/// Of a format, short enough to stand beside a point.
std::string plot_name(const std::string& spec);

}  // namespace cli
