// What only a context on a GPU does. Everything else is in the other files' tables, where "cuda" is one more
// instruction set.
#include "page_format.h"
#include "scenario.h"
#include "support/handles.h"
#include "support/random.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

namespace conformance {
namespace {

constexpr int32_t kHeadDim = 64;
constexpr int32_t kKvHeads = 2;
constexpr size_t kTokenScalars = kKvHeads * kHeadDim;

bool skips() {
  const std::string why = kvq_test::why_no_cuda();
  if (!why.empty()) MESSAGE("skipped, no GPU: ", why);
  return !why.empty();
}

struct Conversation {
  explicit Conversation(kvq_context* context, const char* policy = "int4")
      : cache(kvq_test::make_cache(context, kvq_test::cache_options(4, kKvHeads, kHeadDim), policy)),
        sequence(kvq_test::make_sequence(cache.get())) {}

  void append(int32_t n, const std::vector<float>& tokens) const {
    kvq_test::append(cache.get(), sequence.get(), 0, n, tokens.data(), tokens.data());
  }

  kvq_test::Cache cache;
  kvq_test::Sequence sequence;
};

std::vector<float> tokens(int32_t n) { return kvq_test::normal_tensor(static_cast<size_t>(n) * kTokenScalars, 5); }

template <typename Call>
std::string failure(kvq_status status, Call&& call) {
  try {
    call();
  } catch (const kvq_test::Failure& failure) {
    CHECK(failure.status() == status);
    return failure.what();
  }
  FAIL("the call succeeded");
  return "";
}

}  // namespace

TEST_CASE("the same content takes the same bytes on a GPU as on a CPU") {
  if (skips()) return;
  for (const char* policy : {"fp16", "int8", "int4+hadamard", "int3", "int2", "version: 1\nkeys: int2\nsink: 1\n"}) {
    CAPTURE(policy);
    kvq_usage usage[2];
    for (const char* isa : {"cuda", static_cast<const char*>(nullptr)}) {
      const kvq_test::Context context = kvq_test::make_context(isa);
      const Conversation conversation(context.get(), policy);
      conversation.append(700, tokens(700));
      conversation.append(1, tokens(1));
      usage[isa == nullptr ? 0 : 1] = kvq_test::usage(conversation.cache.get(), conversation.sequence.get());
    }
    CHECK(usage[0].sealed_bytes == usage[1].sealed_bytes);
    CHECK(usage[0].fp16_bytes == usage[1].fp16_bytes);
    CHECK(usage[0].sealed_pages == usage[1].sealed_pages);
    CHECK(usage[0].scalars == usage[1].scalars);
  }
}

TEST_CASE("a number that FP16 cannot hold is stored as the nearest one, and the next call says so") {
  if (skips()) return;
  const kvq_test::Context context = kvq_test::make_context("cuda");
  const Conversation conversation(context.get(), "fp16");
  std::vector<float> values = tokens(1);
  values[3] = 1e30F;
  values[5] = -std::numeric_limits<float>::infinity();
  values[7] = std::numeric_limits<float>::quiet_NaN();
  // As values they are not rotated. Keys stay as they are.
  const std::vector<float> keys = tokens(1);
  kvq_test::append(conversation.cache.get(), conversation.sequence.get(), 0, 1, keys.data(), values.data());
  std::vector<float> stored(kHeadDim);
  // Reading back waits for the device, so the report cannot have come before.
  const auto decode = [&] {
    kvq_test::require([&](kvq_error* error) {
      return kvq_sequence_decode(conversation.cache.get(), conversation.sequence.get(), 0, 0, 0, 1, nullptr,
                                 stored.data(), nullptr, error);
    });
  };
  std::string message;
  try {
    decode();
    message = failure(KVQ_E_ARGUMENT, decode);
  } catch (const kvq_test::Failure& reported) {  // the kernel was faster than the first call
    message = reported.what();
  }
  CHECK(message.find("FP16") != std::string::npos);
  decode();
  CHECK(stored[3] == 65504.0F);
  CHECK(stored[5] == -65504.0F);
  CHECK(stored[7] == 0.0F);
}

TEST_CASE("device memory counts towards the limit, and a refused append changes nothing") {
  if (skips()) return;
  kvq_context_options options;
  kvq_context_options_init(&options, sizeof(options));
  options.device = KVQ_DEVICE_CUDA;
  options.max_bytes = 1 << 20;
  const kvq_test::Context context = kvq_test::make_context(options);
  const Conversation conversation(context.get(), "fp16");
  conversation.append(100, tokens(100));
  const kvq_test::Snapshot before = kvq_test::save(conversation.cache.get(), conversation.sequence.get());
  const uint64_t bytes = kvq_test::usage(conversation.cache.get()).total_bytes;
  const std::string message = failure(KVQ_E_LIMIT, [&] { conversation.append(4000, tokens(4000)); });
  CHECK(message.find("max_bytes") != std::string::npos);
  CHECK(kvq_test::length(conversation.sequence.get()) == 100);
  CHECK(kvq_test::save(conversation.cache.get(), conversation.sequence.get()) == before);
  CHECK(kvq_test::usage(conversation.cache.get()).total_bytes == bytes);
}

TEST_CASE("two contexts on one GPU do not meet") {
  if (skips()) return;
  const kvq_test::Context first = kvq_test::make_context("cuda");
  const Conversation of_first(first.get());
  of_first.append(100, tokens(100));
  const kvq_test::Snapshot before = kvq_test::save(of_first.cache.get(), of_first.sequence.get());
  {
    const kvq_test::Context second = kvq_test::make_context("cuda");
    const Conversation of_second(second.get());
    of_second.append(300, tokens(300));
  }
  CHECK(kvq_test::save(of_first.cache.get(), of_first.sequence.get()) == before);
  of_first.append(32, tokens(32));
  CHECK(kvq_test::length(of_first.sequence.get()) == 132);
}

}  // namespace conformance
