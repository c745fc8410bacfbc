#pragma once

#include "kvq.hpp"
#include "options/command.h"

namespace cli {

struct ComputeOptions {
  int32_t threads = 0;
  std::string isa;             // empty: the best of this machine
  std::string device = "cpu";  // or "cuda"
  int32_t device_index = 0;
};

/// Each adds options whose targets' values are the defaults: `--threads`, this and `--isa`, `--device` and
/// `--device-index`, `--json`, all of these, `--seed`.
void add_threads_option(Command command, ComputeOptions& options);
void add_compute_options(Command command, ComputeOptions& options);
void add_device_options(Command command, ComputeOptions& options);
void add_json_flag(Command command, bool& json);
void add_run_options(Command command, ComputeOptions& options, bool& json);
void add_seed_option(Command command, uint64_t& seed, const std::string& help);

/// Options of a context with threads of its own. Refers to `options`.
kvq_context_options context_options(const ComputeOptions& options);
kvq::Context make_context(const ComputeOptions& options);

/// Those that the library can use on this processor.
std::vector<std::string> instruction_sets();

/// For example "2 threads with avx512vnni instructions" or "NVIDIA H100 80GB HBM3, sm_90".
std::string machine_text(const kvq::Context& context, const ComputeOptions& options);

/// "6GiB", "512 MB", "1000000": a number of bytes with or without a unit, of 1024 (KiB, MiB, GiB, TiB) or 1000 (KB, MB,
/// GB, TB). A UsageError that names `option` for anything else, and for less than a million without a unit.
uint64_t parse_byte_count(const std::string& text, const std::string& option);

struct MatrixShape {
  int64_t out = 0;
  int64_t in = 0;
};

/// Add `--scheme`, which may be repeated, or `--shape`.
Option add_schemes_option(Command command, std::vector<std::string>& schemes, const std::string& help);
void add_shape_option(Command command, std::string& shape);

/// A UsageError that lists all schemes if `scheme` is none.
void check_scheme(const std::string& scheme);

/// "14336x4096": outputs and inputs of a linear layer. A UsageError unless the library takes such a matrix.
MatrixShape parse_matrix_shape(const std::string& text);

}  // namespace cli
