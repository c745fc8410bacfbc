#include "core/parallel.h"
#include "failing_new.h"

#include "kvq.h"
#include "support/build.h"
#include "support/system.h"

#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <new>
#include <optional>
#include <thread>
#include <vector>

namespace parallel_test {
namespace {

// A loop over data that is freed when it returns, so that a sanitizer detects late threads.
bool every_index_once(kvq::Parallel& parallel, int32_t n) {
  std::vector<int32_t> visits(static_cast<size_t>(n), 0);
  parallel.run(n, [&visits](int32_t i) noexcept { ++visits[static_cast<size_t>(i)]; });
  for (const int32_t count : visits) {
    if (count != 1) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("a loop visits every index once, however short it is and whoever wakes up when") {
  for (const int32_t n_threads : {1, 2, 3, 8}) {
    kvq::Parallel parallel(n_threads, nullptr, nullptr);
    for (int32_t round = 0; round < 2000; ++round) {
      REQUIRE(every_index_once(parallel, round % 20));
      if (round % 200 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));  // workers fall asleep
    }
    CHECK(every_index_once(parallel, 100000));
  }
}

TEST_CASE("several threads may start loops at the same time") {
  kvq::Parallel parallel(3, nullptr, nullptr);
  std::vector<std::thread> callers;
  std::atomic<int> n_wrong{0};
  for (int32_t caller = 0; caller < 3; ++caller) {
    callers.emplace_back([&, caller] {
      for (int32_t round = 0; round < 1000; ++round) {
        if (!every_index_once(parallel, 2 + (round + caller) % 7)) ++n_wrong;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  CHECK_EQ(n_wrong.load(), 0);
}

TEST_CASE("threads that never found any work end with the pool") {
  for (int32_t round = 0; round < 50; ++round) {
    kvq::Parallel parallel(4, nullptr, nullptr);
    CHECK(every_index_once(parallel, 2));
  }
}

TEST_CASE("memory that runs out while a thread starts ends those that run already") {
  int64_t allocations = 1;
  for (bool made = false; !made; ++allocations) {
    REQUIRE_LT(allocations, 100);
    const kvq_test::FailingNew failing(allocations);
    try {
      kvq::Parallel parallel(4, nullptr, nullptr);
      made = !failing.failed();
    } catch (const std::bad_alloc&) {
      made = false;
    }
  }
  CHECK_GT(allocations, 4);  // each thread allocates
}

TEST_CASE("too little work stays on the calling thread") {
  kvq::Parallel parallel(4, nullptr, nullptr);
  const std::thread::id caller = std::this_thread::get_id();
  for (int32_t round = 0; round < 100; ++round) {
    std::atomic<int32_t> elsewhere{0};
    parallel.run(50, 1.0, [&](int32_t) noexcept { elsewhere += std::this_thread::get_id() == caller ? 0 : 1; });
    CHECK_EQ(elsewhere.load(), 0);
  }
}

TEST_CASE("threads that cannot be started are the context's failure, and the host lives on") {
  if (kvq_test::kSmallRun) return;                 // sanitizers need the address space
  constexpr size_t kAddresses = size_t{1} << 30U;  // too few for that many stacks
  const std::optional<int> problem = kvq_test::run_with_few_addresses(kAddresses, [] {
    kvq_context_options options;
    kvq_context_options_init(&options, sizeof(options));
    options.n_threads = 1024;
    kvq_context* context = nullptr;
    kvq_error error;
    kvq_error_init(&error, sizeof(error));
    const bool refused = kvq_context_create(&options, &context, &error) == KVQ_E_BACKEND && context == nullptr;
    return refused && std::strstr(error.message, "n_threads is 1024") != nullptr ? 0 : 1;
  });
  if (!problem) {
    MESSAGE("skipped: this system cannot limit the addresses of a copy of this process");
    return;
  }
  CHECK(*problem == 0);
}

}  // namespace parallel_test
