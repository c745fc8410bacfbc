#include "cuda_backend.h"

#include "attend_workspace.h"
#include "codecs.h"
#include "core/error.h"
#include "core/position_turns.h"
#include "cuda_error.h"
#include "device_centres.h"
#include "kernels/append.h"
#include "kernels/attend.h"
#include "page_table.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace kvq::cuda {
namespace {

constexpr float kLog2E = 1.4426950408889634F;

bool consecutive(std::span<const int32_t> positions) {
  return positions.empty() ||
         positions.back() - positions.front() == static_cast<int64_t>(positions.size()) - 1;  // they ascend
}

/// Position of a sequence's last query if its queries are at consecutive positions, otherwise −1.
int32_t last_position(const AttendBatch& batch, const AttendSequence& sequence) {
  if (batch.recorded) return -1;
  const auto positions = batch.query_positions.subspan(static_cast<size_t>(sequence.query_begin),
                                                       static_cast<size_t>(sequence.query_count));
  return batch.newest_queries && consecutive(positions) ? positions.back() : -1;
}

/// The number of pages that every list of some sequences has, or −1.
int32_t uniform_pages(std::span<const AttendSequence> sequences, int32_t kv_heads) {
  const int32_t pages = sequences[0].page_counts[0];
  for (const AttendSequence& sequence : sequences) {
    const std::span<const int32_t> counts(sequence.page_counts, static_cast<size_t>(kv_heads));
    if (std::any_of(counts.begin(), counts.end(), [pages](int32_t count) { return count != pages; })) return -1;
  }
  return pages;
}

/// What was trained for another codec is refused before it comes here.
void require_centres(const Codec& codec) {
  if (!gain_shape::has_trained_centres(codec.kinds.front().kind)) {
    fail(KVQ_E_UNSUPPORTED, "cuda does not compute with %s yet", codec.name);
  }
}

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
  cuda::check(cudaDeviceGetAttribute(&multiprocessors_, cudaDevAttrMultiProcessorCount, device_),
              "cudaDeviceGetAttribute");
  cuda::check(cudaDeviceGetAttribute(&shared_limit_, cudaDevAttrMaxSharedMemoryPerBlockOptin, device_),
              "cudaDeviceGetAttribute");
  cuda::check(prepare_attend(shared_limit_), "cudaFuncSetAttribute");
  cuda::check(prepare_append(), "cudaFuncSetAttribute");
  cuda::check(prepare_append_next(shared_limit_), "cudaFuncSetAttribute");
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
  require_centres(codec);
  const Call call(*this, Call::Reports::kNothing);
  return std::allocate_shared<const DeviceCentres>(StlAllocator<DeviceCentres>(allocator), *this, allocator,
                                                   std::static_pointer_cast<const ModelCentres>(std::move(trained)));
}

Owned<LayerContext> CudaBackend::make_context(Allocator& allocator, const Codec& codec, const Resident& resident,
                                              int32_t layer, const PageFormat& /*format*/,
                                              const OptionValues& /*options*/, const PositionTurns& turns) {
  require_centres(codec);
  const Call call(*this, Call::Reports::kNothing);
  return make_owned<CentreContext>(allocator, *this, allocator, codec, static_cast<const DeviceCentres&>(resident),
                                   layer, turns.rope());
}

Owned<LayerMirror> CudaBackend::make_mirror(Allocator& allocator, int32_t kv_heads) {
  return make_owned<PageTable>(allocator, *this, allocator, kv_heads);
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

void CudaBackend::attend(const AttendBatch& batch, Workspace& workspace) {
  const Call call(*this);
  auto& space = static_cast<AttendWorkspace&>(workspace);
  for (const AttendSequence& sequence : batch.sequences) {
    auto* table = static_cast<PageTable*>(sequence.mirror);
    if (batch.recorded) {
      table->require_published();
    } else {
      table->catch_up(sequence.pages, sequence.page_counts);
    }
  }
  const int32_t* positions = nullptr;
  if (!batch.newest_queries) {
    auto* staged = static_cast<int32_t*>(staging_->take(batch.query_positions.size_bytes()));
    std::copy(batch.query_positions.begin(), batch.query_positions.end(), staged);
    positions = staged;
  }
  AttendArguments arguments{};
  arguments.q_heads = batch.q_heads;
  arguments.kv_heads = batch.kv_heads;
  arguments.head_dim = batch.head_dim;
  arguments.q = batch.q;
  arguments.q_strides = batch.q_strides;
  arguments.out = batch.out;
  arguments.out_strides = batch.out_strides;
  arguments.lse = batch.lse;
  arguments.sinks = batch.sinks;
  arguments.q_dtype = batch.q_dtype;
  arguments.out_dtype = batch.out_dtype;
  arguments.scale = batch.scale * kLog2E;
  arguments.softcap = batch.softcap * kLog2E;
  arguments.window = batch.window;
  arguments.rope_pairing = batch.rope->pairing;
  arguments.rotary_dim = batch.rope->rotary_dim;
  arguments.inv_freq = space.inv_freq(*batch.rope, batch.recorded);
  arguments.query_positions = positions;
  arguments.hadamard_keys = batch.any_hadamard_keys ? 1 : 0;
  arguments.hadamard_values = batch.any_hadamard_values ? 1 : 0;
  if (batch.context != nullptr) arguments.centres = static_cast<const CentreContext*>(batch.context)->rows();
  for (size_t begin = 0; begin < batch.sequences.size(); begin += kMaxLaunchSequences) {
    const size_t n = std::min<size_t>(batch.sequences.size() - begin, kMaxLaunchSequences);
    for (size_t i = 0; i < n; ++i) {
      const AttendSequence& sequence = batch.sequences[begin + i];
      arguments.sequences[i] = {static_cast<PageTable*>(sequence.mirror)->view(), sequence.query_begin,
                                sequence.query_count, last_position(batch, sequence)};
    }
    arguments.n_sequences = static_cast<int32_t>(n);
    const auto some = [of = batch.sequences.subspan(begin, n)](bool (PageTable::*any)() const) {
      return std::any_of(of.begin(), of.end(), [any](const AttendSequence& sequence) {
        return (static_cast<const PageTable*>(sequence.mirror)->*any)();
      });
    };
    arguments.any_gains = some(&PageTable::any_gains) ? 1 : 0;
    arguments.any_centres = some(&PageTable::any_centres) ? 1 : 0;
    const int32_t even_pages = uniform_pages(batch.sequences.subspan(begin, n), batch.kv_heads);
    arguments.uniform_pages = batch.recorded ? -1 : even_pages;
    const AttendPlan plan = plan_attend(arguments, even_pages, multiprocessors_, shared_limit_);
    space.reserve(plan, batch.recorded);
    call.require(launch_attend(plan, arguments, space.partials(), space.tickets(), stream_), "attention kernel");
  }
  if (positions != nullptr) staging_->done(stream_);
}

}  // namespace kvq::cuda
