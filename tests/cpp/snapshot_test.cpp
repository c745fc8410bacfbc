// Sequences with another policy, and snapshots of several sequences.
#include "model.h"

#include <limits>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

namespace snapshot_test {

constexpr int32_t kLayers = 2;

void fill_all(kvq::Sequence& sequence, int32_t n, uint64_t seed) {
  for (int32_t layer = 0; layer < kLayers; ++layer) fill(sequence, n, seed, layer);
}

std::vector<float> decoded(const kvq::Sequence& sequence, int32_t layer, int32_t n) {
  std::vector<float> k(static_cast<size_t>(n) * kHeadDim), v(k.size());
  sequence.decode(layer, 1, 0, n, k, v);
  k.insert(k.end(), v.begin(), v.end());
  return k;
}

kvq_load_options options_of(const kvq::Policy& policy, int32_t recode) {
  auto options = kvq::initialised<kvq_load_options>();
  options.policy = policy;
  options.recode = recode;
  return options;
}

/// Formats of a layer of a cache or a sequence.
std::string formats_of(const auto& object, int32_t layer) { return object.describe_layer(layer).formats; }

/// A conversation of 300 tokens, and a fork of it with 40 more.
struct Conversations {
  kvq::Context context;
  kvq::Policy small = kvq::Policy::load(context, "gs2");
  kvq::Cache cache = small_cache(context, "gs4", kLayers);
  kvq::Sequence parent{cache}, child;

  Conversations() {
    fill_all(parent, 300, 1);
    parent.reserve(0);  // finds its scales, so that both share scaled pages
    child = parent.fork();
    fill_all(child, 40, 5);
  }
};

TEST_CASE("a sequence that is recoded takes the memory that was predicted, and goes back to its cache's policy") {
  Conversations it;
  const std::string formats = formats_of(it.cache, 0);
  it.child.reset();
  const uint64_t before = it.parent.usage().total_bytes;
  const kvq_recode_info predicted = it.parent.predict_recode(it.small);
  CHECK(predicted.pages > 0);
  CHECK(predicted.bytes_before == before);
  it.parent.recode(it.small);
  CHECK(it.parent.usage().total_bytes == predicted.bytes_after);
  CHECK(predicted.bytes_after < before);
  CHECK(it.parent.length(1) == 300);
  CHECK(formats_of(it.parent, 1) != formats);
  CHECK(formats_of(it.cache, 1) == formats);

  CHECK(it.parent.predict_recode().pages > 0);
  it.parent.recode();
  CHECK(formats_of(it.parent, 1) == formats);
  CHECK(it.parent.predict_recode().pages == 0);
}

TEST_CASE("a refused recoding changes nothing") {
  Conversations it;
  const auto before = it.parent.save();
  const auto evicting = kvq::Policy::load(it.context, "gs2+snapkv:64");
  CHECK_FAILS(KVQ_E_ARGUMENT, "evicts otherwise", it.parent.recode(evicting));
  CHECK_FAILS(KVQ_E_ARGUMENT, "evicts otherwise", it.parent.predict_recode(evicting));
  CHECK_FAILS(KVQ_E_ARGUMENT, "layer is 2", it.parent.describe_layer(2));
  CHECK_FAILS(KVQ_E_ARGUMENT, "cache is NULL", kvq::Sequence().recode(it.small));
  CHECK(it.parent.save() == before);
}

TEST_CASE("a sequence and its fork are saved together, and share their pages again where they are loaded") {
  Conversations it;
  const auto bytes = it.cache.save(kvq::pointers(it.parent, it.child));
  CHECK(bytes.size() < it.parent.save().size() + it.child.save().size());
  const kvq::Cache other = small_cache(it.context, "gs4", kLayers);
  const kvq_snapshot_info info = other.describe_snapshot(bytes);
  CHECK(info.n_sequences == 2);
  CHECK(info.tokens == 340);
  CHECK(info.recoded_pages == 0);
  const std::vector<kvq::Sequence> loaded = other.load(bytes);
  REQUIRE(loaded.size() == 2);
  const kvq_usage usage = other.usage();
  CHECK(usage.shared_pages > 0);
  CHECK(usage.shared_pages == it.cache.usage().shared_pages);
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    CHECK(loaded[0].length(layer) == 300);
    CHECK(loaded[1].length(layer) == 340);
    CHECK(decoded(loaded[0], layer, 300) == decoded(it.parent, layer, 300));
    CHECK(decoded(loaded[1], layer, 340) == decoded(it.child, layer, 340));
  }
  CHECK(other.save(loaded) == bytes);
  CHECK(it.cache.save(kvq::pointers(it.parent)) == it.parent.save());
  CHECK(other.load(it.parent.save()).size() == 1);
}

TEST_CASE("a snapshot of other formats is refused unless its pages may be recoded") {
  Conversations it;
  const auto bytes = it.cache.save(kvq::pointers(it.parent, it.child));
  const kvq::Cache other = small_cache(it.context, "gs4", kLayers);
  CHECK_FAILS(KVQ_E_MISMATCH, "", other.load(bytes, options_of(it.small, 0)));
  CHECK_FAILS(KVQ_E_MISMATCH, "", other.describe_snapshot(bytes, options_of(it.small, 0)));
  CHECK(other.usage().sealed_pages == 0);
  CHECK(other.describe_snapshot(bytes, options_of(it.small, 1)).recoded_pages > 0);
  const std::vector<kvq::Sequence> loaded = other.load(bytes, options_of(it.small, 1));
  CHECK(loaded[1].length(1) == 340);
  CHECK(loaded[0].usage().sealed_bytes < it.parent.usage().sealed_bytes);
  CHECK(other.usage().shared_pages > 0);
  it.parent.recode(it.small);
  CHECK(decoded(loaded[0], 1, 300) == decoded(it.parent, 1, 300));
}

TEST_CASE("wrong lists of sequences and wrong snapshots are refused") {
  Conversations it;
  const kvq::Cache other = small_cache(it.context, "gs4", kLayers);
  const auto bytes = it.cache.save(kvq::pointers(it.parent, it.child));
  CHECK_FAILS(KVQ_E_ARGUMENT, "twice", it.cache.save(kvq::pointers(it.parent, it.parent)));
  CHECK_FAILS(KVQ_E_ARGUMENT, "sequences[0] belongs to another cache", other.save(kvq::pointers(it.parent)));
  CHECK_FAILS(KVQ_E_ARGUMENT, "", it.cache.save(std::vector<kvq::Sequence>{}));
  CHECK_FAILS(KVQ_E_MISMATCH, "snapshot has 2 sequences", kvq::Sequence::load(other, bytes));
  CHECK_FAILS(KVQ_E_FORMAT, "", other.load(std::span(bytes).first(bytes.size() - 1)));
  CHECK_FAILS(KVQ_E_ARGUMENT, "options->recode is 2", other.load(bytes, options_of(it.small, 2)));
  CHECK_FAILS(KVQ_E_ARGUMENT, "cache is NULL", kvq::Cache().load(bytes));
}

TEST_CASE("loaded sequences are freed if a hook throws in the call") {
  Conversations it;
  const auto bytes = it.cache.save(kvq::pointers(it.parent, it.child));
  int64_t live = 0;
  int calm = std::numeric_limits<int>::max();  // frees until one throws
  const kvq::Context context(kvq::initialised<kvq_context_options>(),
                             {.allocate =
                                  [&](size_t size, size_t alignment) {
                                    live += static_cast<int64_t>(size);
                                    return ::operator new(size, std::align_val_t(alignment));
                                  },
                              .free =
                                  [&](void* pointer, size_t size, size_t alignment) {
                                    live -= static_cast<int64_t>(size);
                                    ::operator delete(pointer, std::align_val_t(alignment));
                                    if (calm-- == 0) throw std::runtime_error("not mine");
                                  }});
  const kvq::Cache cache = small_cache(context, "gs4", kLayers);
  const auto small = kvq::Policy::load(context, "gs2");
  const auto load = [&] { return cache.load(bytes, options_of(small, 1)).size(); };
  CHECK(load() == 2);
  const int64_t before = live;
  int thrown = 0;
  for (int n = 0;; ++n) {
    calm = n;
    try {
      load();
      calm = std::numeric_limits<int>::max();
      CHECK_THROWS_AS(context.rethrow(), std::runtime_error);  // as the sequences were destroyed
      break;
    } catch (const std::runtime_error&) {
      ++thrown;
    }
    REQUIRE(live == before);
  }
  CHECK(thrown > 1);
  CHECK(live == before);
}

TEST_CASE("states of recurrent layers go with a sequence") {
  const kvq::Context context;
  kvq_cache_options options = small_options(2);
  auto shape = kvq::initialised<kvq_layer_shape>();
  shape.first_layer = 1;
  shape.recurrent = 1;
  options.shapes = &shape;
  options.n_shapes = 1;
  const kvq::Cache cache(context, options, kvq::Policy::load(context, "int4"));
  CHECK(cache.describe_layer(1).recurrent == 1);
  kvq::Sequence sequence(cache);
  fill(sequence, 70);
  const std::vector<std::byte> state(100, std::byte{7});
  sequence.put_state(1, 64, state);
  sequence.put_state(1, 70, std::span(state).first(3));
  CHECK(sequence.find_state(1, 69) == 64);
  CHECK(sequence.find_states(100) == 70);
  CHECK_FAILS(KVQ_E_STATE, "length is 32, but layer 1 has no state", sequence.truncate(32));
  kvq::Sequence loaded = kvq::Sequence::load(cache, sequence.save());
  loaded.truncate(64);
  CHECK(loaded.get_state(1, 64) == state);
  CHECK(loaded.find_states(100) == 64);
  sequence.drop_states(0, 65);
  CHECK_FAILS(KVQ_E_ARGUMENT, "tokens is 64, after which layer 1 has no state", sequence.get_state(1, 64));
}

}  // namespace snapshot_test
