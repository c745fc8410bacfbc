#pragma once

#include <cstdint>
#include <string>

#include "kvq.hpp"
#include "options/command.h"

namespace cli {

/// What every command that computes can be told.
struct ComputeOptions {
  int32_t threads = 0;
  std::string isa;             // empty: the best of this machine
  std::string device = "cpu";  // or "cuda"
  int32_t device_index = 0;
};

/// Add `--threads` and `--isa`.
void add_compute_options(Command command, ComputeOptions& options);

/// Add `--device` and `--device-index`.
void add_device_options(Command command, ComputeOptions& options);

/// Add `--json`.
void add_json_flag(Command command, bool& json);

/// Add `--seed`, whose value is the default.
void add_seed_option(Command command, uint64_t& seed, const std::string& help);

/// Of a context with threads of its own. Refers to `options`.
kvq_context_options context_options(const ComputeOptions& options);
kvq::Context make_context(const ComputeOptions& options);

/// For example "2 threads with avx512vnni instructions" or "NVIDIA H100 80GB HBM3, sm_90".
std::string machine_text(const kvq::Context& context, const ComputeOptions& options);

}  // namespace cli
