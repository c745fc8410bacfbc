// A plug-in of this version with two devices that can only change their stream. It is built like the real one, so
// objects and exceptions cross the same boundary.
#include "backend/plugin.h"
#include "core/error.h"

#include <cstdio>

namespace {

using namespace kvq;

constexpr int32_t kDevices = 2;
constexpr size_t kDeviceBytes = 512;  // memory that a context allocates through the caller's hook

[[noreturn]] void refuse() { throw Error(KVQ_E_BACKEND, 77, "the pretend device computes nothing"); }

void require_device(int32_t index) {
  if (index >= kDevices) fail(KVQ_E_UNSUPPORTED, "there is no pretend device %d", index);
}

class PretendBackend final : public Backend, private Pages, private Attention {
 public:
  PretendBackend(Allocator& allocator, const DeviceOptions& options) : allocator_(allocator), options_(options) {
    allocator_.reserve(kDeviceBytes);
    if (options_.allocate != nullptr) {
      memory_ = options_.allocate(options_.user, kDeviceBytes, options_.stream);
      if (memory_ == nullptr) {
        allocator_.unreserve(kDeviceBytes);
        fail(KVQ_E_MEMORY, "device_allocate returned NULL for %zu bytes", kDeviceBytes);
      }
    }
    std::snprintf(isa_, sizeof(isa_), "pretend_%d", options_.index);
  }
  ~PretendBackend() override {
    if (memory_ != nullptr) options_.free(options_.user, memory_, kDeviceBytes, options_.stream);
    allocator_.unreserve(kDeviceBytes);
  }
  PretendBackend(const PretendBackend&) = delete;
  PretendBackend& operator=(const PretendBackend&) = delete;

  const char* name() const override { return "pretend"; }
  const char* isa() const override { return isa_; }
  void set_stream(void* stream) override {
    if (stream == nullptr) refuse();
    options_.stream = stream;
  }

  bool recording() override { return false; }
  Pages& pages() override { return *this; }
  Attention& attention() override { return *this; }
  Facet<BlockPools> block_pools() override {
    return Facet<BlockPools>::missing("the pretend device reads no blocks of pools");
  }
  Facet<Weighing> weighing() override { return Facet<Weighing>::missing("the pretend device weighs nothing"); }
  Facet<Voting> voting() override { return Facet<Voting>::missing("the pretend device lets nobody vote"); }
  Facet<Training> training() override { return Facet<Training>::missing("the pretend device learns nothing"); }
  Facet<weights::Quantizing> quantizing() override {
    return Facet<weights::Quantizing>::missing("the pretend device finds no codes");
  }
  Facet<Linear> linear() override { return Facet<Linear>::missing("the pretend device multiplies nothing"); }
  Facet<Tuning> tuning() override { return Facet<Tuning>::missing("the pretend device has nothing to tune"); }

 private:
  std::byte* allocate(Allocator& /*allocator*/, size_t /*bytes*/) override { refuse(); }
  void release(Allocator& /*allocator*/, std::byte* /*data*/, size_t /*bytes*/) noexcept override {}
  void read(const PageFormat& /*format*/, const std::byte* /*data*/, std::byte* /*host*/) override { refuse(); }
  const std::byte* read_tensor(const std::byte* /*tensor*/, size_t /*bytes*/,
                               kvq::Vector<std::byte>& /*room*/) override {
    refuse();
  }
  void upload(const void* /*host*/, size_t /*bytes*/, std::byte* /*data*/) override { refuse(); }
  void write(const PageFormat& /*format*/, const std::byte* /*host*/, std::byte* /*data*/) override { refuse(); }
  bool knows(const PageFormat& format) const override { return !format.needs_training(); }
  bool knows_heads(const kvq::HeadShape& /*head*/, int32_t /*rotary_begin*/) const override { return true; }
  std::shared_ptr<const Resident> make_resident(Allocator& /*allocator*/, const Codec& /*codec*/,
                                                std::shared_ptr<const Trained> /*trained*/) override {
    refuse();
  }
  Owned<LayerContext> make_context(Allocator& /*allocator*/, const Codec& /*codec*/, const Resident& /*resident*/,
                                   int32_t /*layer*/, const PageFormat& /*format*/, const OptionValues& /*options*/,
                                   const RotationTable& /*rotations*/) override {
    refuse();
  }
  Owned<LayerMirror> make_mirror(Allocator& /*allocator*/, int32_t /*kv_heads*/) override { refuse(); }
  uint64_t mirror_bytes(int32_t /*kv_heads*/, int32_t /*pages*/, int32_t /*ring*/) const override { return 0; }
  void read_lengths(std::span<const Owned<LayerMirror>> /*mirrors*/, std::span<int32_t> /*lengths*/) override {
    refuse();
  }
  uint64_t append_bytes(const ExpectedAppend& /*expected*/) const override { refuse(); }
  void append(const TokenBatch& /*tokens*/, const PageWrites& /*writes*/, std::span<const AppendedLayer> /*layers*/,
              Allocator& /*scratch*/) override {
    refuse();
  }
  void compact(const kvq::SlotCompaction& /*compaction*/) override { refuse(); }
  Owned<Workspace> make_workspace(Allocator& /*allocator*/) override { refuse(); }
  uint64_t workspace_bytes(std::span<const ExpectedCall> /*calls*/) override { refuse(); }
  void reserve(const ExpectedCall& /*call*/, Workspace& /*workspace*/) override { refuse(); }
  void require_known_sizes(int32_t /*queries*/) const override { refuse(); }
  void attend(const AttendBatch& /*batch*/, Workspace& /*workspace*/) override { refuse(); }
  const float* rotate(const StreamRotation& /*heads*/, Workspace& /*workspace*/) override { refuse(); }

  Allocator& allocator_;
  DeviceOptions options_;
  void* memory_ = nullptr;
  char isa_[24];
};

Owned<Backend> make_backend(Allocator& allocator, const DeviceOptions& options) {
  require_device(options.index);
  return make_owned<PretendBackend>(allocator, allocator, options);
}

void describe_device(int32_t index, kvq_device_info& info) {
  require_device(index);
  info.n_devices = kDevices;
  std::snprintf(info.name, sizeof(info.name), "Pretend %d", index);
  info.compute_capability = 12;
  info.driver_version = 3040;
  info.memory_bytes = uint64_t{5} << 30;
}

constexpr BackendPlugin kPlugin{sizeof(BackendPlugin), KVQ_PLUGIN_ABI, make_backend, describe_device};

}  // namespace

extern "C" __attribute__((visibility("default"))) const BackendPlugin* kvq_cuda_plugin() { return &kPlugin; }
