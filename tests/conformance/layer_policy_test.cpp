#include "conversation.h"

#include <doctest/doctest.h>

#include <string>

namespace conformance::layer_policy_test {

using kvq_test::Cache;
using kvq_test::Context;
using kvq_test::Sequence;

// The oracle of a layer in a mixed cache is the same layer in a cache that stores every layer like it.
TEST_CASE("each layer is stored as the last entry that names it says") {
  const Shape shape{.n_layers = 5};
  const Text text(shape, 200, 1);
  const std::string mixed =
      "version: 1\n"
      "keys: int4\n"
      "values: {format: int2, group: 64}\n"
      "sink: 1\n"
      "recent: 2\n"
      "layers:\n"
      "  - {range: [0, 2], keys: int8+hadamard}\n"
      "  - {range: [2, 3], values: fp16}\n"
      "  - {range: [2, 2], keys: fp16}\n"
      "  - {range: [4, 4], keys: {format: int3, hadamard: true}, values: {format: int3, group: 128}}\n";
  const char* const same_everywhere[] = {
      "keys: int8+hadamard\nvalues: {format: int2, group: 64}\n",
      "keys: int8+hadamard\nvalues: {format: int2, group: 64}\n",
      "keys: fp16\nvalues: fp16\n",
      "keys: int4\nvalues: fp16\n",
      "keys: int3+hadamard\nvalues: {format: int3, group: 128}\n",
  };
  const std::vector<float> q = queries(shape, 3);
  const Context context = kvq_test::make_context();
  const auto fill = [&](kvq_cache* cache) {
    Sequence sequence(cache);
    text.append(sequence, 0, 200, 30);
    return sequence;
  };
  const Cache cache = kvq_test::make_cache(context, shape.options(), mixed);
  Sequence sequence = fill(cache);
  for (int32_t layer = 0; layer < shape.n_layers; ++layer) {
    CAPTURE(layer);
    const std::string policy = std::string("version: 1\nsink: 1\nrecent: 2\n") + same_everywhere[layer];
    const Cache uniform_cache = kvq_test::make_cache(context, shape.options(), policy);
    Sequence uniform = fill(uniform_cache);
    for (int32_t head = 0; head < shape.kv_heads; ++head) {
      const auto a = kvq_test::decode(sequence, layer, head, 0, 200, shape.head_dim);
      const auto b = kvq_test::decode(uniform, layer, head, 0, 200, shape.head_dim);
      CHECK(a.k == b.k);
      CHECK(a.v == b.v);
    }
    CHECK(attend_last(shape, cache, {sequence}, 3, q, layer) ==
          attend_last(shape, uniform_cache, {uniform}, 3, q, layer));
  }
}

TEST_CASE("the short form and its long form are the same policy") {
  const Shape shape;
  const Text text(shape, 100, 1);
  const Context context = kvq_test::make_context();
  const auto snapshot = [&](const std::string& policy) {
    const Cache cache = kvq_test::make_cache(context, shape.options(), policy);
    Sequence sequence(cache);
    text.append(sequence, 0, 100);
    return sequence.save();
  };
  const auto check = [&](const std::string& format) {
    CAPTURE(format);
    CHECK(snapshot(format) == snapshot("version: 1\nkeys: " + format + "\nvalues: " + format + "\n"));
    if (format == "fp16") return;
    Storage storage = Storage::uniform(format);
    // With codes of three bits or fewer the first page stays FP16.
    storage.sink = PageFormat::parse(format).gain_shape() && PageFormat::parse(format).bits < 4 ? 1 : 0;
    CHECK(snapshot(format) == snapshot(storage.policy()));
    CHECK(snapshot(format) != snapshot("fp16"));
  };
  for (const std::string& format : all_formats()) check(format);
  for (const std::string& format : gain_shape_formats()) check(format);
  for (const char* format : {"gs4+centres", "gs1+centres", "gt2+centres"}) check(format);
  for (const std::string& keys : {std::string("int8"), std::string("gt2+nocentre"), std::string("gs2+centres")}) {
    CAPTURE(keys);
    CHECK(snapshot(keys + "/int4+hadamard") == snapshot("version: 1\nkeys: " + keys + "\nvalues: int4+hadamard\n"));
  }
}

}  // namespace conformance::layer_policy_test
