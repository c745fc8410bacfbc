// Pictures of measurements: --plot of every command that has it, and bars in a terminal.
#include <doctest/doctest.h>

#include <cstdlib>
#include <regex>
#include <string>
#include <vector>

#include "eval_commands.h"
#include "letter_model.h"
#include "packed_layers.h"
#include "program_run.h"
#include "support/scratch_directory.h"
#include "terminal/bar_chart.h"
#include "terminal/line_plot.h"

namespace plot_test {
namespace {

/// An attribute of all circles, in their order.
std::vector<double> of_circles(const std::string& svg, const std::string& attribute) {
  const std::regex pattern("<circle [^>]*" + attribute + "=\"([-0-9.]+)\"");
  std::vector<double> numbers;
  for (std::sregex_iterator at(svg.begin(), svg.end(), pattern); at != std::sregex_iterator(); ++at) {
    numbers.push_back(std::stod((*at)[1]));
  }
  return numbers;
}

size_t count(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

/// What a command draws.
std::string drawn(const Arguments& arguments) {
  const ScratchDirectory scratch;
  const std::string path = (scratch.path() / "plot.svg").string();
  run_text(with(arguments, {"--plot", path}));
  std::string svg = contents(path);
  CHECK(svg.starts_with("<svg "));
  CHECK(svg.ends_with("</svg>\n"));
  CHECK(svg.find("prefers-color-scheme:dark") != std::string::npos);
  CHECK(svg.find("nan") == std::string::npos);
  CHECK(svg.find("inf") == std::string::npos);
  return svg;
}

}  // namespace

TEST_CASE("points lie where their numbers, or the ratios of these, put them") {
  const cli::PlotSeries marks{.name = "m", .points = {{10, 1}, {100, 2}, {1000, 3}}, .line = false};
  cli::LinePlot plot{.title = "a <b>", .x_label = "x", .y_label = "y", .logarithmic_x = true, .series = {marks}};
  const std::string svg = plot.svg();
  const std::vector<double> x = of_circles(svg, "cx");
  const std::vector<double> y = of_circles(svg, "cy");
  REQUIRE(x.size() == 3);
  CHECK(x[1] - x[0] == doctest::Approx(x[2] - x[1]).epsilon(0.001));
  CHECK(y[0] - y[1] == doctest::Approx(y[1] - y[2]).epsilon(0.001));
  CHECK(y[0] > y[2]);
  CHECK(svg.find("a &lt;b&gt;") != std::string::npos);
  plot.logarithmic_x = false;
  const std::vector<double> plain = of_circles(plot.svg(), "cx");
  CHECK((plain[2] - plain[0]) / (plain[1] - plain[0]) == doctest::Approx(11.0).epsilon(0.01));
  // One below the other
  const std::vector<double> twice = of_circles(cli::svg_of(std::vector{plot, plot}), "cy");
  REQUIRE(twice.size() == 6);
  for (size_t i = 0; i < 3; ++i) CHECK(twice[i + 3] - twice[i] == doctest::Approx(440.0));
}

TEST_CASE("labels of points near each other do not overlap") {
  const cli::PlotSeries marks{.name = "m",
                              .points = {{1, 1}, {1.01, 1}, {1.02, 1}, {2, 2}},
                              .line = false,
                              .labels = {"one", "two", "three", "far"}};
  const std::string svg = cli::LinePlot{.title = "", .x_label = "", .y_label = "", .series = {marks}}.svg();
  const std::regex pattern("<text x=\"([0-9.]+)\" y=\"([0-9.]+)\"[^>]*>(one|two|three)<");
  std::vector<std::pair<double, double>> places;
  for (std::sregex_iterator at(svg.begin(), svg.end(), pattern); at != std::sregex_iterator(); ++at) {
    places.emplace_back(std::stod((*at)[1]), std::stod((*at)[2]));
  }
  REQUIRE(places.size() == 3);
  for (size_t i = 0; i < 3; ++i) {
    for (size_t j = 0; j < i; ++j) {
      const bool apart =
          std::abs(places[i].second - places[j].second) >= 12.0 || std::abs(places[i].first - places[j].first) >= 16.0;
      CHECK(apart);
    }
  }
}

TEST_CASE("every command with --plot draws each of its rows") {
  const Arguments windows{"--context", "128", "--windows", "1"};
  const std::string formats = drawn(compared(with(windows, {"--kv", "int4", "--kv", "gs2"})));
  CHECK(count(formats, "<circle ") == 4);  // divergence and perplexity
  CHECK(count(formats, ">gs2<") == 2);
  CHECK(count(formats, "<path ") == 1);  // perplexity of FP16
  const std::string alone = drawn(perplexity(with(windows, {"--kv", "fp16"})));
  CHECK(count(alone, "<circle ") == 1);
  const std::string evicted = drawn(eviction(
      with(windows, {"--needles", "1", "--methods", "snapkv,streaming", "--budgets", "32,50%", "--kv", "int4"})));
  CHECK(count(evicted, "<path ") == 2 * 3);  // perplexity and keys, of two methods and the full cache
  const std::string errors =
      drawn({"eval", "error", "--model", kModel, "--text", kText, "--kv", "int4", "--context", "64", "--windows", "1"});
  CHECK(count(errors, "<path ") == 2);
  const std::string lengths =
      drawn({"bench", "attend", "--length", "64,128", "--heads", "4", "--kv-heads", "2", "--kv", "int4"});
  CHECK(count(lengths, "<path ") == 2);  // FP16 and INT4
  const LetterModel model(packable_layout(false));
  const std::string layers =
      drawn({"quantize", "--model", model.model(), "--scheme", "nuq-4", "--out", model.path("w")});
  CHECK(count(layers, "<path ") == 7);
  check_failure(perplexity({"--plot", "/absent/plot.svg"}), 1, "cannot write /absent/plot.svg");
}

TEST_CASE("bench attend measures several lengths in one run") {
  const nlohmann::json rows = run_json({"bench", "attend", "--length", "64,256", "--heads", "4", "--kv-heads", "2",
                                        "--head-dim", "64", "--kv", "int8", "--kv", "int4"})["rows"];
  REQUIRE(rows.size() == 4);
  CHECK(rows[0]["length"] == 64);
  CHECK(rows[3]["length"] == 256);
  CHECK(rows[3]["kv"] == "int4");
  CHECK(rows[0]["bytes"] < rows[2]["bytes"]);
}

TEST_CASE("bars are as long as their numbers, in blocks or in plain characters") {
  const std::vector<cli::Bar> bars{{"all", 8.0, "8"}, {"half", 4.0, "4"}, {"bit", 0.1, ".1"}, {"none", 0.0, "0"}};
  CHECK(cli::bars_text("t", bars, false) ==
        "t\nall   " + std::string(40, '#') + " 8\nhalf  " + std::string(20, '#') + " 4\nbit   # .1\nnone  0\n");
  const std::string blocks = cli::bars_text("t", bars, true);
  CHECK(count(blocks, "\u2588") == 60);
  CHECK(count(blocks, "\u258c") == 1);  // half a character: 0.1 of 8 in 40
}

TEST_CASE("tables have a chart in a terminal only, in characters that it shows") {
  const Arguments arguments = compared({"--context", "64", "--windows", "1", "--kv", "int4", "--kv", "int2"});
  constexpr const char* kTitle = "mean KL divergence from fp16";
  CHECK(run_text(arguments).find(kTitle) == std::string::npos);
  setenv("TERM", "xterm", 1);
  setenv("LC_ALL", "C.UTF-8", 1);
  const std::string blocks = run_in_terminal(arguments).out;
  CHECK(blocks.find(kTitle) != std::string::npos);
  CHECK(blocks.find("\u2588") != std::string::npos);
  setenv("LC_ALL", "C", 1);
  const std::string plain = run_in_terminal(arguments).out;
  CHECK(plain.find("####") != std::string::npos);
  CHECK(plain.find("\u2588") == std::string::npos);
  setenv("KVQ_NO_CHARTS", "1", 1);
  CHECK(run_in_terminal(arguments).out.find(kTitle) == std::string::npos);
  unsetenv("KVQ_NO_CHARTS");
  unsetenv("LC_ALL");
}

}  // namespace plot_test
