#include <thread>

#include "model.h"

namespace threads_test {

TEST_CASE("threads append to sequences of their own and attend to shared ones, as one thread does") {
  constexpr size_t kThreads = 4;
  const kvq::Context context;
  const kvq::Cache cache = small_cache(context, "int4");
  kvq::Sequence shared(cache);
  fill(shared, 300);
  const auto results_of = [&](size_t thread) {
    kvq::Sequence own = shared.fork();
    fill(own, 50 + static_cast<int32_t>(thread), thread);
    const std::vector<float> q = queries(2, thread);
    std::vector<float> out(q.size());
    for (int i = 0; i < 20; ++i) {
      cache.attend(0, {.sequences = kvq::pointers(std::as_const(shared), std::as_const(own)), .q = q, .output = out});
    }
    return std::pair(out, own.save());
  };
  using Results = std::pair<std::vector<float>, std::vector<std::byte>>;
  std::vector<Results> expected, found(kThreads);
  for (size_t i = 0; i < kThreads; ++i) expected.push_back(results_of(i));
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kThreads; ++i) threads.emplace_back([&, i] { found[i] = results_of(i); });
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < kThreads; ++i) {
    CHECK(found[i].first == expected[i].first);
    CHECK(found[i].second == expected[i].second);
  }
}

}  // namespace threads_test
