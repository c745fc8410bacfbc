#include "terminal/line_plot.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>

namespace cli {
namespace {

constexpr double kWidth = 760;
constexpr double kHeight = 440;
constexpr double kLeft = 84;
constexpr double kRight = 24;
constexpr double kTop = 48;
constexpr double kBottom = 60;
constexpr int kTicks = 6;  // about
/// Colours that stay apart for colour-blind readers.
constexpr std::array kColors = {"#0072b2", "#d55e00", "#009e73", "#b5619a", "#c98200"};

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
  std::snprintf(text.data(), text.size(), "%.4g", value);
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
  Axis(bool logarithmic, double low, double high) : logarithmic_(logarithmic), low_(low), high_(high) {
    if (low_ > high_) low_ = high_ = 1.0;
    if (low_ == high_) {
      low_ = logarithmic ? low_ / 2 : low_ - 1;
      high_ = logarithmic ? high_ * 2 : high_ + 1;
    }
  }

  double at(double value) const { return (scaled(value) - scaled(low_)) / (scaled(high_) - scaled(low_)); }

  std::vector<double> ticks() const { return logarithmic_ ? decades() : steps(); }

 private:
  double scaled(double value) const { return logarithmic_ ? std::log10(value) : value; }

  std::vector<double> steps() const {
    const double rough = (high_ - low_) / kTicks;
    const double decade = std::pow(10.0, std::floor(std::log10(rough)));
    double step = decade;
    for (const double factor : {2.0, 5.0, 10.0}) {
      if (step < rough) step = factor * decade;
    }
    std::vector<double> ticks;
    for (double i = std::ceil(low_ / step); i * step <= high_ * (1 + 1e-12); i += 1) ticks.push_back(i * step);
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

class Picture {
 public:
  explicit Picture(const LinePlot& plot) : plot_(plot), x_(range(false)), y_(range(true)) {}

  std::string svg() const {
    std::string text = "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " + number(kWidth) + " " +
                       number(kHeight) +
                       "\" font-family=\"sans-serif\" font-size=\"13\">\n"
                       "<style>text{fill:#1f2328}.axis{stroke:#8b949e}.grid{stroke:#d0d7de}"
                       "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.grid{stroke:#30363d}}</style>\n";
    text += label(kLeft, 24, "start", plot_.title, " font-size=\"16\" font-weight=\"bold\"");
    text += axes();
    for (size_t i = 0; i < plot_.series.size(); ++i) text += series(plot_.series[i], i);
    return text + "</svg>\n";
  }

 private:
  Axis range(bool upright) const {
    double low = std::numeric_limits<double>::infinity();
    double high = -low;
    for (const PlotSeries& each : plot_.series) {
      for (const auto& [x, y] : each.points) {
        if (!shows(y)) continue;
        low = std::min(low, upright ? y : x);
        high = std::max(high, upright ? y : x);
      }
    }
    return {upright && plot_.logarithmic, low, high};
  }

  bool shows(double y) const { return std::isfinite(y) && (!plot_.logarithmic || y > 0.0); }
  double left(double x) const { return kLeft + x_.at(x) * (kWidth - kLeft - kRight); }
  double top(double y) const { return kHeight - kBottom - y_.at(y) * (kHeight - kTop - kBottom); }

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
      text += line(kLeft, top(tick), kWidth - kRight, top(tick), "grid");
      text += label(kLeft - 8, top(tick) + 4, "end", number(tick));
    }
    for (const double tick : x_.ticks()) {
      text += line(left(tick), kHeight - kBottom, left(tick), kHeight - kBottom + 5, "axis");
      text += label(left(tick), kHeight - kBottom + 20, "middle", number(tick));
    }
    text += line(kLeft, kHeight - kBottom, kWidth - kRight, kHeight - kBottom, "axis");
    text += label((kLeft + kWidth - kRight) / 2, kHeight - 14, "middle", plot_.x_label);
    const double middle = (kTop + kHeight - kBottom) / 2;
    return text + label(20, middle, "middle", plot_.y_label, " transform=\"rotate(-90 20 " + place(middle) + ")\"");
  }

  std::string series(const PlotSeries& of, size_t index) const {
    const std::string color = kColors[index % kColors.size()];
    std::string path;
    std::string marks;
    for (const auto& [x, y] : of.points) {
      if (!shows(y)) continue;
      path += (path.empty() ? "M" : "L") + place(left(x)) + " " + place(top(y));
      marks += "<circle cx=\"" + place(left(x)) + "\" cy=\"" + place(top(y)) + "\" r=\"4\" fill=\"" + color + "\"/>\n";
    }
    std::string text = of.line ? "" : marks;
    if (of.line) text += "<path d=\"" + path + "\" fill=\"none\" stroke=\"" + color + "\" stroke-width=\"2\"/>\n";
    const double y = kTop + 8 + 18 * static_cast<double>(index);
    text += "<rect x=\"" + place(kWidth - kRight - 12) + "\" y=\"" + place(y - 9) +
            "\" width=\"10\" height=\"10\" fill=\"" + color + "\"/>\n";
    return text + label(kWidth - kRight - 18, y, "end", of.name);
  }

  const LinePlot& plot_;
  Axis x_;
  Axis y_;
};

}  // namespace

std::string LinePlot::svg() const { return Picture(*this).svg(); }

}  // namespace cli
