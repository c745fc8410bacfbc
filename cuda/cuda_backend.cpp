#include "cuda_backend.h"

#include "attend/workspace.h"
#include "commvq/device_codebook.h"
#include "core/error.h"
#include "core/position_turns.h"
#include "device/cuda_error.h"
#include "formats/commvq/commvq.h"
#include "kernels/append/append.h"
#include "kernels/append/vote.h"
#include "kernels/attend/attend.h"
#include "kernels/commvq/attend.h"
#include "kernels/evict/weigh.h"
#include "kernels/prefill/prefill.h"
#include "pages/codecs.h"
#include "pages/device_centres.h"
#include "pages/page_table.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace kvq::cuda {
namespace {

/// Of the codecs that need training, what is not CommVQ has trained centres.
bool has_codebooks(const Codec& codec) { return codec.number == commvq::kCodec.number; }

}  // namespace

CudaBackend::Call::Call(CudaBackend& backend, Reports reports)
    : lock_(backend.mutex_), guard_(backend.device_), backend_(backend) {
  if (backend.broken_ != cudaSuccess) {
    char message[sizeof(kvq_error::message)];
    std::snprintf(message, sizeof(message), "the context is broken since an earlier failure: %s (%s); destroy it",
                  cudaGetErrorString(backend.broken_), cudaGetErrorName(backend.broken_));
    throw Error(KVQ_E_BACKEND, static_cast<int32_t>(backend.broken_), message);
  }
  if (reports == Reports::kNothing) return;
  const auto reported = [&backend](int32_t which) {
    volatile int32_t* status = backend.status_ + which;
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

void CudaBackend::Call::require(cudaError_t status, const char* call) const {
  if (status == cudaSuccess) return;
  const bool capture_failed =
      status >= cudaErrorStreamCaptureUnsupported && status <= cudaErrorStreamCaptureWrongThread;
  if (status != cudaErrorMemoryAllocation && status != cudaErrorInvalidValue && !capture_failed) {
    backend_.broken_ = status;
  }
  cuda::check(status, call);
}

CudaBackend::CudaBackend(const DeviceOptions& options)
    : device_(options.index), stream_(static_cast<cudaStream_t>(options.stream)) {
  DeviceGuard guard(device_);
  int32_t major = 0;
  int32_t minor = 0;
  cuda::check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device_), "cudaDeviceGetAttribute");
  cuda::check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device_), "cudaDeviceGetAttribute");
  std::snprintf(isa_, sizeof(isa_), "sm_%d%d", major, minor);
  compute_capability_ = 10 * major + minor;
  cuda::check(cudaDeviceGetAttribute(&multiprocessors_, cudaDevAttrMultiProcessorCount, device_),
              "cudaDeviceGetAttribute");
  cuda::check(cudaDeviceGetAttribute(&shared_limit_, cudaDevAttrMaxSharedMemoryPerBlockOptin, device_),
              "cudaDeviceGetAttribute");
  linear_device_ = {.multiprocessors = multiprocessors_,
                    .shared_limit = shared_limit_,
                    .overlaps = compute_capability_ >= 90,
                    .has_warpgroups = compute_capability_ == 90,
                    .clusters = {}};
  if (linear_device_.has_warpgroups) count_clusters(linear_device_);
  cuda::check(prepare_attend(shared_limit_), "cudaFuncSetAttribute");
  if (has_prefill(compute_capability_)) {
    cuda::check(prepare_unpack(), "cudaFuncSetAttribute");
    cuda::check(prepare_prefill(), "cudaFuncSetAttribute");
  }
  cuda::check(prepare_append(), "cudaFuncSetAttribute");
  cuda::check(prepare_append_next(shared_limit_), "cudaFuncSetAttribute");
  cuda::check(prepare_encode_keys(), "cudaFuncSetAttribute");
  cuda::check(prepare_commvq_attention(shared_limit_), "cudaFuncSetAttribute");
  cuda::check(prepare_decode_lists(shared_limit_), "cudaFuncSetAttribute");
  cuda::check(prepare_vote(), "cudaFuncSetAttribute");
  cuda::check(prepare_weigh(shared_limit_), "cudaFuncSetAttribute");
  cuda::check(prepare_move(), "cudaFuncSetAttribute");
  memory_.emplace(options);
  staging_.emplace();
  cuda::check(cudaHostAlloc(reinterpret_cast<void**>(&status_), 2 * sizeof(int32_t), cudaHostAllocDefault),
              "cudaHostAlloc");
  status_[0] = status_[1] = 0;
}

CudaBackend::~CudaBackend() {
  int previous = 0;
  cudaGetDevice(&previous);
  cudaSetDevice(device_);
  cudaStreamSynchronize(stream_);
  staging_.reset();
  memory_.reset();
  cudaFreeHost(status_);
  cudaSetDevice(previous);
}

void CudaBackend::set_stream(void* stream) {
  const Call call(*this);
  const auto next = static_cast<cudaStream_t>(stream);
  if (next == stream_) return;
  cudaEvent_t issued = nullptr;
  call.require(cudaEventCreateWithFlags(&issued, cudaEventDisableTiming), "cudaEventCreate");
  cudaError_t status = cudaEventRecord(issued, stream_);
  if (status == cudaSuccess) status = cudaStreamWaitEvent(next, issued, 0);
  cudaEventDestroy(issued);
  call.require(status, "cudaStreamWaitEvent");
  stream_ = next;
}

bool CudaBackend::is_capturing() const {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  // Fails for the legacy stream while another is captured: whatever is issued there then says so itself.
  return cudaStreamIsCapturing(stream_, &status) == cudaSuccess && status != cudaStreamCaptureStatusNone;
}

bool CudaBackend::recording() {
  const Call call(*this, Call::Reports::kNothing);
  return is_capturing();
}

void* CudaBackend::allocate_device(Allocator& account, size_t bytes) {
  return memory_->allocate(account, bytes, stream_);
}

void CudaBackend::release_device(Allocator& account, void* pointer, size_t bytes) noexcept {
  if (pointer == nullptr) return;
  int previous = 0;
  cudaGetDevice(&previous);
  if (previous != device_) cudaSetDevice(device_);
  memory_->release(account, pointer, bytes, stream_);
  if (previous != device_) cudaSetDevice(previous);
}

std::byte* CudaBackend::allocate(Allocator& allocator, size_t bytes) {
  const Call call(*this);
  return static_cast<std::byte*>(allocate_device(allocator, bytes));
}

void CudaBackend::release(Allocator& allocator, std::byte* data, size_t bytes) noexcept {
  release_device(allocator, data, bytes);
}

void CudaBackend::read(const PageFormat& format, const std::byte* data, std::byte* host) {
  const Call call(*this);
  const size_t bytes = format.bytes();
  auto* staged = static_cast<std::byte*>(staging_->take(bytes));
  call.require(cudaMemcpyAsync(staged, data, bytes, cudaMemcpyDeviceToHost, stream_), "cudaMemcpyAsync");
  call.require(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  to_host_order(format, staged, host);
}

void CudaBackend::write(const PageFormat& format, const std::byte* host, std::byte* data) {
  const Call call(*this);
  const size_t bytes = format.bytes();
  auto* staged = static_cast<std::byte*>(staging_->take(bytes));
  to_device_order(format, host, staged);
  call.require(cudaMemcpyAsync(data, staged, bytes, cudaMemcpyHostToDevice, stream_), "cudaMemcpyAsync");
  staging_->done(stream_);
}

bool CudaBackend::knows(const PageFormat& format) const { return cuda::knows(format); }

std::shared_ptr<const Resident> CudaBackend::make_resident(Allocator& allocator, const Codec& codec,
                                                           std::shared_ptr<const Trained> trained) {
  const Call call(*this, Call::Reports::kNothing);
  if (has_codebooks(codec)) {
    return std::allocate_shared<const DeviceCodebook>(
        StlAllocator<DeviceCodebook>(allocator), *this, allocator,
        std::static_pointer_cast<const ModelCodebook>(std::move(trained)));
  }
  return std::allocate_shared<const DeviceCentres>(StlAllocator<DeviceCentres>(allocator), *this, allocator,
                                                   std::static_pointer_cast<const ModelCentres>(std::move(trained)));
}

Owned<LayerContext> CudaBackend::make_context(Allocator& allocator, const Codec& codec, const Resident& resident,
                                              int32_t layer, const PageFormat& /*format*/, const OptionValues& options,
                                              const PositionTurns& turns) {
  const Call call(*this, Call::Reports::kNothing);
  if (has_codebooks(codec)) {
    return make_owned<CodebookContext>(allocator, *this, allocator, codec, static_cast<const DeviceCodebook&>(resident),
                                       layer, options, turns);
  }
  return make_owned<CentreContext>(allocator, *this, allocator, codec, static_cast<const DeviceCentres&>(resident),
                                   layer, turns.rope());
}

Owned<LayerMirror> CudaBackend::make_mirror(Allocator& allocator, int32_t kv_heads) {
  return make_owned<PageTable>(allocator, *this, allocator, kv_heads);
}

uint64_t CudaBackend::mirror_bytes(int32_t kv_heads, int32_t pages, int32_t ring) const {
  return PageTable::bytes_of(kv_heads, pages, ring);
}

void CudaBackend::read_lengths(std::span<const Owned<LayerMirror>> mirrors, std::span<int32_t> lengths) {
  const Call call(*this);
  auto* staged = static_cast<int32_t*>(staging_->take(lengths.size_bytes()));
  for (size_t i = 0; i < mirrors.size(); ++i) {
    const auto& table = static_cast<const PageTable&>(*mirrors[i]);
    staged[i] = 0;
    if (table.states() == nullptr) continue;
    call.require(cudaMemcpyAsync(staged + i, &table.states()->length, sizeof(int32_t), cudaMemcpyDeviceToHost, stream_),
                 "cudaMemcpyAsync");
  }
  call.require(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  std::copy_n(staged, lengths.size(), lengths.begin());
}

Owned<Workspace> CudaBackend::make_workspace(Allocator& allocator) {
  return make_owned<AttendWorkspace>(allocator, *this, allocator);
}

uint64_t CudaBackend::workspace_bytes(const ExpectedCall& call) {
  if (call.queries == 0) return sizeof(AttendWorkspace);
  fail(KVQ_E_UNSUPPORTED, "queries is %d, must be 0 on a CUDA context: the size of its workspace depends on the device",
       call.queries);
}

}  // namespace kvq::cuda
