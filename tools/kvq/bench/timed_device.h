#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "llama/threads.h"
#include "options/common.h"

namespace cli {

/// A tensor where those of a context lie.
using DeviceBuffer = std::unique_ptr<void, void (*)(void*)>;

/// The device that calls are timed on: its memory and its clock.
class TimedDevice {
 public:
  TimedDevice() = default;
  virtual ~TimedDevice() = default;
  TimedDevice(const TimedDevice&) = delete;
  TimedDevice& operator=(const TimedDevice&) = delete;

  /// For example "2 threads".
  virtual std::string name() const = 0;
  virtual uint64_t memory_bytes() const = 0;
  /// Bytes per second that memory gives to whoever does nothing else.
  virtual double memory_bandwidth() = 0;

  /// A copy of `bytes`.
  virtual DeviceBuffer upload(std::span<const std::byte> bytes) = 0;
  /// Microseconds that the device works on what `issue` gives it to do.
  virtual double time(const std::function<void()>& issue) = 0;
  /// Whether many calls can be recorded and then issued as one, which leaves nothing between them but what the device
  /// needs.
  virtual bool records() const = 0;
  /// What `issue` has `context` do, as one piece of work to issue again and again, such as within time(). On a device
  /// that records, a CUDA graph on what the calls use now, each of which has been made before; else `issue` itself.
  virtual std::function<void()> record(kvq_context* context, std::function<void()> issue) = 0;
  /// Bytes that calls have to use in turn so that each reads its own from memory; 0 if time() empties the caches before
  /// each. \param recorded  of calls that are recorded together.
  virtual uint64_t bytes_to_rotate(bool recorded) const = 0;
  /// Whether instructions have to be fetched after other work has run. Then a call that is to be compared with others'
  /// follows one of its own kind that is not timed, as theirs do.
  virtual bool forgets_instructions() const = 0;
};

/// The device of `options`. An Error with the reason if it is not available.
std::unique_ptr<TimedDevice> make_timed_device(const ComputeOptions& options);

std::unique_ptr<TimedDevice> make_timed_cpu(const ComputeOptions& options);
std::unique_ptr<TimedDevice> make_timed_gpu(const ComputeOptions& options);  // in builds with KVQ_CUDA

/// Bytes per second that the threads together read from memory: the best of several passes over far more data than
/// the processor caches.
double read_bandwidth(llama::ThreadPool& threads);

}  // namespace cli
