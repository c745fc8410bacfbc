// Command lines that evaluate the embedded model.
#pragma once

#include <string>

#include "places.h"
#include "program_run.h"

inline const std::string kModel = demo_model();
inline const std::string kText = kModel + "/sample.txt";

inline Arguments perplexity(const Arguments& more) {
  Arguments arguments{"eval", "perplexity", "--model", kModel, "--text", kText};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

inline Arguments needle(const Arguments& more) {
  Arguments arguments{"eval", "needle", "--model", kModel};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

inline Arguments eviction(const Arguments& more) {
  Arguments arguments{"eval", "eviction", "--model", kModel, "--text", kText};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}
