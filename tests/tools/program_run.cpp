#include "program_run.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>

#include "support/places.h"
#include "support/scratch_directory.h"

Arguments with(Arguments arguments, const Arguments& more) {
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

std::string contents(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

namespace {

/// Where a program reads and writes.
struct Streams {
  std::string in;
  std::string out;
  std::string err;
};

pid_t start(const Arguments& arguments, const Streams& streams) {
  const std::string path = program();
  std::vector<char*> argv{const_cast<char*>(path.c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, streams.in.c_str(), O_RDONLY | O_NOCTTY, 0);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, streams.out.c_str(), O_WRONLY | O_CREAT | O_NOCTTY, 0600);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, streams.err.c_str(), O_WRONLY | O_CREAT | O_NOCTTY, 0600);
  pid_t child = 0;
  REQUIRE(posix_spawn(&child, path.c_str(), &actions, nullptr, argv.data(), environ) == 0);
  posix_spawn_file_actions_destroy(&actions);
  return child;
}

int exit_code(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : -1; }

}  // namespace

Outcome run(const Arguments& arguments, const std::string& out, const std::string& in) {
  const ScratchDirectory scratch;
  const std::string out_path = out.empty() ? (scratch.path() / "out").string() : out;
  const std::string err_path = (scratch.path() / "err").string();
  const pid_t child = start(arguments, {in, out_path, err_path});
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  return {exit_code(status), out.empty() ? contents(out_path) : "", contents(err_path)};
}

Outcome run_in_terminal(const Arguments& arguments, const std::string& input) {
  const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
  REQUIRE(terminal >= 0);
  REQUIRE(grantpt(terminal) == 0);
  REQUIRE(unlockpt(terminal) == 0);
  const std::string name = ptsname(terminal);
  const int held = open(name.c_str(), O_RDWR | O_NOCTTY);  // or reads fail until the program opens it
  const pid_t child = start(arguments, {name, name, name});
  close(held);
  const std::string typed = input.empty() ? "\x04" : input;  // Ctrl-D: the end of input
  REQUIRE(write(terminal, typed.data(), typed.size()) == static_cast<ssize_t>(typed.size()));
  std::string shown;
  std::array<char, 4096> part{};
  for (ssize_t n = 0; (n = read(terminal, part.data(), part.size())) > 0;)
    shown.append(part.data(), static_cast<size_t>(n));
  close(terminal);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  return {exit_code(status), shown, ""};
}

Outcome run_until(const Arguments& arguments, const std::function<bool()>& condition) {
  const ScratchDirectory scratch;
  const std::string out_path = (scratch.path() / "out").string();
  const std::string err_path = (scratch.path() / "err").string();
  const pid_t child = start(arguments, {"/dev/null", out_path, err_path});
  int status = 0;
  pid_t ended = 0;
  while (ended == 0 && !condition()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ended = waitpid(child, &status, WNOHANG);
  }
  if (ended == 0) {
    kill(child, SIGINT);
    ended = waitpid(child, &status, 0);
  }
  REQUIRE(ended == child);
  return {exit_code(status), contents(out_path), contents(err_path)};
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
