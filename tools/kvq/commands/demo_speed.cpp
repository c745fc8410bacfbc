#include "commands/demo_speed.h"

#include <algorithm>
#include <memory>
#include <string_view>

#include "bench/bench.h"
#include "bench/layer_spec.h"
#include "bench/random_codebook.h"
#include "bench/timing.h"
#include "options/spec.h"

namespace cli {
namespace {

/// As load_layer_spec, but for codebooks, which would take longer to train than all else to time.
Spec speed_spec(const kvq::Context& context, const std::string& format, const LayerShape& layer) {
  const auto of_bits = [&](int32_t bits) {
    return Spec{.policy = kvq::Policy::load(context, "{version: 1, keys: commvq, values: commvq}"),
                .codebook = random_codebook(context, bits, layer)};
  };
  if (format == "commvq-1") return of_bits(1);
  if (format == "commvq-2") return of_bits(2);
  return load_layer_spec(context, format, layer);
}

/// Attention whose calls are watched.
class WatchedAttention {
 public:
  WatchedAttention(ProcessorUse& use, TimedDevice& device, const kvq::Context& context, const std::string& format,
                   const AttentionShape& shape)
      : use_(&use), attention_(device, context, speed_spec(context, format, shape.layer), shape) {}

  double run() {
    return use_->watch([this] { return attention_.run(); });
  }
  uint64_t bytes() const { return attention_.bytes(); }
  double bits() const { return attention_.bits(); }

 private:
  ProcessorUse* use_;
  TimedAttention attention_;
};

}  // namespace

AttentionSpeed measure_attention_speed(const ComputeOptions& compute, const AttentionShape& shape,
                                       const std::vector<std::string>& formats) {
  const kvq::Context context = make_context(compute);
  const std::unique_ptr<TimedDevice> device = make_timed_device(compute);
  ProcessorUse use;
  const std::vector<BenchRow> rows = measure_rows("speed", formats, [&](const std::string& format) {
    return WatchedAttention(use, *device, context, format, shape);
  });
  AttentionSpeed speed{.microseconds = {}, .rounds = rows.front().timing.repetitions, .disturbance = {}};
  double best_round = 0.0;
  for (const BenchRow& row : rows) {
    speed.microseconds.push_back(row.timing.min);
    best_round += 1e-6 * row.timing.min;
  }
  // A GPU has a clock of its own, and others seldom use it.
  if (compute.device == "cpu") {
    const double mean_round = use.wall_seconds / (speed.rounds + 1);  // one more to warm up
    speed.disturbance = {.slowdown = mean_round / best_round, .missing_share = use.missing_share(compute.threads)};
  }
  return speed;
}

ReadingSpeed measure_reading_speed(Engine& engine, std::span<const int32_t> tokens, int32_t chunk) {
  constexpr int kChunks = 32;  // one of which may be left alone, however busy the machine is
  const auto size = static_cast<size_t>(chunk);
  llama::Session session(engine.model, engine.context, load_spec(engine, "fp16"));
  const auto read = [&] {
    const Stopwatch watch;
    session.forward(tokens.subspan(static_cast<size_t>(session.length()), size), true);
    return watch.seconds();
  };
  read();  // work space
  ProcessorUse use;
  double best = use.watch(read);
  for (int i = 1; i < kChunks; ++i) best = std::min(best, use.watch(read));
  ReadingSpeed speed{.tokens_per_second = chunk / best, .disturbance = {}};
  if (std::string_view(engine.context.describe().backend) == "cpu") {  // a GPU leaves processors alone
    speed.disturbance = {.slowdown = use.wall_seconds / kChunks / best,
                         .missing_share = use.missing_share(engine.threads->size())};
  }
  return speed;
}

}  // namespace cli
