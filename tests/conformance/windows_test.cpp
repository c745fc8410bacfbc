// Layers with a window or chunks free pages that no later query sees, and otherwise behave as layers that keep all.
#include "conversation.h"
#include "support/failure.h"
#include "support/random.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

namespace conformance::windows_test {
namespace {

using kvq_test::Cache;
using kvq_test::Context;
using kvq_test::Sequence;

constexpr Shape kShape{};
constexpr int32_t kTokens = 6000;
constexpr int32_t kPage = KVQ_PAGE_SLOTS;

// What queries of a layer see: `chunk` tells which of both it is.
struct Window {
  int32_t size;
  bool chunk = false;

  // The oldest position that a query sees.
  int32_t oldest(int32_t position) const { return chunk ? position / size * size : std::max(position - size + 1, 0); }
};

// Keys, values and queries by token.
struct Tokens {
  Tokens() : q(queries(kShape, kTokens)) {
    for (uint64_t layer = 0; layer < 2; ++layer) {
      k.push_back(kvq_test::normal_tensor(kTokens * kShape.token_scalars(), 2 * layer + 1));
      v.push_back(kvq_test::normal_tensor(kTokens * kShape.token_scalars(), 2 * layer + 2));
    }
  }
  const float* at(const std::vector<float>& rows, int32_t token) const {
    return rows.data() + static_cast<size_t>(token) * kShape.token_scalars();
  }
  const float* query(int32_t token) const { return q.data() + static_cast<size_t>(token) * kShape.query_scalars(); }

  std::vector<std::vector<float>> k;
  std::vector<std::vector<float>> v;
  std::vector<float> q;
};

const Tokens& tokens() {
  static const Tokens tokens;
  return tokens;
}

// Adds tokens [begin, begin + n) to all layers in one call each; extends if `sliding_window` is not negative.
std::vector<float> add(const Cache& cache, Sequence& sequence, int32_t begin, int32_t n, int32_t sliding_window) {
  std::vector<float> out(static_cast<size_t>(n) * kShape.query_scalars());
  kvq_sequence* pointer = sequence.get();
  for (int32_t layer = 0; layer < kShape.n_layers; ++layer) {
    const float* k = tokens().at(tokens().k[static_cast<size_t>(layer)], begin);
    const float* v = tokens().at(tokens().v[static_cast<size_t>(layer)], begin);
    if (sliding_window < 0) {
      kvq_test::append(pointer, layer, n, k, v);
      continue;
    }
    auto batch = kvq_test::initialised<kvq_extend_batch>();
    batch.n_sequences = 1;
    batch.sequences = &pointer;
    batch.token_counts = &n;
    batch.k = k;
    batch.v = v;
    batch.q = tokens().query(begin);
    batch.output = out.data();
    batch.sliding_window = sliding_window;
    kvq_test::extend(cache, layer, batch);
  }
  return out;
}

// Attention of the token at `position`, the newest if it is one of those, with the window of the call.
std::vector<float> attend_at(const Cache& cache, const Sequence& sequence, int32_t layer, int32_t position,
                             int32_t sliding_window) {
  std::vector<float> out(kShape.query_scalars());
  const kvq_sequence* pointer = sequence.get();
  auto batch = kvq_test::initialised<kvq_attend_batch>();
  batch.n_sequences = 1;
  batch.sequences = &pointer;
  batch.query_positions = &position;
  batch.q = tokens().query(position);
  batch.output = out.data();
  batch.sliding_window = sliding_window;
  kvq_test::attend(cache, layer, batch);
  return out;
}

void check_close(const std::vector<float>& found, const std::vector<float>& expected, float tolerance) {
  float worst = 0.0F;
  for (size_t i = 0; i < found.size(); ++i) worst = std::max(worst, std::abs(found[i] - expected[i]));
  CHECK(worst < tolerance);
}

// A sequence whose cache frees pages, and its twin that keeps them all.
struct Twins {
  Sequence windowed;
  Sequence plain;
};

class Program {
 public:
  Program(const std::string& backend, const std::string& policy, Window window)
      : window_(window),
        is_cuda_(backend.starts_with(kvq_test::kCuda)),
        tolerance_(backend.starts_with(kvq_test::kCuda) ? 4e-3F
                   : policy == "fp16"                   ? 2e-5F
                   : policy == kCodesOfLayer            ? 1e-2F
                                                        : 1e-3F),
        context_(kvq_test::make_context(backend.c_str())),
        windowed_(make_cache(context_, options(window), policy)),
        plain_(make_cache(context_, kShape.options(), policy)),
        sink_(windowed_.describe().sink),
        recent_(windowed_.describe().recent),
        random_(17) {
    twins_.push_back({Sequence(windowed_), Sequence(plain_)});
  }

  void run(int32_t steps) {
    for (int32_t step = 0; step < steps; ++step) {
      CAPTURE(step);
      Twins& pair = twins_[static_cast<size_t>(random_.integer(0, static_cast<int32_t>(twins_.size()) - 1))];
      change(pair);
      check(twins_[static_cast<size_t>(random_.integer(0, static_cast<int32_t>(twins_.size()) - 1))]);
    }
  }

 private:
  static kvq_cache_options options(Window window) {
    kvq_cache_options options = kShape.options();
    (window.chunk ? options.attention_chunk : options.sliding_window) = window.size;
    return options;
  }

  void change(Twins& pair) {
    const int32_t length = pair.plain.length(0);
    const int32_t kind = random_.integer(0, 11);
    CAPTURE(kind);
    CAPTURE(length);
    switch (kind) {
      case 0:
        pair.windowed.reserve(random_.integer(0, 1) * random_.integer(1, 500));
        return;
      case 1:
        return truncate(pair, length / kPage * kPage - kPage * random_.integer(0, 3));
      case 2:
        if (twins_.size() > 2) twins_.erase(twins_.begin());
        twins_.push_back({twins_.back().windowed.fork(), twins_.back().plain.fork()});
        return;
      case 3:
        pair.windowed = Sequence::load(windowed_, pair.windowed.save());
        return;
      case 4:
      case 5:
        return step(pair, length);
      case 6:
        return add_both(pair, length, random_.integer(100, 400));
      default:
        return add_both(pair, length, random_.integer(1, 60));
    }
  }

  void add_both(Twins& pair, int32_t length, int32_t n) {
    if (length + n > kTokens) return;
    // Few come one by one: what an extension sees of sealed pages depends on the chunks.
    const int32_t chunk = n <= 60 && random_.integer(0, 2) == 0 ? 1 : n;
    const bool extends = random_.integer(0, 1) == 0;
    for (int32_t at = length; at < length + n; at += chunk) {
      const std::vector<float> found = add(windowed_, pair.windowed, at, chunk, extends ? 0 : -1);
      const bool compares = extends && !window_.chunk;
      const std::vector<float> expected =
          add(plain_, pair.plain, at, chunk, extends ? (compares ? window_.size : 0) : -1);
      if (compares) check_close(found, expected, tolerance_);
    }
  }

  void step(Twins& pair, int32_t length) {
    const int32_t count = random_.integer(1, 90);
    if (length + count > kTokens) return;
    const int32_t added = random_.integer(1, count);
    const int32_t kept = random_.integer(0, added);
    begin_step(windowed_, pair.windowed, count);
    add(windowed_, pair.windowed, length, added, random_.integer(0, 1) - 1);
    end_step(windowed_, pair.windowed, kept);
    if (kept > 0) add(plain_, pair.plain, length, kept, -1);
  }

  // Works exactly where all that later queries see is still there.
  void truncate(Twins& pair, int32_t length) {
    if (length < 0) return;
    if (length == pair.plain.length(0)) return;
    const bool held = forgotten(pair.windowed) < std::max(window_.oldest(length), 0);
    CAPTURE(length);
    if (!held) {
      kvq_test::failure(KVQ_E_STATE, [&] { pair.windowed.truncate(length); });
      return;
    }
    pair.windowed.truncate(length);
    pair.plain.truncate(length);
  }

  // The newest position that the first layer has freed, or −1.
  int32_t forgotten(const Sequence& sequence) const {
    const int32_t slots = sequence.slots(0, 0);
    if (slots == sequence.length(0)) return -1;
    if (slots <= sink_ * kPage) return sequence.length(0) - 1;
    return kvq_test::decode(sequence, 0, 0, sink_ * kPage, 1, kShape.head_dim).positions.front() - 1;
  }

  void check(const Twins& pair) {
    const int32_t length = pair.plain.length(0);
    REQUIRE(pair.windowed.length(1) == length);
    if (length == 0) return;
    for (int32_t layer = 0; layer < kShape.n_layers; ++layer) {
      // Decoding everything takes long, on a GPU most.
      const bool decodes = random_.integer(0, is_cuda_ ? 9 : 2) == 0;
      for (int32_t head = 0; decodes && head < kShape.kv_heads; ++head) check_slots(pair, layer, head);
      const int32_t position = length - 1;
      if (forgotten(pair.windowed) >= window_.oldest(position)) continue;  // after a truncation
      const std::vector<float> found = attend_at(windowed_, pair.windowed, layer, position, 0);
      const int32_t seen = position - window_.oldest(position) + 1;
      check_close(found, attend_at(plain_, pair.plain, layer, position, seen), tolerance_);
    }
  }

  // What is left is what the twin has at the same positions.
  void check_slots(const Twins& pair, int32_t layer, int32_t head) {
    const int32_t length = pair.plain.length(layer);
    const int32_t slots = pair.windowed.slots(layer, head);
    const auto found = kvq_test::decode(pair.windowed, layer, head, 0, slots, kShape.head_dim);
    const auto all = kvq_test::decode(pair.plain, layer, head, 0, length, kShape.head_dim);
    REQUIRE((length - slots) % kPage == 0);
    const auto dim = static_cast<size_t>(kShape.head_dim);
    bool same = true;
    for (int32_t slot = 0; slot < slots; ++slot) {
      const int32_t position = slot < sink_ * kPage ? slot : slot + length - slots;
      const auto from = static_cast<ptrdiff_t>(static_cast<size_t>(position) * dim);
      const auto at = static_cast<ptrdiff_t>(static_cast<size_t>(slot) * dim);
      same = same && found.positions[static_cast<size_t>(slot)] == position;
      same = same && std::equal(found.k.begin() + at, found.k.begin() + at + kShape.head_dim, all.k.begin() + from);
      same = same && std::equal(found.v.begin() + at, found.v.begin() + at + kShape.head_dim, all.v.begin() + from);
    }
    CHECK(same);
  }

  Window window_;
  bool is_cuda_;
  float tolerance_;
  Context context_;
  Cache windowed_;
  Cache plain_;
  int32_t sink_;
  int32_t recent_;
  kvq_test::Random random_;
  std::vector<Twins> twins_;
};

}  // namespace

TEST_CASE("a layer that frees what no query sees attends as one that keeps everything, whatever is done") {
  std::vector<std::string> policies = {"fp16",
                                       "int4+hadamard",
                                       "gs2",
                                       "{version: 1, keys: gt2, values: gt1, sink: 0}",
                                       "version: 1\nkeys: int8\nvalues: int3\nrecent: 3\nsink: 2\n",
                                       kCodesOfLayer};
  for (const std::string& backend : {kvq_test::backends().front(), kvq_test::backends().back()}) {
    for (const std::string& policy : policies) {
      for (const Window window : {Window{1}, Window{40}, Window{200}, Window{96, true}, Window{50, true}}) {
        CAPTURE(backend);
        CAPTURE(policy);
        CAPTURE(window.size);
        CAPTURE(window.chunk);
        Program(backend, policy, window).run(backend.starts_with(kvq_test::kCuda) ? 30 : 60);
      }
    }
  }
}

// Two branches of draft tokens at the same positions, of which the second is kept.
TEST_CASE("trees are masked and compacted in layers that have freed pages") {
  constexpr int32_t kPrefix = 500;
  constexpr int32_t kDepth = 40;
  constexpr int32_t kNodes = 2 * kDepth;
  constexpr int32_t kWords = (kNodes + 31) / 32;
  std::vector<int32_t> positions;
  std::vector<uint32_t> mask(static_cast<size_t>(kNodes) * kWords, 0);
  for (int32_t node = 0; node < kNodes; ++node) {
    positions.push_back(kPrefix + node % kDepth);
    for (int32_t other = node / kDepth * kDepth; other <= node; ++other) {
      mask[static_cast<size_t>(node * kWords + other / 32)] |= uint32_t{1} << static_cast<uint32_t>(other % 32);
    }
  }
  std::vector<int32_t> kept;
  for (int32_t node = kDepth; node < kNodes; ++node) kept.push_back(node);
  for (const std::string& backend : {kvq_test::backends().front(), kvq_test::backends().back()}) {
    if (backend.starts_with(kvq_test::kCuda)) continue;  // steps of trees are compared there by other tests
    for (const std::string policy : {"fp16", "int8", "gs2"}) {
      for (const Window window : {Window{100}, Window{30}, Window{64, true}}) {
        CAPTURE(backend);
        CAPTURE(policy);
        CAPTURE(window.size);
        const Context context = kvq_test::make_context(backend.c_str());
        kvq_cache_options options = kShape.options();
        const Cache plain = make_cache(context, options, policy);
        (window.chunk ? options.attention_chunk : options.sliding_window) = window.size;
        const Cache windowed = make_cache(context, options, policy);
        std::vector<float> outputs[2];
        std::vector<Sequence> sequences;
        for (const Cache* cache : {&windowed, &plain}) {
          Sequence sequence(*cache);
          for (int32_t at = 0; at < kPrefix; at += 50) add(*cache, sequence, at, 50, -1);
          begin_step(*cache, sequence, kNodes);
          kvq_sequence* pointer = sequence.get();
          for (int32_t layer = 0; layer < kShape.n_layers; ++layer) {
            std::vector<float> out(static_cast<size_t>(kNodes) * kShape.query_scalars());
            auto batch = kvq_test::initialised<kvq_extend_batch>();
            batch.n_sequences = 1;
            batch.sequences = &pointer;
            batch.token_counts = &kNodes;
            batch.positions = positions.data();
            batch.k = tokens().at(tokens().k[static_cast<size_t>(layer)], kPrefix);
            batch.v = tokens().at(tokens().v[static_cast<size_t>(layer)], kPrefix);
            batch.q = tokens().query(kPrefix);
            batch.output = out.data();
            batch.mask = mask.data();
            batch.mask_slots = kNodes;
            if (cache == &plain && !window.chunk) batch.sliding_window = window.size;
            kvq_test::extend(*cache, layer, batch);
            std::vector<float>& all = outputs[cache == &plain ? 1 : 0];
            all.insert(all.end(), out.begin(), out.end());
          }
          auto step = kvq_test::initialised<kvq_step_batch>();
          step.n_sequences = 1;
          step.sequences = &pointer;
          step.token_counts = &kDepth;
          step.kept_slots = kept.data();
          kvq_test::checked(kvq_step_commit, cache->get(), &step);
          sequences.push_back(std::move(sequence));
        }
        if (!window.chunk) check_close(outputs[0], outputs[1], policy == "fp16" ? 2e-5F : 1e-3F);
        const int32_t slots = sequences[0].slots(1, 0);
        CHECK(slots < kPrefix);
        const int32_t newest = kPrefix + kDepth - 1;
        const int32_t seen = newest - window.oldest(newest) + 1;
        const auto found = kvq_test::decode(sequences[0], 1, 0, slots - seen, seen, kShape.head_dim);
        const auto expected = kvq_test::decode(sequences[1], 1, 0, newest + 1 - seen, seen, kShape.head_dim);
        CHECK(found.positions == expected.positions);
        CHECK(found.k == expected.k);
        CHECK(found.v == expected.v);
        check_close(attend_at(windowed, sequences[0], 1, newest, 0), attend_at(plain, sequences[1], 1, newest, seen),
                    policy == "fp16" ? 2e-5F : 1e-3F);
      }
    }
  }
}

}  // namespace conformance::windows_test
