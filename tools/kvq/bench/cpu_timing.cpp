#include <unistd.h>

#include <algorithm>
#include <new>

#include "bench/read_bandwidth.h"
#include "bench/stopwatch.h"
#include "bench/timed_device.h"
#include "llama/cpu_device.h"

namespace cli {
namespace {

constexpr uint64_t kUsualCacheBytes = uint64_t{32} << 20;

uint64_t last_level_cache_bytes() {
#ifdef _SC_LEVEL3_CACHE_SIZE
  const long size = sysconf(_SC_LEVEL3_CACHE_SIZE);
  if (size > 0) return static_cast<uint64_t>(size);
#endif
  return kUsualCacheBytes;
}

class Cpu final : public TimedDevice {
 public:
  explicit Cpu(int32_t threads) : threads_(threads) {}

  std::string name() const override { return std::to_string(threads_) + (threads_ == 1 ? " thread" : " threads"); }

  uint64_t memory_bytes() const override { return llama::host_memory_bytes(); }

  double memory_bandwidth() override {
    llama::ThreadPool threads(threads_);
    return read_bandwidth(threads);
  }

  DeviceBuffer upload(std::span<const std::byte> bytes) override {
    DeviceBuffer buffer(::operator new(bytes.size()), [](void* data) { ::operator delete(data); });
    std::ranges::copy(bytes, static_cast<std::byte*>(buffer.get()));
    return buffer;
  }

  double time(const std::function<void()>& issue) override {
    const Stopwatch watch;
    issue();
    return watch.microseconds();
  }

  bool records() const override { return false; }
  std::function<void()> record(kvq_context* /*context*/, std::function<void()> issue) override { return issue; }
  uint64_t bytes_to_rotate(bool /*recorded*/) const override { return 2 * last_level_cache_bytes(); }
  bool forgets_instructions() const override { return false; }

 private:
  int32_t threads_;
};

}  // namespace

std::unique_ptr<TimedDevice> make_timed_cpu(const ComputeOptions& options) {
  return std::make_unique<Cpu>(options.threads);
}

}  // namespace cli
