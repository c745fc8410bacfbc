#include "options/plot_option.h"

#include "terminal/output_file.h"

namespace cli {

void add_plot_option(Command command, std::filesystem::path& plot, const std::string& what) {
  command.add_option("--plot", plot, "File to draw " + what + " to (SVG)").check([](const std::string& path) {
    check_writable(path);
    return std::string();
  });
}

void write_plots(const std::filesystem::path& path, std::span<const LinePlot> plots) {
  if (path.empty()) return;
  const std::string picture = svg_of(plots);
  write_file(path, std::as_bytes(std::span(picture)));
}

std::string plot_name(const std::string& spec) {
  constexpr size_t kMost = 28;
  const bool is_policy_text = spec.find('{') != std::string::npos;
  const std::string name = is_policy_text ? spec : spec.substr(spec.rfind('/', spec.find('.')) + 1);
  return name.size() <= kMost ? name : name.substr(0, kMost) + "...";
}

}  // namespace cli
