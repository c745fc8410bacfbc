#pragma once

#include "backend/plugin.h"
#include "device/cuda_error.h"
#include "device/device_memory.h"
#include "kernels/append/append.h"
#include "kernels/linear/linear.h"
#include "linear/tuning.h"

#include <cuda_runtime_api.h>

#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace kvq::cuda {

class AttendWorkspace;
class DecodedLists;
class LinearWorkspace;
class PageTable;

/// Pages and kernels on one GPU. Work is issued to one stream and waited for only where the host reads results.
class CudaBackend final : public Backend,
                          private Pages,
                          private Attention,
                          private Weighing,
                          private Voting,
                          private Linear,
                          private Tuning,
                          private Training,
                          private weights::Quantizing {
 public:
  explicit CudaBackend(const DeviceOptions& options);
  ~CudaBackend() override;

  const char* name() const override { return "cuda"; }
  const char* isa() const override { return isa_; }
  void set_stream(void* stream) override;
  bool recording() override;

  Pages& pages() override { return *this; }
  Attention& attention() override { return *this; }
  Facet<Weighing> weighing() override { return *this; }
  Facet<Voting> voting() override { return *this; }
  Facet<Linear> linear() override { return *this; }
  Facet<Tuning> tuning() override { return *this; }
  Facet<Training> training() override { return *this; }
  Facet<weights::Quantizing> quantizing() override { return *this; }

  // For the objects that live on this device.
  class Call;
  class AttendCall;
  class CodedAppend;
  void record_append(const TokenBatch& tokens, PageTable& table);
  cudaStream_t stream() const { return stream_; }
  /// Bytes of shared memory that a block may have.
  int32_t shared_limit() const { return shared_limit_; }
  const LinearDevice& linear_device() const { return linear_device_; }
  Staging& staging() { return *staging_; }
  void* allocate_device(Allocator& account, size_t bytes);
  void release_device(Allocator& account, void* pointer, size_t bytes) noexcept;

 private:
  bool knows(const PageFormat& format) const override;
  std::shared_ptr<const Resident> make_resident(Allocator& allocator, const Codec& codec,
                                                std::shared_ptr<const Trained> trained) override;
  Owned<LayerContext> make_context(Allocator& allocator, const Codec& codec, const Resident& resident, int32_t layer,
                                   const PageFormat& format, const OptionValues& options,
                                   const PositionTurns& turns) override;
  std::byte* allocate(Allocator& allocator, size_t bytes) override;
  void release(Allocator& allocator, std::byte* data, size_t bytes) noexcept override;
  void read(const PageFormat& format, const std::byte* data, std::byte* host) override;
  void write(const PageFormat& format, const std::byte* host, std::byte* data) override;

  Owned<LayerMirror> make_mirror(Allocator& allocator, int32_t kv_heads) override;
  uint64_t mirror_bytes(int32_t kv_heads, int32_t pages, int32_t ring) const override;
  void read_lengths(std::span<const Owned<LayerMirror>> mirrors, std::span<int32_t> lengths) override;
  void append(const TokenBatch& tokens, const PageWrites& writes, std::span<const AppendedLayer> layers,
              Allocator& scratch) override;

  Owned<Workspace> make_workspace(Allocator& allocator) override;
  uint64_t workspace_bytes(const ExpectedCall& call) override;
  void attend(const AttendBatch& batch, Workspace& workspace) override;

  void copy(void* to, const void* from, size_t bytes) noexcept override;
  void clear(void* data, size_t bytes) override;
  void keep_queries(const QueriesToKeep& queries) noexcept override;
  void weigh(const AttendBatch& batch, Pooling group, Workspace& workspace, std::span<float* const> masses) override;
  void select(Allocator& allocator, const Selection& selection, std::span<Vector<int32_t>> slots) override;
  void take(float* to, const float* from, std::span<const int32_t> slots) override;
  bool moves(const PageFormat& format) const override;
  void move(const SlotMoves& moves) override;

  std::shared_ptr<const Resident> make_resident(Allocator& allocator,
                                                std::shared_ptr<const ModelRouter> router) override;
  void vote(std::span<const PageToRoute> pages, const PositionTurns& turns, const Resident& router, int32_t group,
            std::span<int32_t> counts) override;

  Owned<Resident> make_resident(Allocator& allocator, weights::Matrix&& matrix) override;
  const weights::Matrix& read(const Resident& matrix, std::optional<weights::Matrix>& copy) override;
  void multiply(const LinearBatch& batch) override;

  void tune(Allocator& allocator, std::span<const Resident* const> matrices, int32_t batch) override;
  std::string save() override;
  void load(std::string_view text) override;

  Owned<KeySample> make_key_sample(Allocator& allocator, const KeyVectors& keys) override;
  Owned<ValueSample> make_value_sample(Allocator& allocator, const UnitVectors& vectors) override;
  Owned<CentreSample> make_centre_sample(Allocator& allocator, int32_t centres, const CentreVectors& vectors) override;

  Owned<weights::PanelCoder> make_coder(Allocator& allocator, const weights::PanelTask& task) override;
  bool factorize(Allocator& allocator, float* matrix, int32_t n) override;

  void weigh_heads(const Call& call, const AttendBatch& batch, std::span<const SequenceView> views, Pooling group,
                   AttendWorkspace& space, std::span<float* const> masses);
  void attend_decoded(const Call& call, const AttendBatch& batch, AttendWorkspace& space, const DecodedLists& lists,
                      int32_t first_head);
  /// Issue work where nothing may be thrown.
  template <typename Issue>
  void issue(const Issue& issue) noexcept;
  void select_on_host(const Call& call, Allocator& allocator, const Selection& selection,
                      std::span<Vector<int32_t>> slots);
  bool is_capturing() const;
  LinearWay way_of(LinearProducts products, const InputRows& rows) const;
  LinearTuning& known_ways();
  AppendArguments append_arguments(const TokenBatch& tokens) const;
  void append_plain(const Call& call, const TokenBatch& tokens, std::span<const PageWrite> writes,
                    std::span<const AppendedLayer> layers);
  int32_t device_;
  cudaStream_t stream_;
  int32_t compute_capability_ = 0;  // 10 · major + minor
  int32_t multiprocessors_ = 0;
  int32_t shared_limit_ = 0;  // bytes of a block
  LinearDevice linear_device_{};
  char isa_[16] = {};
  std::mutex mutex_;
  std::optional<DeviceMemory> memory_;
  std::optional<Staging> staging_;
  std::weak_ptr<LinearWorkspace> linear_space_;  // of all matrices
  std::optional<LinearTuning> tuning_;
  int32_t* status_ = nullptr;  // page-locked [2], set by kernels: a value did not fit FP16; a list had no room
  cudaError_t broken_ = cudaSuccess;
};

/// One call at a time, on the right device.
class CudaBackend::Call {
 public:
  enum class Reports { kNothing, kEarlierCalls };
  /// Throws if the context is broken, and what the device reported about earlier calls.
  explicit Call(CudaBackend& backend, Reports reports = Reports::kEarlierCalls);

  /// Once the device's own state is lost, nothing works on it any more.
  void require(cudaError_t status, const char* call) const;

 private:
  std::lock_guard<std::mutex> lock_;
  DeviceGuard guard_;
  CudaBackend& backend_;
};

}  // namespace kvq::cuda
