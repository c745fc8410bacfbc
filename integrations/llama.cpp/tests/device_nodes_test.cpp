// What edited places of ggml-cuda.cu call, without a GPU: memory of the host stands for the device's. The last line is
// "N passed, N failed".
#include "ggml-impl.h"
#include "ggml.h"

#include <cstdio>
#include <cstring>
#include <vector>

using cudaStream_t = void*;
static int cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t) {
  std::memset(to, value, bytes);
  return 0;
}
#define CUDA_CHECK(call) static_cast<void>(call)
#include "kvq_ggml_cuda.h"

namespace {

void kvq_node(ggml_tensor*, int, int, void*) {}
void other_node(ggml_tensor*, int, int, void*) {}

struct Seen {
  int device = -1;
  void* stream = nullptr;
  bool result = true;
} seen;

bool compute(ggml_tensor* output, void* user, int device, void* stream) {
  auto& here = *static_cast<Seen*>(user);
  here.device = device;
  here.stream = stream;
  std::memset(output->data, 1, ggml_nbytes(output));
  return here.result;
}

int passed = 0, failed = 0;
void expect(bool holds, const char* what) {
  std::printf("%s  %s\n", holds ? "ok    " : "FAILED", what);
  ++(holds ? passed : failed);
}

}  // namespace

int main() {
  auto* context = ggml_init({1 << 20, nullptr, false});
  auto* input = ggml_new_tensor_1d(context, GGML_TYPE_F32, 8);
  const auto node = [&](ggml_custom_op_t function) {
    return ggml_custom_4d(context, GGML_TYPE_F32, 8, 1, 1, 1, &input, 1, function, 1, &seen);
  };
  auto *ours = node(kvq_node), *other = node(other_node);
  int stream = 0;
  const auto is = [](ggml_tensor* tensor, char byte) {
    return std::vector<char>(ggml_nbytes(tensor), byte) ==
           std::vector<char>(static_cast<char*>(tensor->data), static_cast<char*>(tensor->data) + ggml_nbytes(tensor));
  };

  expect(!llama_kvq::is_device_node(ours), "no node runs on a GPU before kvq says which");
  static const llama_kvq::DeviceNodes nodes = {kvq_node, compute};
  llama_kvq::set_device_nodes(&nodes);
  expect(llama_kvq::is_device_node(ours), "then those with its function do");
  expect(!llama_kvq::is_device_node(other), "and no others");
  expect(!llama_kvq::compute_device_node(other, 3, &stream) && seen.device == -1, "which are not computed");
  expect(llama_kvq::compute_device_node(ours, 3, &stream) && seen.device == 3 && seen.stream == &stream && is(ours, 1),
         "kvq's are, on the device and the stream of the graph");
  seen.result = false;
  expect(llama_kvq::compute_device_node(ours, 3, &stream) && is(ours, 0), "one without a result gives zeros");
  ggml_free(context);
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed != 0;
}
