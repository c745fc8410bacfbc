#include "program_run.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <sstream>
#include <thread>

#include "support/places.h"
#include "support/scratch_directory.h"

namespace {

/// What a program has said, without the lines of progress that it writes if it takes long, as on a busy machine.
std::string messages(const std::filesystem::path& path) {
  std::istringstream lines(contents(path));
  std::string text;
  for (std::string line; std::getline(lines, line);) {
    const bool progress =
        line.find(" %, ") != std::string::npos && (line.ends_with(" left") || line.ends_with(" so far"));
    if (!progress) text += line + (lines.eof() ? "" : "\n");
  }
  return text;
}

}  // namespace

Arguments with(Arguments arguments, const Arguments& more) {
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

std::string contents(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

Outcome run(const Arguments& arguments, const std::string& out, const std::string& in) {
  const ScratchDirectory scratch;
  const std::string out_path = out.empty() ? (scratch.path() / "out").string() : out;
  const std::string err_path = (scratch.path() / "err").string();
  kvq_test::Process process(program(), arguments, {in, out_path, err_path});
  const int exit_code = process.wait();
  return {exit_code, out.empty() ? contents(out_path) : "", messages(err_path)};
}

std::optional<Outcome> run_in_terminal(const Arguments& arguments, const std::string& input) {
  const std::optional<kvq_test::Shown> shown = kvq_test::run_in_terminal(program(), arguments, input);
  if (!shown) return {};
  return Outcome{shown->exit_code, shown->text, ""};
}

Outcome run_until(const Arguments& arguments, const std::function<bool()>& condition) {
  const ScratchDirectory scratch;
  const std::string out_path = (scratch.path() / "out").string();
  const std::string err_path = (scratch.path() / "err").string();
  kvq_test::Process process(program(), arguments, {kvq_test::kNothing, out_path, err_path});
  std::optional<int> exit_code;
  while (!exit_code && !condition()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    exit_code = process.exit_code();
  }
  if (!exit_code) {
    process.interrupt();
    exit_code = process.wait();
  }
  return {*exit_code, contents(out_path), messages(err_path)};
}

std::string run_text(const Arguments& arguments) {
  const Outcome outcome = run(arguments);
  CAPTURE(outcome.err);
  REQUIRE(outcome.exit_code == 0);
  CHECK(outcome.err == "");
  return outcome.out;
}

nlohmann::json run_json(const Arguments& arguments) {
  nlohmann::json object = nlohmann::json::parse(run_text(with(arguments, {"--json"})));  // throws on anything else
  REQUIRE(object.is_object());
  return object;
}

void check_fits_page(const std::string& text) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) CHECK_MESSAGE(line.size() <= 100, line);
}

void check_numbers(const nlohmann::json& object, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    CAPTURE(name);
    REQUIRE(object.contains(name));
    CHECK(object[name].is_number());
  }
}

void check_failure(const Arguments& arguments, int exit_code, const std::string& reason) {
  std::string command;
  for (const std::string& argument : arguments) command += " " + argument;
  CAPTURE(command);
  const Outcome outcome = run(arguments);
  CHECK(outcome.exit_code == exit_code);
  CHECK(outcome.out == "");
  CHECK(outcome.err.starts_with("kvq: "));
  CHECK(std::ranges::count(outcome.err, '\n') == 1);
  CHECK(outcome.err.ends_with("\n"));
  CHECK_MESSAGE(outcome.err.find(reason) != std::string::npos, outcome.err);
}
