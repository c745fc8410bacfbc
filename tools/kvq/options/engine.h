#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "kvq.hpp"
#include "llama/model.h"
#include "llama/tokenizer.h"
#include "options/compute.h"

namespace cli {

/// A model with its tokenizer and a context that computes where the model does: on its threads, or on its GPU.
struct Engine {
  /// \param weights  a file of `kvq quantize` to take the weights from; empty: those of the model.
  Engine(const std::filesystem::path& model_directory, const ComputeOptions& options, const std::string& weights = {});

  std::filesystem::path directory;  // of the model
  std::shared_ptr<llama::ThreadPool> threads;
  kvq::Context context;
  llama::Model model;
  llama::Tokenizer tokenizer;
};

}  // namespace cli
