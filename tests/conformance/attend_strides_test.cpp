// Strided queries and outputs: the same numbers, and memory between rows is untouched.
#include "attention_error.h"

#include <doctest/doctest.h>

#include <cstring>
#include <string>

namespace conformance::attend_strides_test {
namespace {

using kvq_test::Rows;
using kvq_test::Tensor;

constexpr int32_t kQueries = 5;  // elements of the whole batch

struct Layout {
  const char* name;
  int64_t token_stride;
  int64_t head_stride;
  size_t offset;  // offset of the first row, in elements
};

std::vector<Layout> layouts(int32_t heads, int32_t kv_heads, int32_t head_dim) {
  const int64_t dim = head_dim;
  return {{"fused q, k and v", (heads + 2 * kv_heads) * dim, 0, 0},
          {"[heads, tokens, head_dim]", dim, kQueries * dim, 0},
          {"padded heads", heads * (dim + 8), dim + 8, 0},
          {"odd strides", heads * (dim + 1) + 3, dim + 1, 1},
          {"odd strides, head-major", dim + 5, kQueries * (dim + 5) + 7, 3}};
}

constexpr unsigned char kCanary = 0xA5;

/// Spreads a tensor's rows over a buffer of canaries.
class Spread {
 public:
  Spread(const Layout& layout, const Tensor& dense, int32_t heads, int32_t head_dim)
      : rows_{kQueries, static_cast<size_t>(heads), static_cast<size_t>(head_dim), layout.token_stride,
              layout.head_stride},
        bytes_(kvq_test::dtype_size(dense.dtype())),
        offset_(layout.offset * bytes_),
        buffer_(offset_ + (rows_.extent() + 16) * bytes_, std::byte{kCanary}) {}

  void* data() { return buffer_.data() + offset_; }

  void fill(const Tensor& dense) {
    for_each_row([&](std::byte* row, size_t i) { std::memcpy(row, dense.at(i), row_bytes()); });
  }
  /// Replaces the rows by canaries.
  std::vector<std::byte> take() {
    std::vector<std::byte> dense;
    for_each_row([&](std::byte* row, size_t) {
      dense.insert(dense.end(), row, row + row_bytes());
      std::memset(row, kCanary, row_bytes());
    });
    return dense;
  }
  bool is_untouched() const {
    for (const std::byte each : buffer_) {
      if (each != std::byte{kCanary}) return false;
    }
    return true;
  }

 private:
  size_t row_bytes() const { return rows_.head_dim * bytes_; }
  template <typename Use>
  void for_each_row(const Use& use) {
    for (size_t token = 0; token < rows_.tokens; ++token) {
      for (size_t head = 0; head < rows_.heads; ++head) {
        use(buffer_.data() + offset_ + rows_.at(token, head) * bytes_, (token * rows_.heads + head) * rows_.head_dim);
      }
    }
  }

  Rows rows_;
  size_t bytes_;
  size_t offset_;
  std::vector<std::byte> buffer_;
};

}  // namespace

TEST_CASE("queries and outputs with strides: the numbers of dense ones, and bytes between rows stay") {
  for (const int32_t head_dim : {24, 64, 80, 128, 256}) {
    for (const kvq_dtype dtype : {KVQ_F32, KVQ_F16, KVQ_BF16}) {
      const Scenario scenario{.name = "strides",
                              .head_dim = head_dim,
                              .lengths = {70, 130},
                              .query_counts = {2, 3},
                              .q_dtype = dtype,
                              .output_dtype = dtype};
      const Inputs inputs = make_inputs(scenario);
      for (const char* format : {"fp16", "int4+hadamard"}) {
        for (const std::string& isa : kvq_test::backends()) {
          const Run run(scenario, inputs, Storage::uniform(format), isa);
          const std::vector<std::byte> expected = run.attend().bytes();
          for (const Layout& of_q : layouts(scenario.q_heads, scenario.kv_heads, head_dim)) {
            for (const Layout& of_out : layouts(scenario.q_heads, scenario.kv_heads, head_dim)) {
              CAPTURE(head_dim);
              CAPTURE(static_cast<int>(dtype));
              CAPTURE(format);
              CAPTURE(isa);
              CAPTURE(of_q.name);
              CAPTURE(of_out.name);
              Spread q(of_q, inputs.q, scenario.q_heads, head_dim);
              Spread out(of_out, inputs.q, scenario.q_heads, head_dim);
              q.fill(inputs.q);
              kvq_attend_batch batch = run.batch();
              batch.q = q.data();
              batch.q_token_stride = of_q.token_stride;
              batch.q_head_stride = of_q.head_stride;
              batch.output = out.data();
              batch.output_token_stride = of_out.token_stride;
              batch.output_head_stride = of_out.head_stride;
              kvq_test::attend(run.cache(), 0, batch);
              CHECK(out.take() == expected);
              CHECK(out.is_untouched());
            }
          }
        }
      }
    }
  }
}

}  // namespace conformance::attend_strides_test
