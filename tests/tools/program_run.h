#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "support/system.h"

using Arguments = std::vector<std::string>;

struct Outcome {
  int exit_code = -1;  // -1: ended by a signal
  std::string out;
  std::string err;
};

/// `arguments` and more of them.
Arguments with(Arguments arguments, const Arguments& more);

/// The bytes of a file.
std::string contents(const std::filesystem::path& path);

/// Run the program with nothing to read, or the file `in`, and, unless `out` says otherwise, its output in files.
Outcome run(const Arguments& arguments, const std::string& out = "", const std::string& in = kvq_test::kNothing);

/// Run the program in a terminal, where `input` is typed; what it shows there, all of it, is the outcome's `out`.
/// Nothing if this system has no terminals for tests.
std::optional<Outcome> run_in_terminal(const Arguments& arguments, const std::string& input = "");

/// Run the program and interrupt it, as Ctrl-C does, once `condition` holds; it may end before.
Outcome run_until(const Arguments& arguments, const std::function<bool()>& condition);

/// Standard output of a successful run, which says nothing else.
std::string run_text(const Arguments& arguments);

/// The one JSON object on it.
nlohmann::json run_json(const Arguments& arguments);

/// No line is longer than 100 characters.
void check_fits_page(const std::string& text);

void check_numbers(const nlohmann::json& object, const std::vector<std::string>& names);

/// Failures say one line, and why, on standard error and nothing on standard output.
void check_failure(const Arguments& arguments, int exit_code, const std::string& reason);
