#include "core/tensor.h"
#include "linear/device_matrix.h"
#include "linear/linear.h"

#include <utility>
#include <vector>

namespace kvq::cuda {
namespace {

/// Calls of a measurement. They read copies of the codes in turn, so that no cache holds them, as in a model.
constexpr int32_t kLeastCalls = 8;
constexpr int32_t kMostCalls = 256;
constexpr size_t kRounds = 5;
/// Kernels that take so many times as long as the fastest in the first round are not measured again.
constexpr float kHopeless = 1.5F;
/// An estimate that is nearly right stays, so that noise does not choose.
constexpr float kWorthwhile = 0.98F;

template <typename Handle, cudaError_t (*kDestroy)(Handle)>
class Held {
 public:
  Held() = default;
  Held(Held&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Held& operator=(Held other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Held() {
    if (handle_ != nullptr) kDestroy(handle_);
  }

  Handle* receive() { return &handle_; }
  Handle get() const { return handle_; }

 private:
  Handle handle_ = nullptr;
};
using Stream = Held<cudaStream_t, cudaStreamDestroy>;
using Event = Held<cudaEvent_t, cudaEventDestroy>;
using Graph = Held<cudaGraph_t, cudaGraphDestroy>;
using ReadyGraph = Held<cudaGraphExec_t, cudaGraphExecDestroy>;

int32_t copies_of(LinearProducts products, int32_t cache_bytes) {
  const size_t bytes = code_bytes(products);
  const size_t wanted = (2 * static_cast<size_t>(cache_bytes) + bytes - 1) / bytes;
  return std::clamp(static_cast<int32_t>(std::min<size_t>(wanted, kMostCalls)), 1, kMostCalls);
}

size_t bytes_of(int32_t rows, int32_t columns, int32_t dtype) {
  return static_cast<size_t>(rows) * static_cast<size_t>(columns) * dtype_bytes(dtype);
}

struct Candidate {
  LinearKernel kernel;
  ReadyGraph graph;
  std::vector<float> times{};  // of rounds, in milliseconds

  float median() const {
    std::vector<float> sorted = times;
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() / 2];
  }
};

/// Times products with all candidates, on inputs, outputs and copies of codes of its own.
class Measurement {
 public:
  Measurement(Device& device, const KernelChoice& kernels, const Call& call, Allocator& account,
              const LaunchGroup& group, const InputRows& rows, LinearWorkspace& space)
      : kernels_(kernels),
        call_(call),
        products_(group.products()),
        rows_(rows),
        space_(space),
        copies_(copies_of(products_, cache_bytes())),
        x_(device, account, bytes_of(rows.rows, rows.in, rows.dtype)),
        y_(device, account, output_bytes()),
        codes_(device, account, static_cast<size_t>(copies_) * code_bytes(products_)) {
    rows_.x = x_.data();
    // Numbers that are neither zero nor large in any type.
    call.require(cudaMemsetAsync(x_.data(), 0x3C, x_.size(), device.stream()), "cudaMemsetAsync");
    size_t at = 0;
    for (int32_t copy = 0; copy < copies_; ++copy) {
      for (const LinearProduct& each : products_) {
        call.require(cudaMemcpyAsync(codes_.from(at), each.matrix.codes, code_bytes(each), cudaMemcpyDeviceToDevice,
                                     device.stream()),
                     "cudaMemcpyAsync");
        at += code_bytes(each);
      }
    }
    call.require(cudaStreamSynchronize(device.stream()), "cudaStreamSynchronize");
    call.require(cudaStreamCreateWithFlags(stream_.receive(), cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    for (Event* event : {&begin_, &end_}) call.require(cudaEventCreate(event->receive()), "cudaEventCreate");
    space_.reserve(rows_, kMostTileRows, false);  // enough for all candidates
    kernels_.for_each_candidate(products_, rows_, [this](const LinearKernel& kernel) {
      candidates_.push_back({kernel, record(kernel)});
    });
  }

  LinearKernel fastest() {
    const LinearKernel estimate = kernels_.estimate(products_, rows_);
    run_round();  // warms up and finds hopeless candidates
    float least = candidates_.front().times[0];
    for (const Candidate& each : candidates_) least = std::min(least, each.times[0]);
    std::erase_if(candidates_,
                  [&](const Candidate& each) { return each.times[0] > kHopeless * least && each.kernel != estimate; });
    for (Candidate& each : candidates_) each.times.clear();
    for (size_t round = 0; round < kRounds; ++round) run_round();
    return std::min_element(candidates_.begin(), candidates_.end(),
                            [&](const Candidate& a, const Candidate& b) {
                              return handicapped(a, estimate) < handicapped(b, estimate);
                            })
        ->kernel;
  }

 private:
  static int32_t cache_bytes() {
    int32_t device = 0;
    int32_t bytes = 0;
    check(cudaGetDevice(&device), "cudaGetDevice");
    check(cudaDeviceGetAttribute(&bytes, cudaDevAttrL2CacheSize, device), "cudaDeviceGetAttribute");
    return bytes;
  }
  size_t output_bytes() const {
    size_t bytes = 0;
    for (const LinearProduct& each : products_) bytes += bytes_of(rows_.rows, each.matrix.out, each.outputs.dtype);
    return bytes;
  }
  static float handicapped(const Candidate& each, const LinearKernel& estimate) {
    return each.median() * (each.kernel == estimate ? kWorthwhile : 1.0F);
  }
  void run_round() {
    for (Candidate& each : candidates_) each.times.push_back(time(each));
  }
  int32_t calls() const { return std::max(copies_, kLeastCalls); }

  void issue(const LinearKernel& kernel, int32_t copy) {
    std::array<LinearProduct, kMostTogether> own{};
    uint8_t* codes = codes_.from(static_cast<size_t>(copy) * code_bytes(products_));
    uint8_t* y = y_.data();
    for (size_t i = 0; i < products_.size(); ++i) {
      own[i] = products_[i];
      own[i].matrix.codes = codes;
      own[i].outputs.y = y;
      codes += code_bytes(own[i]);
      y += bytes_of(rows_.rows, own[i].matrix.out, own[i].outputs.dtype);
    }
    const LinearDevice& device = kernels_.device();
    std::optional<LinearInputs> inputs;
    if (!kernel.fused_inputs) {
      inputs = space_.reserve(rows_, kernel.tile_rows, false);
      call_.require(launch_linear_inputs(rows_, space_.numbers(), *inputs, device, stream_.get()), kKernel);
    }
    call_.require(launch_products({own.data(), products_.size()}, rows_, kernel, inputs, device, stream_.get()),
                  kKernel);
  }

  ReadyGraph record(const LinearKernel& kernel) {
    Graph graph;
    call_.require(cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    for (int32_t i = 0; i < calls(); ++i) issue(kernel, i % copies_);
    call_.require(cudaStreamEndCapture(stream_.get(), graph.receive()), "cudaStreamEndCapture");
    ReadyGraph ready;
    call_.require(cudaGraphInstantiate(ready.receive(), graph.get(), 0), "cudaGraphInstantiate");
    return ready;
  }

  float time(const Candidate& each) {
    float milliseconds = 0.0F;
    call_.require(cudaEventRecord(begin_.get(), stream_.get()), "cudaEventRecord");
    call_.require(cudaGraphLaunch(each.graph.get(), stream_.get()), "cudaGraphLaunch");
    call_.require(cudaEventRecord(end_.get(), stream_.get()), "cudaEventRecord");
    call_.require(cudaEventSynchronize(end_.get()), "cudaEventSynchronize");
    call_.require(cudaEventElapsedTime(&milliseconds, begin_.get(), end_.get()), "cudaEventElapsedTime");
    return milliseconds;
  }

  static constexpr const char* kKernel = "kernel of linear layers";

  const KernelChoice& kernels_;
  const Call& call_;
  LinearProducts products_;
  InputRows rows_;
  LinearWorkspace& space_;
  int32_t copies_;
  DeviceArray<uint8_t> x_;
  DeviceArray<uint8_t> y_;
  DeviceArray<uint8_t> codes_;
  Stream stream_;
  Event begin_;
  Event end_;
  std::vector<Candidate> candidates_;
};

}  // namespace

void CudaTuning::tune(Allocator& allocator, std::span<const Resident* const> matrices, int32_t batch) {
  const Call call(device_);
  if (device_.is_capturing())
    fail(KVQ_E_UNSUPPORTED, "qp_tune waits for the device, which it cannot do while a stream is captured");
  // Earlier work would disturb the times, and may still use the work space.
  call.require(cudaStreamSynchronize(call.stream()), "cudaStreamSynchronize");
  MeasuredKernels& measured = kernels_.measured();
  const DeviceMatrix& first = DeviceMatrix::of(matrices.front());
  constexpr std::array<void*, kMostSharedMatrices> kNowhere{};
  constexpr kvq_dtype kType = KVQ_F16;
  const LinearBatch shape{
      .matrices = matrices, .x = nullptr, .x_dtype = kType, .batch = batch, .y = kNowhere.data(), .y_dtype = kType};
  for_each_pass(batch, first.tables().in, [&](int32_t n_rows, size_t /*rows_before*/) {
    for (size_t i = 0; i < matrices.size();) {
      const LaunchGroup group(shape, i, 0);
      i += group.products().size();
      const InputRows rows{
          .x = nullptr, .dtype = kType, .rows = n_rows, .in = first.tables().in, .signs = group.signs()};
      const LinearShape key = shape_of(group.products(), n_rows);
      if (measured.find(key) != nullptr) continue;
      measured.put(key, Measurement(device_, kernels_, call, allocator, group, rows, first.space()).fastest());
    }
  });
}

std::string CudaTuning::save() {
  const Call call(device_, Call::Reports::kNothing);
  return kernels_.measured().text();
}

void CudaTuning::load(std::string_view text) {
  const Call call(device_, Call::Reports::kNothing);
  kernels_.measured().load(text);
}

}  // namespace kvq::cuda
