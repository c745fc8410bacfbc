// What the demonstration says of a busy machine, by made-up times.
#include <doctest/doctest.h>

#include <chrono>
#include <thread>

#include "bench/timing.h"

namespace disturbance_test {
namespace {

using cli::Disturbance;
using cli::disturbance_text;
using cli::ProcessorUse;

}  // namespace

TEST_CASE("what a process misses of the processor is what its threads did not get of the time that passed") {
  CHECK(ProcessorUse{.wall_seconds = 10.0, .processor_seconds = 20.0}.missing_share(2) == 0.0);
  CHECK(ProcessorUse{.wall_seconds = 10.0, .processor_seconds = 8.0}.missing_share(2) == doctest::Approx(0.6));
  CHECK(ProcessorUse{.wall_seconds = 10.0, .processor_seconds = 8.0}.missing_share(1) == doctest::Approx(0.2));
  CHECK(ProcessorUse{.wall_seconds = 10.0, .processor_seconds = 0.0}.missing_share(64) == 1.0);
  // Clocks differ by a little, and there may be nothing yet.
  CHECK(ProcessorUse{.wall_seconds = 1.0, .processor_seconds = 1.01}.missing_share(1) == 0.0);
  CHECK(ProcessorUse{}.missing_share(2) == 0.0);
}

TEST_CASE("a thread that waits has not had its processor, and its times add up") {
  ProcessorUse use;
  const auto wait = [] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return 3;
  };
  CHECK(use.watch(wait) == 3);
  CHECK(use.watch(wait) == 3);
  CHECK(use.wall_seconds >= 0.04);
  CHECK(use.missing_share(1) > 0.5);
}

TEST_CASE("nothing is said where times are about the same, though threads wait for each other or lack work") {
  for (const Disturbance& quiet : {Disturbance{}, Disturbance{1.2, 0.1}, Disturbance{1.1, 0.9}}) {
    CHECK(!quiet.is_busy());
    CHECK(disturbance_text(quiet, " it takes longer").empty());
  }
}

TEST_CASE("a busy machine is told by what others have of it, or by how times vary where that is not known") {
  const Disturbance shared{2.5, 0.65};
  CHECK(shared.is_busy());
  CHECK(disturbance_text(shared, " it takes longer") ==
        "Something else uses the processor (about 60 % of it): it takes longer.\n");
  // The share of other programs is at most what the times tell.
  CHECK(disturbance_text({2.0, 0.9}, "").starts_with("Something else uses the processor (about 50 %"));
  CHECK(disturbance_text({1.84, 0.02}, "\ntimes may be too high") ==
        "Something slows the processor down (calls take 1.8 times as long as the best):\ntimes may be too high.\n");
}

}  // namespace disturbance_test
