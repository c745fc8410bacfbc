#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

namespace cli {

/// Points of a line or of separate marks.
struct PlotSeries {
  std::string name;
  std::vector<std::pair<double, double>> points;
  bool line = true;                      // through the points, else a mark at each
  std::vector<std::string> labels = {};  // beside the points: one for each, or none
};

/// A picture of lines over a number, as an SVG text that any browser shows, on light and on dark pages.
struct LinePlot {
  std::string title;
  std::string x_label;
  std::string y_label;
  bool logarithmic = false;    // the upright axis; points that are not above 0 are left out
  bool logarithmic_x = false;  // of points above 0
  std::vector<PlotSeries> series;

  std::string svg() const;
};

/// Several, one below the other.
std::string svg_of(std::span<const LinePlot> plots);

}  // namespace cli
