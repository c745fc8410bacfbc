// A CUDA graph that appends to several sequences in one call.
#if defined(KVQ_TEST_CUDA)

#include "conversation.h"

#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <stdexcept>

namespace conformance::cuda_graph_batch_test {
namespace {

void check_cuda(cudaError_t status) {
  if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorString(status));
}

constexpr size_t kSequences = 3;
constexpr int32_t kPrompts[kSequences] = {5, 40, 95};
constexpr int32_t kSteps = 70;

}  // namespace

TEST_CASE("a CUDA graph that appends to several sequences stores what appends one by one store") {
  if (!kvq_test::why_no_cuda().empty()) return;
  const Shape shape{.n_layers = 2};
  const Text prompts(shape, 100, 4);
  const size_t step_scalars = kSequences * shape.token_scalars();
  const std::vector<float> k = kvq_test::normal_tensor(kSteps * step_scalars, 1);
  const std::vector<float> v = kvq_test::normal_tensor(kSteps * step_scalars, 2);
  for (const std::string& policy : graph_policies()) {
    CAPTURE(policy);
    cudaStream_t stream = nullptr;
    check_cuda(cudaStreamCreate(&stream));
    {
      const kvq_test::Context context = kvq_test::make_context(kvq_test::kCuda);
      kvq_test::checked(kvq_context_set_stream, context, stream);
      const kvq_test::Cache cache = kvq_test::make_cache(context, shape.options(), policy);
      std::vector<kvq_test::Sequence> together;
      std::vector<kvq_test::Sequence> apart;
      std::vector<kvq_sequence*> pointers;
      for (const int32_t n : kPrompts) {
        for (auto* sequences : {&together, &apart}) {
          sequences->emplace_back(cache);
          prompts.append(sequences->back(), 0, n);
        }
        pointers.push_back(together.back().get());
        kvq_test::checked(kvq_sequence_reserve, cache, pointers.back(), kSteps);
      }
      const kvq_test::DeviceCopy keys(k.data(), step_scalars * sizeof(float));
      const kvq_test::DeviceCopy values(v.data(), step_scalars * sizeof(float));
      auto batch = kvq_test::initialised<kvq_append_batch>();
      batch.n_sequences = kSequences;
      batch.sequences = pointers.data();
      batch.k = keys.data();
      batch.v = values.data();
      cudaGraph_t graph = nullptr;
      cudaGraphExec_t launchable = nullptr;
      check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
      for (int32_t layer = 0; layer < shape.n_layers; ++layer) {
        kvq_test::checked(kvq_append_sequences, cache, layer, &batch);
      }
      check_cuda(cudaStreamEndCapture(stream, &graph));
      check_cuda(cudaGraphInstantiate(&launchable, graph, 0));
      cudaGraphDestroy(graph);
      for (size_t step = 0; step < kSteps; ++step) {
        const float* step_k = k.data() + step * step_scalars;
        const float* step_v = v.data() + step * step_scalars;
        check_cuda(cudaMemcpyAsync(keys.data(), step_k, step_scalars * sizeof(float), cudaMemcpyDefault, stream));
        check_cuda(cudaMemcpyAsync(values.data(), step_v, step_scalars * sizeof(float), cudaMemcpyDefault, stream));
        check_cuda(cudaGraphLaunch(launchable, stream));
        for (size_t i = 0; i < kSequences; ++i) {
          const size_t at = i * shape.token_scalars();
          for (int32_t layer = 0; layer < shape.n_layers; ++layer) {
            kvq_test::append(apart[i].get(), layer, 1, step_k + at, step_v + at);
          }
        }
      }
      for (size_t i = 0; i < kSequences; ++i) {
        CHECK(together[i].length(0) == kPrompts[i] + kSteps);
        CHECK((together[i].save() == apart[i].save()));
      }
      cudaGraphExecDestroy(launchable);
    }
    cudaStreamDestroy(stream);
  }
}

}  // namespace conformance::cuda_graph_batch_test

#endif
