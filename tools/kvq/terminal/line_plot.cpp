#include "terminal/line_plot.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>

namespace cli {
namespace {

constexpr double kPlotWidth = 760;
constexpr double kHeight = 440;
constexpr double kLeft = 84;
constexpr double kRight = 24;
constexpr double kTop = 40;  // without a legend
constexpr double kLegendRow = 20;
constexpr double kBottom = 60;
constexpr int kTicks = 6;  // about
/// Colours that stay apart for colour-blind readers.
constexpr std::array kColors = {"#0072b2", "#d55e00", "#009e73", "#b5619a", "#c98200", "#56b4e9", "#7d8590"};
constexpr double kCharacter = 7.0;  // of text, about
constexpr double kMark = 4;         // radius

std::string escaped(const std::string& text) {
  std::string result;
  for (const char each : text) {
    switch (each) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      default:
        result += each;
    }
  }
  return result;
}

std::string number(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.6g", value);
  return text.data();
}

std::string place(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f", value);
  return text.data();
}

/// Numbers of an axis, and where they lie between 0 and 1.
class Axis {
 public:
  Axis(bool logarithmic, std::pair<double, double> range)
      : logarithmic_(logarithmic), low_(range.first), high_(range.second) {
    if (low_ > high_) low_ = high_ = 1.0;
    if (low_ == high_) {
      low_ = logarithmic ? low_ / 2 : low_ - 1;
      high_ = logarithmic ? high_ * 2 : high_ + 1;
    }
    const double margin = kMargin * (scaled(high_) - scaled(low_));
    low_ = number_at(scaled(low_) - margin);
    high_ = number_at(scaled(high_) + margin);
  }

  double at(double value) const { return (scaled(value) - scaled(low_)) / (scaled(high_) - scaled(low_)); }

  std::vector<double> ticks() const {
    constexpr size_t kFew = 3;
    const std::vector<double> rough = logarithmic_ ? decades() : steps();
    return rough.size() < kFew ? steps() : rough;
  }

 private:
  static constexpr double kMargin = 0.04;  // that no mark lies on the border

  double scaled(double value) const { return logarithmic_ ? std::log10(value) : value; }
  double number_at(double scaled) const { return logarithmic_ ? std::pow(10.0, scaled) : scaled; }

  std::vector<double> steps() const {
    const double rough = (high_ - low_) / kTicks;
    const double decade = std::pow(10.0, std::floor(std::log10(rough)));
    double step = decade;
    for (const double factor : {2.0, 5.0, 10.0}) {
      if (step < rough) step = factor * decade;
    }
    std::vector<double> ticks;
    for (double i = std::ceil(low_ / step); i * step <= high_ * (1 + 1e-12); i += 1)
      ticks.push_back(i * step + 0.0);  // no -0
    return ticks;
  }

  std::vector<double> decades() const {
    std::vector<double> ticks;
    const bool few = std::log10(high_ / low_) < 3;
    for (double i = std::floor(std::log10(low_)); i <= std::log10(high_); i += 1) {
      for (const double factor : {1.0, 2.0, 5.0}) {
        const double tick = factor * std::pow(10.0, i);
        if (tick >= low_ * (1 - 1e-12) && tick <= high_ * (1 + 1e-12) && (few || factor == 1.0)) ticks.push_back(tick);
      }
    }
    return ticks;
  }

  bool logarithmic_;
  double low_;
  double high_;
};

/// Where something is drawn already.
struct Box {
  double left, top, right, bottom;

  bool meets(const Box& other) const {
    return left < other.right && other.left < right && top < other.bottom && other.top < bottom;
  }
};

struct LegendEntry {
  double x, y;
};

class Picture {
 public:
  /// \param begin  where it begins in a column of pictures.
  Picture(const LinePlot& plot, double begin)
      : plot_(plot),
        legend_(legend_of(plot)),
        x_(plot.logarithmic_x, range(false)),
        y_(plot.logarithmic, range(true)),
        begin_(begin),
        top_(begin + (legend_.empty() ? kTop : legend_.back().y + kLegendRow)),
        bottom_(begin + kHeight - kBottom) {}

  std::string elements() const {
    std::string text = label(kLeft, begin_ + 24, "start", plot_.title, " font-size=\"16\" font-weight=\"bold\"");
    text += axes() + legend();
    for (size_t i = 0; i < plot_.series.size(); ++i) text += series(plot_.series[i], color(i));
    return text + labels();
  }

 private:
  /// Entries from left to right, as many to a row as fit. None for a single series, which the title describes.
  static std::vector<LegendEntry> legend_of(const LinePlot& plot) {
    std::vector<LegendEntry> entries;
    if (plot.series.size() < 2) return entries;
    double x = kLeft;
    double y = kTop + 4;
    for (const PlotSeries& each : plot.series) {
      const double width = 16 + kCharacter * static_cast<double>(each.name.size()) + 18;
      if (x > kLeft && x + width > kPlotWidth - kRight) {
        x = kLeft;
        y += kLegendRow;
      }
      entries.push_back({x, y});
      x += width;
    }
    return entries;
  }

  std::pair<double, double> range(bool upright) const {
    double low = std::numeric_limits<double>::infinity();
    double high = -low;
    for (const PlotSeries& each : plot_.series) {
      for (const auto& [x, y] : each.points) {
        if (!shows(x, y)) continue;
        low = std::min(low, upright ? y : x);
        high = std::max(high, upright ? y : x);
      }
    }
    return {low, high};
  }

  bool shows(double x, double y) const {
    return std::isfinite(x) && std::isfinite(y) && (!plot_.logarithmic || y > 0.0) && (!plot_.logarithmic_x || x > 0.0);
  }
  double left(double x) const { return kLeft + x_.at(x) * (kPlotWidth - kLeft - kRight); }
  double top(double y) const { return bottom_ - y_.at(y) * (bottom_ - top_); }
  static std::string color(size_t series) { return kColors[series % kColors.size()]; }

  static std::string label(double x, double y, const char* anchor, const std::string& text,
                           const std::string& more = "") {
    return "<text x=\"" + place(x) + "\" y=\"" + place(y) + "\" text-anchor=\"" + anchor + "\"" + more + ">" +
           escaped(text) + "</text>\n";
  }

  static std::string line(double x1, double y1, double x2, double y2, const char* kind) {
    return "<line x1=\"" + place(x1) + "\" y1=\"" + place(y1) + "\" x2=\"" + place(x2) + "\" y2=\"" + place(y2) +
           "\" class=\"" + kind + "\"/>\n";
  }

  std::string axes() const {
    std::string text;
    for (const double tick : y_.ticks()) {
      text += line(kLeft, top(tick), kPlotWidth - kRight, top(tick), "grid");
      text += label(kLeft - 8, top(tick) + 4, "end", number(tick));
    }
    for (const double tick : x_.ticks()) {
      text += line(left(tick), bottom_, left(tick), bottom_ + 5, "axis");
      text += label(left(tick), bottom_ + 20, "middle", number(tick));
    }
    text += line(kLeft, bottom_, kPlotWidth - kRight, bottom_, "axis");
    text += label((kLeft + kPlotWidth - kRight) / 2, bottom_ + kBottom - 14, "middle", plot_.x_label);
    const double middle = (top_ + bottom_) / 2;
    return text + label(20, middle, "middle", plot_.y_label, " transform=\"rotate(-90 20 " + place(middle) + ")\"");
  }

  std::string legend() const {
    std::string text;
    for (size_t i = 0; i < legend_.size(); ++i) {
      const double y = begin_ + legend_[i].y;
      text += "<rect x=\"" + place(legend_[i].x) + "\" y=\"" + place(y - 9) + "\" width=\"10\" height=\"10\" fill=\"" +
              color(i) + "\"/>\n";
      text += label(legend_[i].x + 16, y, "start", plot_.series[i].name);
    }
    return text;
  }

  std::string series(const PlotSeries& of, const std::string& color) const {
    std::string path;
    std::string marks;
    for (const auto& [x, y] : of.points) {
      if (!shows(x, y)) continue;
      path += (path.empty() ? "M" : "L") + place(left(x)) + " " + place(top(y));
      marks += "<circle cx=\"" + place(left(x)) + "\" cy=\"" + place(top(y)) + "\" r=\"" + place(kMark) + "\" fill=\"" +
               color + "\"/>\n";
    }
    if (!of.line) return marks;
    return "<path d=\"" + path + "\" fill=\"none\" stroke=\"" + color + "\" stroke-width=\"2\"/>\n";
  }

  /// Beside their points, where there is room.
  std::string labels() const {
    std::vector<Box> taken;
    for (const PlotSeries& each : plot_.series) {
      for (const auto& [x, y] : each.points) {
        if (each.line || !shows(x, y)) continue;
        taken.push_back({left(x) - kMark, top(y) - kMark, left(x) + kMark, top(y) + kMark});
      }
    }
    std::string text;
    for (const PlotSeries& each : plot_.series) {
      for (size_t i = 0; i < each.labels.size(); ++i) {
        const auto& [x, y] = each.points[i];
        if (shows(x, y)) text += point_label(left(x), top(y), each.labels[i], taken);
      }
    }
    return text;
  }

  std::string point_label(double x, double y, const std::string& text, std::vector<Box>& taken) const {
    struct Spot {
      double x, y;
      const char* anchor;
      double before;  // share of the text left of x
    };
    const double width = kCharacter * static_cast<double>(text.size());
    const std::array<Spot, 6> spots = {{{x + 8, y + 4, "start", 0.0},
                                        {x - 8, y + 4, "end", 1.0},
                                        {x, y - 9, "middle", 0.5},
                                        {x, y + 18, "middle", 0.5},
                                        {x + 8, y - 9, "start", 0.0},
                                        {x + 8, y + 18, "start", 0.0}}};
    const auto box_of = [width](const Spot& at) {
      return Box{at.x - at.before * width, at.y - 10, at.x + (1.0 - at.before) * width, at.y + 2};
    };
    const auto is_free = [&](const Spot& at) {
      const Box box = box_of(at);
      return box.left >= kLeft && box.right <= kPlotWidth - kRight &&
             std::ranges::none_of(taken, [&box](const Box& other) { return box.meets(other); });
    };
    const auto* found = std::ranges::find_if(spots, is_free);
    if (found == spots.end()) found = spots.begin();
    taken.push_back(box_of(*found));
    return label(found->x, found->y, found->anchor, text, " font-size=\"12\"");
  }

  const LinePlot& plot_;
  std::vector<LegendEntry> legend_;
  Axis x_;
  Axis y_;
  double begin_;
  double top_;
  double bottom_;
};

}  // namespace

std::string LinePlot::svg() const { return svg_of({this, 1}); }

std::string svg_of(std::span<const LinePlot> plots) {
  std::string text = "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " + number(kPlotWidth) + " " +
                     number(kHeight * static_cast<double>(plots.size())) +
                     "\" font-family=\"sans-serif\" font-size=\"13\">\n"
                     "<style>text{fill:#1f2328}.axis{stroke:#8b949e}.grid{stroke:#d0d7de}"
                     "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.grid{stroke:#30363d}}</style>\n";
  for (size_t i = 0; i < plots.size(); ++i) text += Picture(plots[i], kHeight * static_cast<double>(i)).elements();
  return text + "</svg>\n";
}

}  // namespace cli
