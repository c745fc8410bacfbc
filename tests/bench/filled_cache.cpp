#include "filled_cache.h"

#include "support/random.h"

namespace bench {

const std::vector<float>& random_tensor(size_t n) {
  static std::vector<float> values;
  if (values.size() < n) values = kvq_test::normal_tensor(n, 1);
  return values;
}

FilledCache::FilledCache(const std::string& policy, int32_t length, int32_t n_threads)
    : context_(kvq_test::make_context(nullptr, n_threads)),
      cache_(kvq_test::make_cache(context_, kvq_test::cache_options(kQHeads, kKvHeads, kHeadDim), policy)),
      sequence_(cache_),
      out_(kQueryScalars) {
  constexpr int32_t kChunk = 512;
  const std::vector<float>& tokens = random_tensor(kChunk * kTokenScalars);
  for (int32_t n = 0; n < length; n += kChunk) append(std::min(kChunk, length - n), tokens);
}

void FilledCache::append(int32_t n, const std::vector<float>& tokens) {
  kvq_test::append(sequence_, 0, n, tokens.data(), tokens.data());
}

void FilledCache::attend() {
  const kvq_sequence* const sequence = sequence_;
  auto batch = kvq_test::initialised<kvq_attend_batch>();
  batch.n_sequences = 1;
  batch.sequences = &sequence;
  batch.q = random_tensor(kQueryScalars).data();
  batch.output = out_.data();
  kvq_test::attend(cache_, 0, batch);
}

double FilledCache::stored_bytes() const {
  const kvq_usage usage = sequence_.usage();
  return static_cast<double>(usage.sealed_bytes + usage.fp16_bytes);
}

}  // namespace bench
