#pragma once

#include "allocation/allocator.h"
#include "options/model_options.h"

namespace cli {

/// What times depend on besides shapes: the processor or GPU, threads, instruction set and version.
std::string machine_of(const Engine& engine, const ComputeOptions& compute);

/// Measures what a step of decoding takes, as far as the file lacks it: linear layers of each shape in each scheme,
/// those that share inputs together as well; appending to a layer in each format and attending; and the rest of a step.
/// Saves after every shape.
void measure_latencies(Measurements& known, Engine& engine, const ComputeOptions& compute,
                       const AllocationRequest& request);

/// Microseconds of a matrix that is multiplied together with the others that read its inputs.
double matrix_microseconds(const Latencies& times, const llama::ModelConfig& config, const llama::LinearLayer& layer,
                           const std::string& scheme, int32_t batch);

/// Microseconds of matrices that are multiplied in one call and have one scheme, or of one by itself.
double group_microseconds(const Latencies& times, const std::vector<llama::LinearLayer>& matrices,
                          const std::string& scheme, int32_t batch);

/// Microseconds of appending a token of each sequence to a layer and attending to it.
double cache_microseconds(const Latencies& times, const std::string& keys, const std::string& values,
                          const AllocationRequest& request);

/// Microseconds of a step of decoding that no choice changes.
double unplanned_microseconds(const Latencies& times, const llama::ModelConfig& config,
                              const AllocationRequest& request);

}  // namespace cli
