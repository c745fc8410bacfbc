#include <atomic>
#include <cstdlib>
#include <new>
#include <optional>
#include <stdexcept>

#include "model.h"

namespace hooks_test {
namespace {

struct Counts {
  std::atomic<int64_t> bytes{0};
  std::atomic<int> loops{0}, messages{0}, released{0};
  std::atomic<bool> allocate_throws{false}, free_throws{false}, loop_throws{false}, log_throws{false};
};

kvq::Hooks hooks(Counts& counts) {
  return {.allocate =
              [&counts](size_t bytes, size_t alignment) {
                if (counts.allocate_throws) throw std::runtime_error("no memory today");
                counts.bytes += static_cast<int64_t>(bytes);
                return ::operator new(bytes, std::align_val_t(alignment));
              },
          .free =
              [&counts](void* pointer, size_t bytes, size_t alignment) {
                counts.bytes -= static_cast<int64_t>(bytes);
                ::operator delete(pointer, std::align_val_t(alignment));
                if (counts.free_throws) throw std::runtime_error("not mine");
              },
          .log =
              [&counts](kvq_log_level, const char*) {
                ++counts.messages;
                if (counts.log_throws) throw std::runtime_error("the log is full");
              },
          .parallel_for =
              [&counts](int32_t n, const auto& body) {
                ++counts.loops;
                for (int32_t i = n - 1; i >= 0; --i) {
                  if (counts.loop_throws && i == n / 2) throw std::logic_error("half is enough");
                  body(i);
                }
              },
          .released = [&counts] { ++counts.released; }};
}

std::vector<float> attend_long(const kvq::Cache& cache, const kvq::Sequence& sequence) {
  const std::vector<float> q = queries(1, 9);
  std::vector<float> out(q.size());
  cache.attend(0, {.sequences = kvq::pointers(sequence), .q = q, .output = out});
  return out;
}

}  // namespace

TEST_CASE("function objects are a context's hooks until the last of its objects is gone") {
  Counts counts;
  std::optional<kvq::Sequence> sequence;
  {
    kvq::Context context(kvq::initialised<kvq_context_options>(), hooks(counts));
    CHECK(counts.messages > 0);
    const kvq::Cache cache = small_cache(context);
    sequence.emplace(cache);
    fill(*sequence, 3000);
    attend_long(cache, *sequence);
    CHECK(counts.loops > 0);
    CHECK(counts.bytes >= static_cast<int64_t>(cache.usage().total_bytes));
    kvq::Context moved = std::move(context);
    moved.rethrow();  // nothing was thrown
  }
  CHECK(counts.released == 0);
  sequence.reset();
  CHECK(counts.released == 1);
  CHECK(counts.bytes == 0);
}

TEST_CASE("what an allocator throws comes out of the call, which changes nothing") {
  Counts counts;
  kvq::Context context(kvq::initialised<kvq_context_options>(), hooks(counts));
  const kvq::Cache cache = small_cache(context);
  kvq::Sequence sequence(cache);
  fill(sequence, 10);
  const auto before = sequence.save();
  counts.allocate_throws = true;
  CHECK_THROWS_WITH_AS(fill(sequence, 100), "no memory today", std::runtime_error);
  CHECK_THROWS_WITH_AS(kvq::Sequence{cache}, "no memory today", std::runtime_error);
  CHECK_THROWS_WITH_AS(kvq::Context(kvq::initialised<kvq_context_options>(), hooks(counts)), "no memory today",
                       std::runtime_error);
  CHECK(counts.released == 0);  // a context that could not be created
  kvq_sequence* made = nullptr;
  CHECK_THROWS_WITH_AS(kvq::checked(kvq_sequence_create, cache, &made), "no memory today", std::runtime_error);
  counts.allocate_throws = false;
  CHECK(sequence.save() == before);
  context.rethrow();  // nothing is left
  fill(sequence, 100);
  CHECK(sequence.length(0) == 110);
}

TEST_CASE("what a free hook throws comes out of the call, or of rethrow if an object was destroyed") {
  Counts counts;
  kvq::Context context(kvq::initialised<kvq_context_options>(), hooks(counts));
  {
    const kvq::Cache cache = small_cache(context);
    kvq::Sequence sequence(cache);
    fill(sequence, 200);
    counts.free_throws = true;
    CHECK_THROWS_WITH_AS(sequence.truncate(0), "not mine", std::runtime_error);
    CHECK(sequence.length(0) == 0);
    context.rethrow();  // nothing is left
  }
  counts.free_throws = false;
  CHECK_THROWS_WITH_AS(context.rethrow(), "not mine", std::runtime_error);
  context.rethrow();
}

TEST_CASE("what a loop throws comes out of the call, whose work the library has done") {
  Counts counts;
  const kvq::Context plain;
  const kvq::Cache plain_cache = small_cache(plain);
  kvq::Sequence plain_sequence(plain_cache);
  fill(plain_sequence, 3000);
  const kvq::Context context(kvq::initialised<kvq_context_options>(), hooks(counts));
  const kvq::Cache cache = small_cache(context);
  kvq::Sequence sequence(cache);
  fill(sequence, 3000);
  const std::vector<float> q = queries(1, 9);
  std::vector<float> out(q.size());
  counts.loop_throws = true;
  CHECK_THROWS_WITH_AS(cache.attend(0, {.sequences = kvq::pointers(sequence), .q = q, .output = out}), "half is enough",
                       std::logic_error);
  CHECK(out == attend_long(plain_cache, plain_sequence));
}

TEST_CASE("what a log throws comes out of the call, and an object made by it is destroyed") {
  Counts counts;
  counts.log_throws = true;
  CHECK_THROWS_WITH_AS(kvq::Context(kvq::initialised<kvq_context_options>(), hooks(counts)), "the log is full",
                       std::runtime_error);
  CHECK(counts.released == 1);
  CHECK(counts.bytes == 0);
}

TEST_CASE("progress is told, ends a call, and what it throws arrives instead of a failure") {
  const kvq::Context context;
  auto options = kvq::initialised<qp_quantize_options>();
  options.scheme = "tcx-3";
  const std::vector<float> w = kvq_test::normal_tensor(size_t{256} * 256, 1);
  const auto quantize = [&](kvq::ProgressHook progress) {
    return kvq::Matrix::quantize(context, options, w, 256, 256, std::move(progress));
  };
  double last = -1.0;
  int calls = 0;
  const kvq::Matrix matrix = quantize([&](double done) {
    CHECK(done >= last);
    last = done;
    ++calls;
    return 0;
  });
  CHECK(calls > 0);
  CHECK(matrix.describe().rows == 256);
  CHECK_FAILS(KVQ_E_CANCELLED, "", quantize([](double) { return 1; }));
  CHECK_THROWS_WITH_AS(quantize([](double) -> int32_t { throw std::out_of_range("enough"); }), "enough",
                       std::out_of_range);
  int raw_calls = 0;
  options.progress = [](void* user, double) { return ++*static_cast<int*>(user) > 1 ? 1 : 0; };
  options.progress_user = &raw_calls;
  CHECK_FAILS(KVQ_E_CANCELLED, "", quantize({}));
  CHECK(raw_calls == 2);
}

}  // namespace hooks_test
