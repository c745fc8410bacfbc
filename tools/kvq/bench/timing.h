#pragma once

#include <chrono>

#include "llama/system.h"
#include "llama/threads.h"
#include "options/common.h"
#include "terminal/progress.h"

namespace cli {

/// The time since it was made.
class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }
  double microseconds() const { return std::chrono::duration<double, std::micro>(Clock::now() - begin_).count(); }

 private:
  using Clock = std::chrono::steady_clock;

  Clock::time_point begin_ = Clock::now();
};

/// Microseconds of one call.
struct Timing {
  double median = 0.0;
  double min = 0.0;
  double max = 0.0;
  int32_t repetitions = 0;
};

/// Of at least one number.
double median(std::vector<double> numbers);
Timing summary(const std::vector<double>& microseconds);

inline constexpr int64_t kTimingSteps = 30;      // repetitions, at least, unless they take many seconds
inline constexpr int64_t kMaxRepetitions = 300;  // but whole cycles

/// Call `run(i)` for each i in [0, subjects) in turn, again and again, so that whatever disturbs the machine disturbs
/// all alike, and end after a whole number of cycles of `cycle` repetitions. `progress` advances by up to kTimingSteps.
void repeat_in_turn(size_t subjects, int32_t cycle, Progress& progress, const std::function<void(size_t)>& run);

/// The times of each subject, in turn; `run(i)` returns the microseconds of one call. Where successive calls differ,
/// the means of whole cycles of them count.
std::vector<Timing> time_in_turn(size_t subjects, Progress& progress, const std::function<double(size_t)>& run,
                                 int32_t cycle = 1);

/// What was had of the processor while something computed that uses all of its threads.
struct ProcessorUse {
  double wall_seconds = 0.0;
  double processor_seconds = 0.0;  // of all threads of this process

  /// What `run` returns, whose time is added.
  template <class Run>
  auto watch(Run&& run) {
    const Stopwatch wall;
    const double begin = llama::processor_seconds();
    auto result = run();
    wall_seconds += wall.seconds();
    processor_seconds += llama::processor_seconds() - begin;
    return result;
  }

  /// Share of the time of so many threads that this process did not get. Some of it is its own: threads sleep while
  /// they wait for each other.
  double missing_share(int32_t threads) const;
};

/// How far from quiet a machine was while the same work was done many times.
struct Disturbance {
  double slowdown = 1.0;       // mean time as a multiple of the best
  double missing_share = 0.0;  // as ProcessorUse has it

  bool is_busy() const;
};

/// What is to be said of a busy machine, and what follows; empty if the machine was quiet. \param consequence  what
/// stands behind the colon, with what comes before it.
std::string disturbance_text(const Disturbance& disturbance, const std::string& consequence);

/// A tensor where those of a context lie.
using DeviceBuffer = std::unique_ptr<void, void (*)(void*)>;

/// The device that calls are timed on: its memory and its clock.
class TimedDevice {
 public:
  TimedDevice() = default;
  virtual ~TimedDevice() = default;
  TimedDevice(const TimedDevice&) = delete;
  TimedDevice& operator=(const TimedDevice&) = delete;

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
std::unique_ptr<TimedDevice> make_timed_gpu(const ComputeOptions& options);  // in builds with KVQ_CUDA

}  // namespace cli
