#pragma once

#include <span>
#include <string>
#include <vector>

#include "options/command.h"

namespace cli {

/// What a word on the command line may be.
struct Candidate {
  std::string text;
  std::string about;  // may be empty
};

/// What the last of `words`, those behind the program's name, may become: commands, options, or values of the option
/// before it. Nothing where any text or a file is meant.
std::vector<Candidate> complete(Command program, std::span<const std::string> words);

}  // namespace cli
