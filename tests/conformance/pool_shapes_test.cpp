// Pages in the host's memory: layers, batches and tensors of any shape.
#include "pool_twin.h"
#include "support/tensor.h"

#include <doctest/doctest.h>

#include <cstring>
#include <string>

namespace conformance::pool_shapes_test {
namespace {

using kvq_test::Cache;
using kvq_test::Context;

}  // namespace

TEST_CASE("pools: layers that differ, that share pages, latents") {
  for (const std::string& isa : kvq_test::backends()) {
    CAPTURE(isa);
    const Context context = kvq_test::make_context(isa.c_str());
    kvq_cache_options options = kvq_test::cache_options(4, 2, 64, 5);
    std::vector<kvq_layer_shape> shapes(4, kvq_test::initialised<kvq_layer_shape>());
    for (int32_t i = 0; i < 4; ++i) {
      shapes[static_cast<size_t>(i)].first_layer = i + 1;
      shapes[static_cast<size_t>(i)].n_layers = 1;
    }
    shapes[0].pages_of_layer = 0;
    shapes[0].scale = 0.2F;
    shapes[1].q_heads = shapes[1].kv_heads = 4;
    shapes[1].key_dim = shapes[1].value_dim = 128;
    shapes[2].q_heads = 8;
    shapes[2].kv_heads = 2;
    shapes[2].key_dim = shapes[2].value_dim = 256;
    shapes[3].q_heads = 16;
    shapes[3].kv_heads = 1;
    shapes[3].key_dim = 576;
    shapes[3].value_dim = 512;
    shapes[3].values_are_key_prefix = 1;
    options.shapes = shapes.data();
    options.n_shapes = 4;
    const Cache cache = make_cache(context, options, "{version: 1, keys: gs4, values: gs4, sink: 0}");
    PoolHost pool(cache);
    Twin twin(cache, 2);
    std::vector<Row> rows = make_rows(2);
    uint64_t seed = 50;
    for (const std::vector<int32_t>& counts : std::vector<std::vector<int32_t>>{{70, 3}, {1, 1}, {1, 30}, {2, 1}}) {
      pool.plan(pointers_to(rows), counts);
      for (int32_t layer = 0; layer < 5; ++layer) {
        CAPTURE(layer);
        Rows tokens = tokens_of(cache, layer, counts, ++seed);
        if (layer == 4) tokens.v.clear();
        if (layer == 1) {
          check_same(pool.attend(layer, tokens), twin.attend(layer, tokens), pool.on_device());
        } else {
          check_same(pool.extend(layer, tokens), twin.extend(layer, tokens), pool.on_device());
        }
      }
    }
  }
}

TEST_CASE("pools: prompts and long chunks beside decoding, for heads of any shape") {
  struct Heads {
    int32_t q;
    int32_t kv;
    int32_t keys;
    int32_t values;
  };
  for (const std::string& isa : kvq_test::backends()) {
    for (const Heads& heads : {Heads{4, 2, 64, 64}, Heads{8, 1, 128, 128}, Heads{2, 2, 96, 96}, Heads{4, 2, 192, 128},
                               Heads{2, 1, 256, 256}}) {
      for (const char* policy : {"fp16", "{version: 1, keys: int4+hadamard, values: int2+hadamard, sink: 0}",
                                 "{version: 1, keys: gs4, values: gs2, sink: 0}"}) {
        CAPTURE(isa);
        CAPTURE(heads.keys);
        CAPTURE(policy);
        const Context context = kvq_test::make_context(isa.c_str(), 2);
        kvq_cache_options options = kvq_test::cache_options(heads.q, heads.kv, heads.keys, 1);
        auto shape = kvq_test::initialised<kvq_layer_shape>();
        shape.n_layers = 1;
        shape.value_dim = heads.values;
        options.shapes = &shape;
        options.n_shapes = 1;
        const Cache cache = make_cache(context, options, policy);
        PoolSizes sizes;
        sizes.max_tokens = 900;
        sizes.max_blocks = 40;
        sizes.n_blocks = 90;
        sizes.limits = heads.keys == 64;
        PoolHost pool(cache, sizes);
        Twin twin(cache, 3);
        std::vector<Row> rows = make_rows(4);
        uint64_t seed = 80;
        for (const std::vector<int32_t>& counts :
             std::vector<std::vector<int32_t>>{{400, 1, 33}, {1, 300, 370}, {70, 1, 250}, {1, 1, 1}}) {
          const Rows tokens = tokens_of(cache, 0, counts, ++seed);
          std::vector<int32_t> with_empty = counts;
          with_empty.push_back(0);
          pool.plan(pointers_to(rows), with_empty);
          kvq_pool_call call = PoolHost::plain();
          if (counts[0] == 70) call.sliding_window = 200;
          check_same(pool.extend(0, tokens, call), twin.extend(0, tokens, call), pool.on_device());
        }
      }
    }
  }
}

TEST_CASE("pools: a fused tensor of 16 bits and strided outputs give the numbers of dense tensors") {
  const Shape shape;
  const auto dim = static_cast<size_t>(shape.head_dim);
  const size_t q_width = shape.query_scalars();
  const size_t kv_width = shape.token_scalars();
  const size_t width = q_width + 2 * kv_width;
  for (const std::string& isa : kvq_test::backends()) {
    for (const kvq_dtype dtype : {KVQ_F16, KVQ_BF16}) {
      CAPTURE(isa);
      CAPTURE(static_cast<int>(dtype));
      const Context context = kvq_test::make_context(isa.c_str());
      const Cache cache = make_pool_cache(context, "{version: 1, keys: gs4, values: int4, sink: 0}");
      PoolHost of_dense(cache);
      PoolHost of_fused(cache);
      std::vector<Row> dense_rows = make_rows(2);
      std::vector<Row> fused_rows = make_rows(2);
      uint64_t seed = 40;
      for (const std::vector<int32_t>& counts : std::vector<std::vector<int32_t>>{{70, 3}, {1, 1}, {2, 260}}) {
        Rows tokens = tokens_of(cache, 0, counts, ++seed);
        const auto n = static_cast<size_t>(tokens.n());
        std::vector<uint16_t> fused(n * width);
        size_t column = 0;
        for (const auto& [numbers, columns] :
             {std::pair(&tokens.q, q_width), std::pair(&tokens.k, kv_width), std::pair(&tokens.v, kv_width)}) {
          const kvq_test::Tensor rounded(*numbers, dtype);
          for (size_t i = 0; i < numbers->size(); ++i) {
            (*numbers)[i] = static_cast<float>(rounded[i]);
            std::memcpy(&fused[i / columns * width + column + i % columns], rounded.at(i), sizeof(uint16_t));
          }
          column += columns;
        }
        of_dense.plan(pointers_to(dense_rows), counts);
        const std::vector<float> expected = of_dense.extend(0, tokens);
        of_fused.plan(pointers_to(fused_rows), counts);
        Placed<uint16_t> placed(of_fused.on_device(), fused);
        constexpr float kCanary = -77.0F;
        const size_t out_width = q_width + dim;
        Placed<float> out(of_fused.on_device(), std::vector<float>(n * out_width, kCanary));
        auto call = kvq_test::initialised<kvq_pool_call>();
        call.n_tokens = tokens.n();
        call.dtype = call.q_dtype = dtype;
        call.q = placed.data();
        call.k = placed.data() + q_width;
        call.v = placed.data() + q_width + kv_width;
        call.q_token_stride = call.k_token_stride = call.v_token_stride = static_cast<int64_t>(width);
        call.output = out.data();
        call.output_token_stride = static_cast<int64_t>(out_width);
        kvq_test::checked(kvq_pool_extend, of_fused.plan(), 0, &call);
        const std::vector<float>& found = out.read();
        size_t different = 0;
        for (size_t i = 0; i < found.size(); ++i) {
          const size_t at = i % out_width;
          different += found[i] != (at < q_width ? expected[i / out_width * q_width + at] : kCanary) ? 1 : 0;
        }
        CHECK(different == 0);
      }
    }
  }
}

}  // namespace conformance::pool_shapes_test
