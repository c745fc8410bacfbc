#pragma once

#include "allocation/allocator.h"
#include "allocation/probe.h"
#include "options/common.h"

namespace cli {

struct PlanOptions {
  std::string model;
  std::string shape;  // of layers alone, instead of a model
  std::string text;
  int64_t tokens = ProbeText{}.tokens;
  double target_bits = 0.0;
  uint64_t target_bytes = 0;
  std::string memory;           // bytes of everything
  double target_latency = 0.0;  // milliseconds
  std::string goal = "loss";
  double max_loss = 0.0;  // nats; 0: any
  bool fusion = false;
  int32_t check = 0;  // random plans to carry out
  bool weights_only = false;
  bool cache_only = false;
  int32_t context = 0;  // 0: not given
  int32_t batch = 1;
  std::vector<std::string> schemes;
  std::vector<std::string> formats;
  std::string eviction;  // method; empty: none
  std::filesystem::path measurements;
  std::filesystem::path out;
  bool frontier = false;
  int32_t chunk = 32;
  ComputeOptions compute;
  bool json = false;
};

kvq_plan_goal goal_of(const PlanOptions& options);

/// A UsageError unless the formats need nothing but their names. \param pairs  whether KEYS/VALUES will do.
void check_formats(kvq_context* context, const std::vector<std::string>& formats, bool pairs);

/// Measure the model as far as that has not been done, choose what loses least, and report it.
void choose_plan(const PlanOptions& options);

/// Print how many bytes weights and caches take in each scheme and format, and what fits, of a model that is known by
/// its configuration alone, or of layers whose shape is given.
void print_what_fits(const PlanOptions& options);
/// The same before a model is measured, if anything fits. Returns whether nothing need be lost for it.
bool print_if_it_fits(const PlanOptions& options);

/// Carry out random plans, and print what they were expected to lose and what they lose.
void print_check(const PlanOptions& options, const BitAllocator& allocator, const Probe& probe, Engine& engine);

}  // namespace cli
