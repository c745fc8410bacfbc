// Command lines that evaluate the embedded model.
#pragma once

#include <string>

#include "program_run.h"
#include "support/places.h"

inline const std::string kModel = demo_model();
inline const std::string kText = kModel + "/sample.txt";

/// With a reference.
inline Arguments compared(const Arguments& more) {
  return with({"eval", "perplexity", "--model", kModel, "--text", kText}, more);
}

/// Without one.
inline Arguments perplexity(const Arguments& more) { return with(compared({"--against", "none"}), more); }

inline Arguments generation(const Arguments& more) {
  return with({"eval", "generate", "--model", kModel, "--text", kText}, more);
}

inline Arguments needle(const Arguments& more) { return with({"eval", "needle", "--model", kModel}, more); }

inline Arguments eviction(const Arguments& more) {
  return with({"eval", "eviction", "--model", kModel, "--text", kText}, more);
}
