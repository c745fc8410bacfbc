#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "llama/handles.h"
#include "llama/model.h"
#include "llama/tokenizer.h"

namespace cli {

/// What every command that computes can be told.
struct ComputeOptions {
  int32_t threads = 0;
  std::string isa;             // empty: the best of this machine
  std::string device = "cpu";  // or "cuda"
  int32_t device_index = 0;
};

/// Add `--threads` and `--isa`.
void add_compute_options(CLI::App& command, ComputeOptions& options);

/// Add `--device` and `--device-index`.
void add_device_options(CLI::App& command, ComputeOptions& options);

/// A context with threads of its own.
llama::ContextHandle make_context(const ComputeOptions& options);

kvq_context_info describe(const kvq_context* context);

/// An Error with the reason if there is no such device.
kvq_device_info describe_cuda(int32_t index);

/// Of this machine.
uint64_t memory_bytes();

/// For example "2 threads with avx512vnni instructions" or "NVIDIA H100 80GB HBM3, sm_90".
std::string machine_text(const kvq_context* context, const ComputeOptions& options);

/// Add `--weights`.
void add_weights_option(CLI::App& command, std::string& weights);

/// Add `weight_bits` and, if layers are packed, `linear_weight_bits`.
void add_weight_bits(nlohmann::ordered_json& object, const llama::Weights& weights);

/// For example "4.06 bits per weight in packed layers, 7.31 in all".
std::string weight_bits_text(const llama::Weights& weights);

/// A model with its tokenizer and a context that computes where the model does: on its threads, or on its GPU.
struct Engine {
  /// \param weights  a file of `kvq quantize` to take the weights from; empty: those in the directory.
  Engine(const std::filesystem::path& directory, const ComputeOptions& options, const std::string& weights = {});

  std::shared_ptr<llama::ThreadPool> threads;
  llama::ContextHandle context;
  llama::Model model;
  llama::Tokenizer tokenizer;
};

}  // namespace cli
