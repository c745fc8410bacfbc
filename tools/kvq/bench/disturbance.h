#pragma once

#include <cstdint>
#include <string>

#include "bench/stopwatch.h"

namespace cli {

/// What was had of the processor while something computed that uses all of its threads.
struct ProcessorUse {
  double wall_seconds = 0.0;
  double processor_seconds = 0.0;  // of all threads of this process

  /// What `run` returns, whose time is added.
  template <class Run>
  auto watch(Run&& run) {
    const Stopwatch wall;
    const ProcessorStopwatch processor;
    auto result = run();
    wall_seconds += wall.seconds();
    processor_seconds += processor.seconds();
    return result;
  }

  /// Of the time of so many threads, what this process did not get, in [0, 1]. Some of it is its own: threads sleep
  /// while they wait for each other.
  double missing_share(int32_t threads) const;
};

/// How far from quiet a machine was while the same work was done many times.
struct Disturbance {
  double slowdown = 1.0;       // mean time as a multiple of the best
  double missing_share = 0.0;  // as ProcessorUse has it

  bool is_busy() const;
};

/// What is to be said of a busy machine, and what follows; empty if the machine was quiet. \param consequence  what
/// stands behind the colon, with what comes before it.
std::string disturbance_text(const Disturbance& disturbance, const std::string& consequence);

}  // namespace cli
