// Calls on pools in a CUDA graph, whose tables and lengths change in place between launches.
#if defined(KVQ_TEST_CUDA)

#include "gpu.h"
#include "pool_host.h"

#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <cmath>

namespace conformance::cuda_graph_pools_test {
namespace {

using kvq_test::Cache;
using kvq_test::Context;

constexpr int32_t kSequences = 3;

void check_cuda(cudaError_t status) {
  if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorString(status));
}

// Numbers at an address that a graph knows.
template <typename T>
class Fixed {
 public:
  explicit Fixed(size_t n) : n_(n) { check_cuda(cudaMalloc(&memory_, n * sizeof(T))); }
  ~Fixed() { cudaFree(memory_); }
  Fixed(const Fixed&) = delete;
  Fixed& operator=(const Fixed&) = delete;

  T* data() const { return static_cast<T*>(memory_); }
  void write(const std::vector<T>& numbers) const {
    REQUIRE(numbers.size() == n_);
    check_cuda(cudaMemcpy(memory_, numbers.data(), n_ * sizeof(T), cudaMemcpyHostToDevice));
  }
  std::vector<T> read() const {
    std::vector<T> numbers(n_);
    check_cuda(cudaMemcpy(numbers.data(), memory_, n_ * sizeof(T), cudaMemcpyDeviceToHost));
    return numbers;
  }

 private:
  size_t n_;
  void* memory_ = nullptr;
};

// One token of each sequence in every layer, as a graph.
class Graph {
 public:
  Graph(kvq_context* context, PoolHost& pool, int32_t max_blocks)
      : pool_(pool), max_blocks_(max_blocks), table_(kSequences * static_cast<size_t>(max_blocks)) {
    starts_.write({0, 1, 2, 3});
    check_cuda(cudaStreamCreate(&stream_));
    cudaGraph_t graph = nullptr;
    check_cuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal));
    CHECK(kvq_context_set_stream(context, stream_, nullptr) == KVQ_E_ARGUMENT);  // too late, and the capture goes on
    check_cuda(cudaStreamEndCapture(stream_, &graph));
    check_cuda(cudaGraphDestroy(graph));
    kvq_test::checked(kvq_context_set_stream, context, stream_);
    check_cuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal));
    issue();
    check_cuda(cudaStreamEndCapture(stream_, &graph));
    check_cuda(cudaGraphInstantiate(&launchable_, graph, 0));
    check_cuda(cudaGraphDestroy(graph));
    kvq_test::checked(kvq_context_set_stream, context, nullptr);
  }
  ~Graph() {
    cudaGraphExecDestroy(launchable_);
    cudaStreamDestroy(stream_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  // [layers * sequences, q_heads, head_dim]
  std::vector<float> launch(const std::vector<Row>& rows, const std::vector<Rows>& layers) {
    std::vector<int32_t> lengths;
    std::vector<int32_t> tails;
    std::vector<int32_t> table;
    for (const Row& row : rows) {
      lengths.push_back(row.length);
      tails.push_back(row.tail);
      table.insert(table.end(), row.blocks.begin(), row.blocks.end());
      table.resize(static_cast<size_t>(max_blocks_) * lengths.size(), -1);
    }
    lengths_.write(lengths);
    tails_.write(tails);
    table_.write(table);
    std::vector<float> k;
    std::vector<float> v;
    std::vector<float> q;
    for (const Rows& layer : layers) {
      k.insert(k.end(), layer.k.begin(), layer.k.end());
      v.insert(v.end(), layer.v.begin(), layer.v.end());
      q.insert(q.end(), layer.q.begin(), layer.q.end());
    }
    k_.write(k);
    v_.write(v);
    q_.write(q);
    check_cuda(cudaGraphLaunch(launchable_, stream_));
    check_cuda(cudaStreamSynchronize(stream_));
    return out_.read();
  }

 private:
  static size_t layers() { return static_cast<size_t>(Shape{}.n_layers); }

  void issue() {
    auto batch = kvq_test::initialised<kvq_pool_batch>();
    batch.n_sequences = kSequences;
    batch.n_tokens = kSequences;
    batch.max_queries = 1;
    batch.query_starts = starts_.data();
    batch.lengths = lengths_.data();
    batch.block_table = table_.data();
    batch.tails = tails_.data();
    kvq_test::checked(kvq_pool_plan_batch, pool_.plan(), &batch);
    for (int32_t layer = 0; layer < Shape{}.n_layers; ++layer) {
      const size_t first = static_cast<size_t>(layer) * kSequences;
      auto call = kvq_test::initialised<kvq_pool_call>();
      call.n_tokens = kSequences;
      call.k = k_.data() + first * Shape{}.token_scalars();
      call.v = v_.data() + first * Shape{}.token_scalars();
      call.q = q_.data() + first * Shape{}.query_scalars();
      call.output = out_.data() + first * Shape{}.query_scalars();
      kvq_test::checked(kvq_pool_extend, pool_.plan(), layer, &call);
    }
  }

  PoolHost& pool_;
  int32_t max_blocks_;
  cudaStream_t stream_ = nullptr;
  cudaGraphExec_t launchable_ = nullptr;
  Fixed<int32_t> starts_{kSequences + 1};
  Fixed<int32_t> lengths_{kSequences};
  Fixed<int32_t> tails_{kSequences};
  Fixed<int32_t> table_;
  Fixed<float> k_{layers() * kSequences * Shape{}.token_scalars()};
  Fixed<float> v_{layers() * kSequences * Shape{}.token_scalars()};
  Fixed<float> q_{layers() * kSequences * Shape{}.query_scalars()};
  Fixed<float> out_{layers() * kSequences * Shape{}.query_scalars()};
};

}  // namespace

TEST_CASE("pools: a CUDA graph follows tables and lengths that change in place") {
  if (skips()) return;
  for (const char* policy : {"fp16", "{version: 1, keys: gs4, values: gs4, sink: 0}",
                             "{version: 1, keys: int4+hadamard, values: gs2, sink: 0}"}) {
    CAPTURE(policy);
    const Context context = kvq_test::make_context("cuda");
    const Cache cache = kvq_test::make_cache(context, Shape{}.options(), policy);
    const PoolSizes sizes;
    PoolHost captured(cache, sizes);
    PoolHost plain(cache, sizes);
    std::vector<Row> rows(kSequences);
    std::vector<Row> same(kSequences);
    for (int32_t i = 0; i < kSequences; ++i) rows[static_cast<size_t>(i)].tail = same[static_cast<size_t>(i)].tail = i;
    const std::vector<int32_t> prompt = {40, 70, 5};
    for (auto [pool, of] : {std::pair(&captured, &rows), std::pair(&plain, &same)}) {
      pool->plan({&(*of)[0], &(*of)[1], &(*of)[2]}, prompt);
      for (int32_t layer = 0; layer < Shape{}.n_layers; ++layer) {
        pool->extend(layer, random_rows(prompt, static_cast<uint64_t>(layer + 1)));
      }
    }
    Graph graph(context, captured, sizes.max_blocks);
    for (uint64_t step = 1; step <= 70; ++step) {
      for (Row& row : rows) captured.grow(row, ++row.length);
      std::vector<Rows> layers;
      for (int32_t layer = 0; layer < Shape{}.n_layers; ++layer) {
        layers.push_back(random_rows({1, 1, 1}, 10 * step + static_cast<uint64_t>(layer)));
      }
      const std::vector<float> found = graph.launch(rows, layers);
      plain.plan({&same[0], &same[1], &same[2]}, {1, 1, 1});
      std::vector<float> expected;
      for (int32_t layer = 0; layer < Shape{}.n_layers; ++layer) {
        const std::vector<float> out = plain.extend(layer, layers[static_cast<size_t>(layer)]);
        expected.insert(expected.end(), out.begin(), out.end());
      }
      double largest = 0.0;
      for (size_t i = 0; i < found.size(); ++i) {
        largest = std::max(largest, std::fabs(static_cast<double>(found[i]) - static_cast<double>(expected[i])));
      }
      CHECK(largest < 2e-3);
      if (step % 20 != 0) continue;
      // A prefix moves: its tokens are elsewhere from the next launch on.
      const std::vector<unsigned char> bytes = captured.read_block(0, rows[1].blocks[0]);
      const std::vector<unsigned char> of_second = captured.read_block(1, rows[1].blocks[0]);
      Row moved;
      captured.grow(moved, 1);
      captured.write_block(0, moved.blocks[0], bytes);
      captured.write_block(1, moved.blocks[0], of_second);
      rows[1].blocks[0] = moved.blocks[0];
    }
  }
}

}  // namespace conformance::cuda_graph_pools_test

#endif
