#include <algorithm>
#include <vector>

#include "kernels.h"
#include "llama/cuda_module.h"
#include "memory.h"
#include "products.h"

namespace llama::cuda {
namespace {

// Where contexts issue their work unless told otherwise: what they and the device do is in one order.
const cudaStream_t kStream = nullptr;

void select(int32_t index) { check(cudaSetDevice(index), "cudaSetDevice"); }

/// A GPU: weights and activations in its memory, products by cuBLASLt, on the legacy default stream.
class CudaDevice final : public Device {
 public:
  explicit CudaDevice(int32_t index) : index_(index), products_((select(index), Products())) {}

  kvq_device kind() const override { return KVQ_DEVICE_CUDA; }

  uint64_t memory_bytes() const override {
    select(index_);
    size_t free = 0;
    size_t total = 0;
    check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    return free;
  }

  Array allocate(size_t n) override {
    select(index_);
    return device_array(n);
  }

  Array upload(std::vector<float> numbers) override {
    const Array array = allocate(numbers.size());
    check(cudaMemcpy(array.data.get(), numbers.data(), numbers.size() * sizeof(float), cudaMemcpyHostToDevice),
          "cudaMemcpy");
    return array;
  }

  StoredNumbers place(const StoredNumbers& numbers, size_t n) override {
    select(index_);
    const size_t bytes = n * static_cast<size_t>(bytes_of(numbers.dtype));
    std::shared_ptr<void> memory = allocate_device(bytes);
    check(cudaMemcpy(memory.get(), numbers.data.get(), bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
    return {{memory, static_cast<const std::byte*>(memory.get())}, numbers.dtype};
  }

  std::span<const float> read(std::span<const float> numbers, Array& host) override {
    select(index_);
    if (host.size < numbers.size()) {
      host = {};
      host = host_array(numbers.size());
    }
    check(cudaMemcpyAsync(host.data.get(), numbers.data(), numbers.size_bytes(), cudaMemcpyDeviceToHost, kStream),
          "cudaMemcpyAsync");
    check(cudaStreamSynchronize(kStream), "cudaStreamSynchronize");
    return host.first(numbers.size());
  }

  void embed(const Matrix& embedding, std::span<const int32_t> tokens, float scale, std::span<float> x) override {
    select(index_);
    if (token_count_ < tokens.size()) {
      token_count_ = 0;
      tokens_ = allocate_device(tokens.size_bytes());
      token_count_ = tokens.size();
    }
    auto* device_tokens = static_cast<int32_t*>(tokens_.get());
    // Returns once it has read the tokens, which are in ordinary memory.
    check(cudaMemcpyAsync(device_tokens, tokens.data(), tokens.size_bytes(), cudaMemcpyHostToDevice, kStream),
          "cudaMemcpyAsync");
    check(launch_embed(embedding.numbers.data.get(), embedding.numbers.dtype, device_tokens,
                       static_cast<int64_t>(tokens.size()), embedding.columns, scale, x.data(), kStream),
          "embedding kernel");
  }

  void rms_norm(std::span<const float> x, const Array& weight, float epsilon, std::span<float> y) override {
    select(index_);
    check(launch_rms_norm(x.data(), weight.data.get(), epsilon, static_cast<int64_t>(x.size() / weight.size),
                          static_cast<int64_t>(weight.size), y.data(), kStream),
          "RMSNorm kernel");
  }

  void gate(Activation activation, int32_t /*rows*/, std::span<float> gate, std::span<const float> up) override {
    select(index_);
    const auto launch = activation == Activation::kSilu ? launch_swiglu : launch_geglu;
    check(launch(gate.data(), up.data(), static_cast<int64_t>(gate.size()), kStream), "kernel of gates");
  }

  void add(std::span<const float> x, std::span<float> y) override {
    select(index_);
    check(launch_add(x.data(), static_cast<int64_t>(y.size()), y.data(), kStream), "kernel of sums");
  }

  void softcap(float cap, std::span<float> x) override {
    select(index_);
    check(launch_softcap(cap, static_cast<int64_t>(x.size()), x.data(), kStream), "kernel of soft caps");
  }

  void add_gram(std::span<const float> x, int64_t in, float beta, std::span<float> sums) override {
    select(index_);
    products_.gram(x.data(), static_cast<int64_t>(x.size()) / in, in, beta, sums.data(), kStream);
  }

 private:
  StoredNumbers on_host(const StoredNumbers& numbers, size_t n) override {
    select(index_);
    const auto bytes = std::make_shared<std::vector<std::byte>>(n * static_cast<size_t>(bytes_of(numbers.dtype)));
    check(cudaMemcpyAsync(bytes->data(), numbers.data.get(), bytes->size(), cudaMemcpyDeviceToHost, kStream),
          "cudaMemcpyAsync");
    check(cudaStreamSynchronize(kStream), "cudaStreamSynchronize");
    return {{bytes, bytes->data()}, numbers.dtype};
  }

  void multiply(const Linear& linear, std::span<const float> x, float beta, std::span<float> y) override {
    select(index_);
    const Matrix& weight = linear.weight;
    const int64_t rows = static_cast<int64_t>(x.size()) / weight.columns;
    products_.run(weight, x.data(), rows, beta, y.data(), kStream);
    if (linear.bias.empty()) return;
    check(launch_add_bias(linear.bias.data.get(), rows, weight.rows, y.data(), kStream), "bias kernel");
  }

  int32_t index_;
  Products products_;
  DeviceMemory tokens_;
  size_t token_count_ = 0;
};

constexpr CudaModule kModule{.abi = KVQ_LLAMA_MODULE_ABI, .make_device = [](int32_t index) -> std::unique_ptr<Device> {
                               return std::make_unique<CudaDevice>(index);
                             }};

}  // namespace
}  // namespace llama::cuda

extern "C" __attribute__((visibility("default"))) const llama::CudaModule* kvq_llama_cuda_module() {
  return &llama::cuda::kModule;
}
