#include "allocation/latencies.h"

#include <algorithm>

#include "allocation/memory.h"
#include "allocation/probe.h"
#include "bench/timed_calls.h"
#include "bench/timing.h"
#include "llama/error.h"
#include "llama/system.h"
#include "terminal/progress.h"

namespace cli {
namespace {

// The median counts of at least so many runs and microseconds, which outlast what disturbs the machine for a moment;
// slow subjects run three times.
constexpr size_t kRuns = 15;
constexpr size_t kFewRuns = 3;
constexpr double kDuration = 20000;
constexpr double kLatencyPatience = 500000;
constexpr int32_t kShortCache = 64;  // tokens, whose attention hardly counts in a step of decoding

double median_of_runs(const std::function<double()>& run) {
  run();
  std::vector<double> times;
  double all = 0.0;
  while (times.size() < kFewRuns || (all < kLatencyPatience && (times.size() < kRuns || all < kDuration))) {
    times.push_back(run());
    all += times.back();
  }
  return median(std::move(times));
}

struct SharedMatrices {
  std::vector<int64_t> outs;
  int64_t in;

  bool operator==(const SharedMatrices&) const = default;
};

SharedMatrices shared_with(const llama::ModelConfig& config, const llama::LinearLayer& layer) {
  SharedMatrices shared{{}, layer.in};
  for (const llama::LinearLayer& each : llama::linear_layers(config, layer.layer)) {
    if (each.input == layer.input) shared.outs.push_back(each.out);
  }
  return shared;
}

/// Every shape once: single matrices, those that share inputs, and with `fusion` every part of these.
std::vector<SharedMatrices> all_shapes(const llama::ModelConfig& config, bool fusion) {
  std::vector<SharedMatrices> shapes;
  const auto add = [&shapes](const SharedMatrices& shape) {
    if (std::ranges::find(shapes, shape) == shapes.end()) shapes.push_back(shape);
  };
  for (const llama::LinearLayer& layer : llama::linear_layers(config, 0)) {
    const SharedMatrices all = shared_with(config, layer);
    add({{layer.out}, layer.in});
    add(all);
    for (size_t part = 1; fusion && part < size_t{1} << all.outs.size(); ++part) {
      SharedMatrices some{{}, all.in};
      for (size_t i = 0; i < all.outs.size(); ++i) {
        if ((part >> i & 1) != 0) some.outs.push_back(all.outs[i]);
      }
      add(some);
    }
  }
  return shapes;
}

uint64_t model_bytes(const llama::ModelConfig& config, const std::string& scheme) {
  uint64_t bytes = 0;
  for (const llama::LinearLayer& layer : llama::all_linear_layers(config)) bytes += packed_bytes(scheme, layer);
  return bytes;
}

void measure_linear(Measurements& known, Latencies& times, Engine& engine, TimedDevice& device,
                    const AllocationRequest& request) {
  const llama::ModelConfig& config = engine.model.config();
  const std::vector<SharedMatrices> shapes = all_shapes(config, request.fusion);
  Progress progress("timing linear layers", static_cast<int64_t>(shapes.size() * request.schemes.size()));
  for (const SharedMatrices& shape : shapes) {
    bool changed = false;
    for (const std::string& scheme : request.schemes) {
      Interrupt::check();
      progress.advance(1);
      const std::string key = linear_key(scheme, shape.outs, shape.in, request.batch);
      if (times.linear.contains(key)) continue;
      TimedLinear subject(device, engine.context, Tuning(), scheme,
                          {.out = shape.outs.front(),
                           .in = shape.in,
                           .batch = request.batch,
                           .also = {shape.outs.begin() + 1, shape.outs.end()},
                           .most_bytes = model_bytes(config, scheme),
                           .recorded = device.records()});
      times.linear[key] = median_of_runs([&subject] { return subject.run(); });
      changed = true;
    }
    if (changed) known.save();
  }
}

const std::string kPlainCache = "fp16/fp16";

/// A SPEC, with random scales where sequences have scales: none is to find them while it is timed.
std::string pair_text(const std::string& keys, const std::string& values, bool calibrates) {
  const std::string pair = keys + "/" + values;
  return calibrates && pair != kPlainCache ? pair + "@scales" : pair;
}

/// Mean microseconds of appending a token of each of `batch` sequences to a layer: pages are sealed now and then.
double time_append(Engine& engine, TimedDevice& device, const Spec& format, const LayerShape& layer, int32_t batch) {
  const AppendShape shape{.layer = layer, .length = KVQ_PAGE_SLOTS, .tokens = batch};
  const AppendInput input(device, shape);
  TimedAppend subject(device, engine.context, format, shape, input);
  for (int32_t call = 0; call < shape.cycle(); ++call) subject.run();
  subject.clear();
  for (int32_t call = 0; call < shape.cycle(); ++call) subject.run();
  return subject.timing().mean;
}

/// Microseconds of appending to a layer and attending to it, when it holds `length` tokens of each sequence.
double time_cache(Engine& engine, TimedDevice& device, const std::string& pair, int32_t length, int32_t batch) {
  const llama::ModelConfig& config = engine.model.config();
  AttentionShape shape{.layer = {config.q_heads, config.kv_heads, config.head_dim}, .length = length, .batch = batch};
  const uint64_t fp16 = shape.layer.fp16_token_bytes() * static_cast<uint64_t>(length) * static_cast<uint64_t>(batch);
  shape.most_bytes = fp16 * static_cast<uint64_t>(config.n_layers);
  const Spec format = load_layer_spec(engine.context, pair, shape.layer);
  TimedAttention subject(device, engine.context, format, shape);
  const double attending = median_of_runs([&subject] { return subject.run(); });
  return attending + time_append(engine, device, format, shape.layer, batch);
}

void measure_cache(Measurements& known, Latencies& times, Engine& engine, TimedDevice& device,
                   const AllocationRequest& request) {
  std::vector<std::string> pairs = {kPlainCache};
  for (const std::string& format : request.formats) {
    if (!request.cache) break;
    pairs.push_back(pair_text(format, "fp16", request.calibrates));
    pairs.push_back(pair_text("fp16", format, request.calibrates));
  }
  Progress progress("timing caches", static_cast<int64_t>(pairs.size()));
  for (const std::string& pair : pairs) {
    Interrupt::check();
    progress.advance(1);
    const std::string key = cache_time_key(pair, request.kept(), request.batch);
    if (times.cache.contains(key)) continue;
    times.cache[key] = time_cache(engine, device, pair, request.kept(), request.batch);
    known.save();
  }
}

double time_step(Engine& engine, int32_t batch) {
  llama::Session session(engine.model, engine.context, {});
  session.forward(std::vector<int32_t>(kShortCache), false);
  const std::vector<int32_t> tokens(static_cast<size_t>(batch));
  return median_of_runs([&] {
    const Stopwatch watch;
    session.forward(tokens, true);
    return watch.microseconds();
  });
}

/// What a step takes beside caches and, if these are planned, linear layers: of a whole step, what is left without
/// them. So norms and logits are in it, and whatever it costs that kernels follow on each other.
void measure_others(Measurements& known, Latencies& times, Engine& engine, TimedDevice& device,
                    const AllocationRequest& request) {
  const std::string key = others_key(request.weights, request.batch);
  if (times.others.contains(key)) return;
  const llama::ModelConfig& config = engine.model.config();
  ExchangedLayers::Layers random;
  double known_part = config.n_layers * time_cache(engine, device, kPlainCache, kShortCache, request.batch);
  if (request.weights) {
    const std::string& scheme = request.schemes.front();
    RandomMatrices matrices(engine.context, scheme);
    for (const llama::LinearLayer& layer : llama::all_linear_layers(config)) {
      auto packed = std::make_shared<const kvq::Matrix>(matrices.load(layer.out, layer.in));
      random.emplace_back(layer, llama::Linear{{layer.out, layer.in, {}}, {}, std::move(packed)});
      known_part += matrix_microseconds(times, config, layer, scheme, request.batch);
    }
  }
  const ExchangedLayers exchanged(engine.model, std::move(random));
  times.others[key] = std::max(time_step(engine, request.batch) - known_part, 0.0);
  known.save();
}

double at(const std::map<std::string, double>& times, const std::string& key) {
  const auto found = times.find(key);
  if (found != times.end()) return found->second;
  throw llama::Error("the measurements of this machine lack the time of " + key);
}

}  // namespace

std::string machine_of(const Engine& engine, const ComputeOptions& compute) {
  std::string processor = compute.device == "cpu" ? llama::processor_name() : "";
  if (!processor.empty()) processor += ", ";
  return processor + machine_text(engine.context, compute) + ", kvq " + kvq_version_string();
}

void measure_latencies(Measurements& known, Engine& engine, const ComputeOptions& compute,
                       const AllocationRequest& request) {
  const std::unique_ptr<TimedDevice> device = make_timed_device(compute);
  Latencies& times = known.machines[machine_of(engine, compute)];
  if (request.weights) measure_linear(known, times, engine, *device, request);
  measure_cache(known, times, engine, *device, request);
  measure_others(known, times, engine, *device, request);
}

double matrix_microseconds(const Latencies& times, const llama::ModelConfig& config, const llama::LinearLayer& layer,
                           const std::string& scheme, int32_t batch) {
  const SharedMatrices shared = shared_with(config, layer);
  const double alone = at(times.linear, linear_key(scheme, {layer.out}, layer.in, batch));
  double all_alone = 0.0;
  for (const int64_t out : shared.outs) all_alone += at(times.linear, linear_key(scheme, {out}, layer.in, batch));
  return alone * at(times.linear, linear_key(scheme, shared.outs, layer.in, batch)) / all_alone;
}

double group_microseconds(const Latencies& times, const std::vector<llama::LinearLayer>& matrices,
                          const std::string& scheme, int32_t batch) {
  std::vector<int64_t> outs;
  for (const llama::LinearLayer& each : matrices) outs.push_back(each.out);
  return at(times.linear, linear_key(scheme, outs, matrices.front().in, batch));
}

double cache_microseconds(const Latencies& times, const std::string& keys, const std::string& values,
                          const AllocationRequest& request) {
  const auto of = [&](const std::string& k, const std::string& v) {
    return at(times.cache, cache_time_key(pair_text(k, v, request.calibrates), request.kept(), request.batch));
  };
  return std::max(of(keys, "fp16") + of("fp16", values) - of("fp16", "fp16"), 0.0);
}

double unplanned_microseconds(const Latencies& times, const llama::ModelConfig& config,
                              const AllocationRequest& request) {
  double microseconds = at(times.others, others_key(request.weights, request.batch));
  if (!request.cache) microseconds += config.n_layers * cache_microseconds(times, "fp16", "fp16", request);
  return microseconds;
}

}  // namespace cli
