#include <cuda_runtime_api.h>

#include <algorithm>
#include <exception>
#include <type_traits>

#include "bench/timing.h"
#include "llama/error.h"

namespace cli {
namespace {

constexpr size_t kFlushBytes = size_t{256} << 20;  // several times the L2 cache
constexpr uint64_t kRotatedBytes = 200'000'000;    // the same
constexpr int kMostFlushes = 16;
constexpr int kCopyPasses = 10;

// Where contexts issue their work unless told otherwise.
const cudaStream_t kStream = nullptr;

void check(cudaError_t status, const char* call) {
  if (status != cudaSuccess) throw llama::Error(std::string(call) + ": " + cudaGetErrorString(status));
}

DeviceBuffer allocate(size_t bytes) {
  void* memory = nullptr;
  check(cudaMalloc(&memory, bytes), "cudaMalloc");
  return {memory, [](void* data) { cudaFree(data); }};
}

struct Destroy {
  void operator()(cudaEvent_t event) const { cudaEventDestroy(event); }
  void operator()(cudaStream_t stream) const { cudaStreamDestroy(stream); }
  void operator()(cudaGraph_t graph) const { cudaGraphDestroy(graph); }
  void operator()(cudaGraphExec_t graph) const { cudaGraphExecDestroy(graph); }
};
template <class Handle>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Destroy>;
using Event = Owned<cudaEvent_t>;
using Stream = Owned<cudaStream_t>;
using Graph = Owned<cudaGraph_t>;
using LaunchableGraph = Owned<cudaGraphExec_t>;

Event make_event() {
  cudaEvent_t event = nullptr;
  check(cudaEventCreate(&event), "cudaEventCreate");
  return Event(event);
}

// One that does not wait for the legacy default stream, which has to be left alone while another one is captured.
Stream make_stream() {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  return Stream(stream);
}

LaunchableGraph make_launchable(const Graph& graph) {
  cudaGraphExec_t launchable = nullptr;
  check(cudaGraphInstantiate(&launchable, graph.get(), 0), "cudaGraphInstantiate");
  return LaunchableGraph(launchable);
}

// Has a context issue its work to another stream while it lives.
class OnStream {
 public:
  OnStream(kvq_context* context, cudaStream_t stream) : context_(context) {
    kvq::checked(kvq_context_set_stream, context, stream);
  }
  ~OnStream() { kvq_context_set_stream(context_, kStream, nullptr); }
  OnStream(const OnStream&) = delete;
  OnStream& operator=(const OnStream&) = delete;

 private:
  kvq_context* context_;
};

void select(int32_t index) { check(cudaSetDevice(index), "cudaSetDevice"); }

class Gpu final : public TimedDevice {
 public:
  Gpu(int32_t index, const kvq_device_info& info) : info_(info), flushed_((select(index), allocate(kFlushBytes))) {}
  std::string name() const override { return info_.name; }
  uint64_t memory_bytes() const override { return info_.memory_bytes; }

  // A copy reads every byte and writes it.
  double memory_bandwidth() override {
    const DeviceBuffer target = allocate(kFlushBytes);
    double best = 0.0;
    for (int pass = 0; pass < kCopyPasses; ++pass) {
      const double microseconds = time([&] {
        check(cudaMemcpyAsync(target.get(), flushed_.get(), kFlushBytes, cudaMemcpyDeviceToDevice, kStream),
              "cudaMemcpyAsync");
      });
      best = std::max(best, 2.0 * static_cast<double>(kFlushBytes) / microseconds * 1e6);
    }
    return best;
  }

  DeviceBuffer upload(std::span<const std::byte> bytes) override {
    DeviceBuffer buffer = allocate(bytes.size());
    check(cudaMemcpy(buffer.get(), bytes.data(), bytes.size(), cudaMemcpyHostToDevice), "cudaMemcpy");
    return buffer;
  }

  // Writing so many bytes empties the L2 cache of others, and is to take the device longer than it takes the host to
  // issue the work: then the device finds it waiting, and the events enclose nothing else. When the device was first,
  // it gets more to write from the next time on.
  double time(const std::function<void()>& issue) override {
    for (int i = 0; i < flushes_; ++i) {
      check(cudaMemsetAsync(flushed_.get(), 0, kFlushBytes, kStream), "cudaMemsetAsync");
    }
    check(cudaEventRecord(begin_.get(), kStream), "cudaEventRecord");
    issue();
    if (flushes_ < kMostFlushes && cudaEventQuery(begin_.get()) == cudaSuccess) flushes_ *= 2;
    check(cudaEventRecord(end_.get(), kStream), "cudaEventRecord");
    check(cudaEventSynchronize(end_.get()), "cudaEventSynchronize");
    float milliseconds = 0.0F;
    check(cudaEventElapsedTime(&milliseconds, begin_.get(), end_.get()), "cudaEventElapsedTime");
    return 1e3 * static_cast<double>(milliseconds);
  }

  bool records() const override { return true; }

  std::function<void()> record(kvq_context* context, std::function<void()> issue) override {
    const OnStream on_captured(context, captured_.get());
    const std::shared_ptr graph = make_launchable(capture(issue));
    return [graph] { check(cudaGraphLaunch(graph.get(), kStream), "cudaGraphLaunch"); };
  }

  uint64_t bytes_to_rotate(bool recorded) const override { return recorded ? kRotatedBytes : 0; }
  bool forgets_instructions() const override { return true; }

 private:
  Graph capture(const std::function<void()>& issue) {
    check(cudaStreamBeginCapture(captured_.get(), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    std::exception_ptr failure;
    try {
      issue();
    } catch (...) {
      failure = std::current_exception();
    }
    cudaGraph_t graph = nullptr;
    const cudaError_t ended = cudaStreamEndCapture(captured_.get(), &graph);  // after a failure, too
    Graph owned(graph);
    if (failure != nullptr) std::rethrow_exception(failure);
    check(ended, "cudaStreamEndCapture");
    return owned;
  }

  kvq_device_info info_;
  DeviceBuffer flushed_;
  int flushes_ = 1;
  Stream captured_ = make_stream();
  Event begin_ = make_event();
  Event end_ = make_event();
};

}  // namespace

std::unique_ptr<TimedDevice> make_timed_gpu(const ComputeOptions& options) {
  return std::make_unique<Gpu>(options.device_index, kvq::device_describe(KVQ_DEVICE_CUDA, options.device_index));
}

}  // namespace cli
