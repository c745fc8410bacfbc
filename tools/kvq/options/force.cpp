#include "options/force.h"

#include <unistd.h>

#include <cstdio>
#include <iostream>

#include "llama/error.h"
#include "options/command.h"
#include "terminal/output.h"

namespace cli {

void add_force_flag(Command command, bool& force) {
  command.add_flag("--force,-f", force, "Replace the file if it is there, without asking");
}

void ask_to_replace(const std::filesystem::path& path, const std::string& option) {
  std::error_code failure;
  const uint64_t size = std::filesystem::file_size(path, failure);
  if (failure) return;
  const std::string exists = path.string() + " is there already (" + bytes_text(size) + ")";
  if (isatty(STDIN_FILENO) != 1 || isatty(STDERR_FILENO) != 1) {
    throw UsageError(option + " " + exists + ": --force (-f) replaces it");
  }
  std::fputs((exists + ". Replace it? [y/N] ").c_str(), stderr);
  std::string answer;
  std::getline(std::cin, answer);
  if (answer != "y" && answer != "Y" && answer != "yes") throw llama::Error(path.string() + " stays as it was");
}

}  // namespace cli
