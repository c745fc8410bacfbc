#pragma once

#include <csignal>

#include "llama/error.h"

namespace cli {

/// The user wants no more.
class Interrupted : public llama::Error {
 public:
  Interrupted() : Error("interrupted") {}
};

/// While one lives, Ctrl-C and SIGTERM are noted, so that work can be left in order; a second one ends the program.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  static bool requested();
  /// Throws Interrupted if there was one.
  static void check();

 private:
  struct sigaction old_interrupt_;
  struct sigaction old_terminate_;
};

}  // namespace cli
