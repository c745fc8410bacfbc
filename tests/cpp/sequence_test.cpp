#include <array>
#include <cmath>

#include "model.h"
#include "support/float_formats.h"

namespace sequence_test {

TEST_CASE("attention is that of float64 over what is decoded, whatever the format") {
  const kvq::Context context;
  for (const char* policy : {"fp16", "int8", "int4+hadamard"}) {
    CAPTURE(policy);
    const kvq::Cache cache = small_cache(context, policy);
    kvq::Sequence sequence(cache);
    fill(sequence, 75);
    const std::vector<float> q = queries(3, 5);
    std::vector<float> out(q.size());
    cache.attend(0, {.sequences = kvq::pointers(sequence), .query_counts = std::array{3}, .q = q, .output = out});
    for (int32_t i = 0; i < 3; ++i) {
      const auto begin = static_cast<size_t>(i) * kQueryScalars;
      const auto row = std::span<const float>(q).subspan(begin, kQueryScalars);
      CHECK(difference(std::span<const float>(out).subspan(begin, kQueryScalars), brute_force(sequence, row, 72 + i)) <
            0.02);
    }
  }
}

TEST_CASE("positions, a window, a softcap, sinks and strides reach the library, and sums of exponentials come back") {
  const kvq::Context context;
  const kvq::Cache cache = small_cache(context);
  kvq::Sequence sequence(cache);
  std::vector<int32_t> positions(40);
  for (int32_t i = 0; i < 40; ++i) positions[static_cast<size_t>(i)] = 3 * i;
  sequence.append(0, 40, tokens(40, 1), tokens(40, 2), positions);
  const std::vector<float> row = queries(1, 5);
  constexpr int32_t kPosition = 100;
  constexpr int64_t kStride = kHeadDim + 3;
  std::vector<float> q(kQueryHeads * kStride), out(kQueryHeads * kStride, 7.0F), lse(kQueryHeads);
  for (size_t i = 0; i < row.size(); ++i) q[i / kHeadDim * kStride + i % kHeadDim] = row[i];
  const std::vector<float> sinks{0.5F, -1.0F, 2.0F, 0.0F};
  cache.attend(0, {.sequences = kvq::pointers(sequence),
                   .query_positions = std::array{kPosition},
                   .q = q,
                   .output = out,
                   .sliding_window = 60,
                   .logit_softcap = 4.0F,
                   .q_head_stride = kStride,
                   .output_head_stride = kStride,
                   .lse = lse,
                   .sinks = sinks});
  const auto expected = brute_force(sequence, row, kPosition, {.sliding_window = 60, .logit_softcap = 4.0}, sinks);
  std::vector<float> dense(row.size());
  for (size_t i = 0; i < row.size(); ++i) dense[i] = out[i / kHeadDim * kStride + i % kHeadDim];
  CHECK(difference(dense, expected) < 1e-3);
  for (size_t head = 0; head < kQueryHeads; ++head) {
    CHECK(double{lse[head]} == doctest::Approx(expected[head].lse).epsilon(1e-3));
    for (size_t gap = head * kStride + kHeadDim; gap < (head + 1) * kStride; ++gap) CHECK(out[gap] == 7.0F);
  }
}

TEST_CASE("results over two parts of a context merge by their sums of exponentials") {
  const kvq::Context context;
  const kvq::Cache cache = small_cache(context);
  kvq::Sequence whole(cache), first(cache), second(cache);
  const std::vector<float> k = tokens(50, 1), v = tokens(50, 2), q = queries(1, 3);
  const auto part = [](const std::vector<float>& all, size_t begin, size_t n) {
    return std::span(all).subspan(begin * kTokenScalars, n * kTokenScalars);
  };
  std::vector<int32_t> later(20);
  for (int32_t i = 0; i < 20; ++i) later[static_cast<size_t>(i)] = 30 + i;
  whole.append(0, 50, k, v);
  first.append(0, 30, part(k, 0, 30), part(v, 0, 30));
  second.append(0, 20, part(k, 30, 20), part(v, 30, 20), later);
  std::vector<float> out(3 * kQueryScalars), lse(3 * kQueryHeads), all_q;
  for (int i = 0; i < 3; ++i) all_q.insert(all_q.end(), q.begin(), q.end());
  cache.attend(0, {.sequences = kvq::pointers(whole, first, second),
                   .query_positions = std::array{49, 49, 49},
                   .q = all_q,
                   .output = out,
                   .lse = lse});
  for (size_t head = 0; head < kQueryHeads; ++head) {
    const double a = std::exp(double{lse[kQueryHeads + head]}), b = std::exp(double{lse[2 * kQueryHeads + head]});
    CHECK(std::log(a + b) == doctest::Approx(double{lse[head]}).epsilon(1e-5));
    for (size_t c = head * kHeadDim; c < (head + 1) * kHeadDim; ++c) {
      const double merged = (a * double{out[kQueryScalars + c]} + b * double{out[2 * kQueryScalars + c]}) / (a + b);
      CHECK(std::abs(merged - double{out[c]}) < 1e-4);
    }
  }
}

TEST_CASE("tensors of other elements and the library's own structs are taken as they are") {
  const kvq::Context context;
  const kvq::Cache cache = small_cache(context);
  const std::vector<float> k = tokens(1, 1), v = tokens(1, 2), q = queries(1, 3);
  std::vector<uint16_t> halves(2 * kTokenScalars);
  for (size_t i = 0; i < kTokenScalars; ++i) {
    halves[i] = kvq_test::encode_bits(k[i], kvq_test::kHalf);
    halves[kTokenScalars + i] = kvq_test::encode_bits(v[i], kvq_test::kHalf);
  }
  kvq::Sequence sequence(cache), batched(cache);
  sequence.append(0, 1, halves.data(), halves.data() + kTokenScalars, KVQ_F16);
  auto append = kvq::initialised<kvq_append_batch>();
  const auto list = kvq::pointers(batched);
  append.n_sequences = 1;
  append.sequences = list.data();
  append.k = halves.data();
  append.v = halves.data() + kTokenScalars;
  append.dtype = KVQ_F16;
  cache.append(0, append);
  CHECK(batched.save() == sequence.save());
  std::vector<float> out(kQueryScalars);
  auto batch = kvq::initialised<kvq_attend_batch>();
  const kvq_sequence* const only = sequence;
  batch.n_sequences = 1;
  batch.sequences = &only;
  batch.q = q.data();
  batch.output = out.data();
  cache.attend(0, batch);
  for (size_t i = 0; i < out.size(); ++i) {  // the only token has all the weight
    const size_t of_head = i / kHeadDim / 2 * kHeadDim + i % kHeadDim;
    CHECK(double{out[i]} == doctest::Approx(kvq_test::round_to(double{v[of_head]}, kvq_test::kHalf)).epsilon(1e-5));
  }
}

TEST_CASE("a batch of appends stores what appends one by one store, from tensors with strides too") {
  const kvq::Context context;
  const kvq::Cache cache = small_cache(context, "int4");
  std::vector<kvq::Sequence> apart, together;
  for (int i = 0; i < 2; ++i) {
    apart.emplace_back(cache);
    together.emplace_back(cache);
  }
  const std::vector<float> k = tokens(5, 1), v = tokens(5, 2);
  std::vector<float> both;  // interleaved keys and values of a token
  for (size_t token = 0; token < 5; ++token) {
    for (const std::vector<float>* each : {&k, &v}) {
      both.insert(both.end(), each->begin() + static_cast<std::ptrdiff_t>(token * kTokenScalars),
                  each->begin() + static_cast<std::ptrdiff_t>((token + 1) * kTokenScalars));
    }
  }
  cache.append(0, {.sequences = kvq::pointers(together),
                   .token_counts = std::array{2, 3},
                   .positions = std::array{4, 5, 0, 8, 9},
                   .k = both,
                   .v = std::span(both).subspan(kTokenScalars),
                   .k_token_stride = 2 * kTokenScalars,
                   .v_token_stride = 2 * kTokenScalars});
  const auto rows = [](const std::vector<float>& all, size_t first, size_t n) {
    return std::span(all).subspan(first * kTokenScalars, n * kTokenScalars);
  };
  apart[0].append(0, 2, rows(k, 0, 2), rows(v, 0, 2), std::array{4, 5});
  apart[1].append(0, 3, rows(k, 2, 3), rows(v, 2, 3), std::array{0, 8, 9});
  for (size_t i = 0; i < 2; ++i) CHECK(together[i].save() == apart[i].save());
}

TEST_CASE("first chunks are attended to as given and stored as appended") {
  const kvq::Context context;
  const std::array counts{40, 3};
  const std::vector<float> k = tokens(43, 1), v = tokens(43, 2), q = queries(43, 3);
  const auto pair = [](const kvq::Cache& cache) {
    std::vector<kvq::Sequence> made;
    for (int i = 0; i < 2; ++i) made.emplace_back(cache);
    return made;
  };
  const auto append = [&](const kvq::Cache& cache, std::vector<kvq::Sequence>& to) {
    cache.append(0, {.sequences = kvq::pointers(to), .token_counts = counts, .k = k, .v = v});
  };
  const kvq::Cache exact = small_cache(context), coarse = small_cache(context, "int2");
  std::vector<kvq::Sequence> full = pair(exact), appended = pair(coarse), extended = pair(coarse);
  append(exact, full);
  append(coarse, appended);
  std::vector<float> expected(q.size()), out(q.size());
  exact.attend(0, {.sequences = kvq::pointers(full), .query_counts = counts, .q = q, .output = expected});
  const auto pointers = kvq::pointers(extended);
  coarse.extend(0, {.sequences = pointers, .token_counts = counts, .k = k, .v = v, .q = q, .output = out});
  CHECK(out == expected);
  for (size_t i = 0; i < 2; ++i) CHECK(extended[i].save() == appended[i].save());

  const auto failure = failure_of([&] {
    const auto shorter = std::span<const float>(q).first(q.size() - 1);
    coarse.extend(0, {.sequences = pointers, .token_counts = counts, .k = k, .v = v, .q = shorter, .output = out});
  });
  CHECK(std::string(failure.what()).find("q has 2751 elements") != std::string::npos);
}

TEST_CASE("forks share pages, and change apart from each other") {
  const kvq::Context context;
  const kvq::Cache cache = small_cache(context, "int4");
  kvq::Sequence parent(cache);
  fill(parent, 100);
  const auto before = parent.save();
  kvq::Sequence child = parent.fork();
  CHECK(child.save() == before);
  CHECK(cache.usage().shared_pages > 0);
  fill(child, 7);
  CHECK(child.length(0) == 107);
  CHECK(parent.save() == before);
  child.truncate(96);
  CHECK(child.length(0) == 96);
  CHECK(child.slots(0, 1) == 96);
  CHECK_FAILS(KVQ_E_STATE, "sealed", child.truncate(50));
  CHECK_FAILS(KVQ_E_ARGUMENT, "97", child.truncate(97));
  CHECK(child.length(0) == 96);
}

TEST_CASE("a snapshot gives the sequence back, damaged ones are refused") {
  const kvq::Context context;
  const kvq::Cache cache = small_cache(context, "int4");
  kvq::Sequence sequence(cache);
  fill(sequence, 50);
  std::vector<std::byte> bytes = sequence.save();
  CHECK(kvq::Sequence::load(cache, bytes).save() == bytes);
  bytes[bytes.size() / 2] ^= std::byte{1};
  CHECK_FAILS(KVQ_E_FORMAT, "", kvq::Sequence::load(cache, bytes));
  CHECK_FAILS(KVQ_E_FORMAT, "", kvq::Sequence::load(cache, std::span(bytes).first(3)));
}

TEST_CASE("pages are made ahead, and bytes are counted") {
  const kvq::Context context;
  const kvq::Cache cache = small_cache(context);
  kvq::Sequence sequence(cache);
  CHECK(sequence.room(0) == 0);
  sequence.reserve(64);
  CHECK(sequence.room(0) >= 64);
  fill(sequence, 10);
  CHECK(sequence.usage().scalars == int64_t{2} * kHeadDim * kKvHeads * 10);
  CHECK(cache.usage().scalars == sequence.usage().scalars);
  CHECK_FAILS(KVQ_E_ARGUMENT, "-1", sequence.reserve(-1));
}

TEST_CASE("what a policy evicts goes, and its report comes back") {
  const kvq::Context context;
  const kvq::Cache cache = small_cache(context, "fp16+streaming:64");
  kvq::Sequence sequence(cache);
  fill(sequence, 200);
  const std::vector<float> q = queries(1, 5);
  std::vector<float> out(q.size());
  cache.attend(0, {.sequences = kvq::pointers(sequence), .q = q, .output = out});
  auto options = kvq::initialised<kvq_compress_options>();
  std::vector<int32_t> kept(kKvHeads);
  uint64_t freed = 0;
  options.kept = kept.data();
  options.bytes_freed = &freed;
  sequence.compress(options);
  CHECK(kept == std::vector<int32_t>{64, 64});
  CHECK(freed > 0);
  CHECK(sequence.slots(0, 0) == 64);
  CHECK(sequence.length(0) == 200);
  std::vector<int32_t> positions(64);
  sequence.decode(0, 0, 0, 64, {}, {}, positions);
  CHECK(positions.front() == 0);
  CHECK(positions.back() == 199);
  sequence.compress();  // nothing is left to evict
  CHECK(sequence.slots(0, 0) == 64);
}

}  // namespace sequence_test
