// Behaviour of GPU contexts alone. Everything else is in the other files' tables, where "cuda" is one more instruction
// set.
#include "gpu.h"
#include "page_format.h"
#include "scenario.h"
#include "support/failure.h"
#include "support/handles.h"
#include "support/random.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

namespace conformance::cuda_test {

using kvq_test::failure;

namespace {

constexpr int32_t kHeadDim = 64;
constexpr int32_t kKvHeads = 2;
constexpr size_t kTokenScalars = kKvHeads * kHeadDim;

struct Conversation {
  explicit Conversation(kvq_context* context, const char* policy = "int4")
      : cache(kvq_test::make_cache(context, kvq_test::cache_options(4, kKvHeads, kHeadDim), policy)), sequence(cache) {}

  void append(int32_t n, const std::vector<float>& tokens) {
    kvq_test::append(sequence, 0, n, tokens.data(), tokens.data());
  }

  kvq_test::Cache cache = nullptr;
  kvq_test::Sequence sequence = nullptr;
};

std::vector<float> tokens(int32_t n) { return kvq_test::normal_tensor(static_cast<size_t>(n) * kTokenScalars, 5); }

}  // namespace

TEST_CASE("the same content takes the same bytes on a GPU as on a CPU") {
  if (skips()) return;
  for (const char* policy : {"fp16", "int8", "int4+hadamard", "int3", "int2", "version: 1\nkeys: int2\nsink: 1\n"}) {
    CAPTURE(policy);
    kvq_usage usage[2];
    for (const char* isa : {"cuda", static_cast<const char*>(nullptr)}) {
      const kvq_test::Context context = kvq_test::make_context(isa);
      Conversation conversation(context, policy);
      conversation.append(700, tokens(700));
      conversation.append(1, tokens(1));
      usage[isa == nullptr ? 0 : 1] = conversation.sequence.usage();
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
  Conversation conversation(context, "fp16");
  std::vector<float> values = tokens(1);
  values[3] = 1e30F;
  values[5] = -std::numeric_limits<float>::infinity();
  values[7] = std::numeric_limits<float>::quiet_NaN();
  // As values they are not rotated. Keys do not change.
  const std::vector<float> keys = tokens(1);
  kvq_test::append(conversation.sequence, 0, 1, keys.data(), values.data());
  std::vector<float> stored(kHeadDim);
  // Reading back waits for the device, so the report could not arrive earlier.
  const auto decode = [&] {
    kvq_test::checked(kvq_sequence_decode, conversation.cache, conversation.sequence, 0, 0, 0, 1, nullptr,
                      stored.data(), nullptr);
  };
  std::string message;
  try {
    decode();
    message = failure(KVQ_E_ARGUMENT, decode);
  } catch (const kvq_test::Error& reported) {  // the kernel finished before the first call
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
  auto options = kvq_test::initialised<kvq_context_options>();
  options.device = KVQ_DEVICE_CUDA;
  options.max_bytes = 1 << 20;
  const kvq_test::Context context(options);
  Conversation conversation(context, "fp16");
  conversation.append(100, tokens(100));
  const kvq_test::Snapshot before = conversation.sequence.save();
  const uint64_t bytes = conversation.cache.usage().total_bytes;
  const std::string message = failure(KVQ_E_LIMIT, [&] { conversation.append(4000, tokens(4000)); });
  CHECK(message.find("max_bytes") != std::string::npos);
  CHECK(conversation.sequence.length(0) == 100);
  CHECK(conversation.sequence.save() == before);
  CHECK(conversation.cache.usage().total_bytes == bytes);
}

TEST_CASE("two contexts on one GPU do not meet") {
  if (skips()) return;
  const kvq_test::Context first = kvq_test::make_context("cuda");
  Conversation of_first(first);
  of_first.append(100, tokens(100));
  const kvq_test::Snapshot before = of_first.sequence.save();
  {
    const kvq_test::Context second = kvq_test::make_context("cuda");
    Conversation of_second(second);
    of_second.append(300, tokens(300));
  }
  CHECK(of_first.sequence.save() == before);
  of_first.append(32, tokens(32));
  CHECK(of_first.sequence.length(0) == 132);
}

}  // namespace conformance::cuda_test
