#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "options/compute.h"

namespace cli {

/// What is asked of a model that is known by its configuration alone.
struct FitsQuestion {
  std::string model;    // directory or config.json
  uint64_t memory = 0;  // bytes that there are; 0: not known
  int32_t context = 0;  // tokens to be highlighted among the lengths; 0: none
  int32_t batch = 1;
  std::vector<std::string> schemes;  // empty: usual ones
  std::vector<std::string> formats;  // of keys and values; empty: usual ones
  bool json = false;
  ComputeOptions compute;
};

/// Print how many bytes weights and caches take in each scheme and format, and what fits.
void print_what_fits(const FitsQuestion& question);

}  // namespace cli
