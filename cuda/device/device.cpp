#include "device/device.h"

#include "core/error.h"
#include "core/number_text.h"

#include <algorithm>
#include <cstdint>
#include <string_view>

namespace kvq::cuda {
namespace {

/// Compute capability of the devices whose kernels run: "sm_80" stands for older ones, with sm_86 in the shared memory
/// of those.
int32_t most_capability(const char* isa) {
  constexpr int32_t kOldest = 80;
  constexpr std::string_view kPrefix = "sm_";
  const std::string_view name = isa != nullptr ? isa : "";
  int32_t capability = 0;
  if (!name.starts_with(kPrefix) || !parse_number(name.substr(kPrefix.size()), capability)) return INT32_MAX;
  return std::max(capability, kOldest);
}

bool captures(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  // Fails for the legacy stream while another is captured: whatever is issued there then says so itself.
  return cudaStreamIsCapturing(stream, &status) == cudaSuccess && status != cudaStreamCaptureStatusNone;
}

}  // namespace

DeviceGuard::DeviceGuard(int device) noexcept : device_(device), previous_(device), status_(cudaGetDevice(&previous_)) {
  if (previous_ != device_) status_ = cudaSetDevice(device_);
}

DeviceGuard::~DeviceGuard() {
  if (previous_ != device_) cudaSetDevice(previous_);
}

Device::Device(const DeviceOptions& options)
    : index_(options.index), stream_(static_cast<cudaStream_t>(options.stream)) {
  const DeviceGuard guard(index_);
  guard.require();
  const auto attribute = [this](cudaDeviceAttr which) {
    int32_t value = 0;
    check(cudaDeviceGetAttribute(&value, which, index_), "cudaDeviceGetAttribute");
    return value;
  };
  const int32_t major = attribute(cudaDevAttrComputeCapabilityMajor);
  const int32_t minor = attribute(cudaDevAttrComputeCapabilityMinor);
  compute_capability_ = std::min(10 * major + minor, most_capability(options.isa));
  std::snprintf(isa_, sizeof(isa_), "sm_%d", compute_capability_);
  multiprocessors_ = attribute(cudaDevAttrMultiProcessorCount);
  shared_limit_ = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  if (compute_capability_ < 10 * major + minor) {
    shared_limit_ = std::min(shared_limit_, (compute_capability_ == 80 ? 163 : 99) << 10);
  }
  memory_.emplace(options);
  staging_.emplace();
  check(cudaHostAlloc(reinterpret_cast<void**>(&status_), 2 * sizeof(int32_t), cudaHostAllocDefault), "cudaHostAlloc");
  status_[0] = status_[1] = 0;
}

Device::~Device() {
  const DeviceGuard guard(index_);
  cudaStreamSynchronize(stream_);
  staging_.reset();
  memory_.reset();
  cudaFreeHost(status_);
}

void Device::set_stream(cudaStream_t next) {
  const Call call(*this);
  if (next == stream_) return;
  // It would wait for work outside of the capture, which invalidates that.
  if (captures(next)) fail(KVQ_E_ARGUMENT, "stream is being captured: set it before the capture begins");
  cudaEvent_t issued = nullptr;
  call.require(cudaEventCreateWithFlags(&issued, cudaEventDisableTiming), "cudaEventCreate");
  cudaError_t status = cudaEventRecord(issued, stream_);
  if (status == cudaSuccess) status = cudaStreamWaitEvent(next, issued, 0);
  cudaEventDestroy(issued);
  call.require(status, "cudaStreamWaitEvent");
  stream_ = next;
}

bool Device::is_capturing() const { return captures(stream_); }

void Device::release(Allocator& account, void* pointer, size_t bytes) noexcept {
  if (pointer == nullptr) return;
  const DeviceGuard guard(index_);
  memory_->release(account, pointer, bytes, stream_);
}

Call::Call(Device& device, Reports reports) : lock_(device.mutex_), guard_(device.index_), device_(device) {
  guard_.require();
  if (device.broken_ != cudaSuccess) {
    char message[sizeof(kvq_error::message)];
    std::snprintf(message, sizeof(message), "the context is broken since an earlier failure: %s (%s); destroy it",
                  cudaGetErrorString(device.broken_), cudaGetErrorName(device.broken_));
    throw Error(KVQ_E_BACKEND, static_cast<int32_t>(device.broken_), message);
  }
  if (reports == Reports::kNothing) return;
  const auto reported = [&device](int32_t which) {
    volatile int32_t* status = device.status_ + which;
    return *status != 0 && (*status = 0, true);
  };
  if (reported(0)) {
    fail(KVQ_E_ARGUMENT,
         "k or v of an earlier kvq_append held a number that FP16 cannot (NaN, infinite or beyond %g): the nearest "
         "one was stored; this call did nothing",
         65504.0);
  }
  if (reported(1)) {
    fail(KVQ_E_LIMIT,
         "a replayed kvq_append found no room and appended nothing: replays took more tokens than kvq_sequence_reserve "
         "made room for; this call did nothing");
  }
}

void Call::require(cudaError_t status, const char* call) const {
  if (status == cudaSuccess) return;
  const bool capture_failed =
      status >= cudaErrorStreamCaptureUnsupported && status <= cudaErrorStreamCaptureWrongThread;
  if (status != cudaErrorMemoryAllocation && status != cudaErrorInvalidValue && !capture_failed) {
    device_.broken_ = status;
  }
  check(status, call);
}

}  // namespace kvq::cuda
